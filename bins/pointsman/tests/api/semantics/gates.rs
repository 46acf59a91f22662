//! Fields behind gates, and what happens to them when a gate is turned.

use super::{DEPLOYMENTS, PODS, SLICES};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use pointsman_harness::wire::{Http, message};
use pointsman_harness::{Server, pod};
use serde_json::{Value, json};

fn slice(name: &str, conditions: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}],
    })
}

fn conditions(slice: &Value) -> &Value {
    &slice["endpoints"][0]["conditions"]
}

#[tokio::test]
async fn terminating_conditions_come_and_go_with_their_gate() {
    let mut server = Server::start_to_be_restarted(&[]).await;
    let full = json!({"ready": false, "serving": true, "terminating": true});
    let bare = json!({"ready": false});
    let http = server.admin().await;
    assert_eq!(
        conditions(&http.post(SLICES, &slice("uses", full.clone())).await.expect(201)),
        &full
    );
    http.post(SLICES, &slice("plain", bare.clone())).await.expect(201);

    server.set_flags(&["--feature-gates", "EndpointSliceTerminatingCondition=false"]);
    server.restart().await;
    let http = server.admin().await;
    let path = |name: &str| format!("{SLICES}/{name}");
    assert_eq!(
        conditions(&http.get(&path("uses")).await.expect(200)),
        &full,
        "what is stored stays"
    );
    assert_eq!(
        conditions(&http.post(SLICES, &slice("new", full.clone())).await.expect(201)),
        &bare,
        "dropped on create"
    );
    assert_eq!(
        conditions(
            &http
                .put(&path("plain"), &slice("plain", full.clone()))
                .await
                .expect(200)
        ),
        &bare,
        "dropped on update"
    );
    let changed = json!({"ready": false, "serving": false, "terminating": true});
    assert_eq!(
        conditions(
            &http
                .put(&path("uses"), &slice("uses", changed.clone()))
                .await
                .expect(200)
        ),
        &changed,
        "in use, so kept"
    );
    http.put(&path("uses"), &slice("uses", bare.clone()))
        .await
        .expect(200);
    assert_eq!(
        conditions(
            &http
                .put(&path("uses"), &slice("uses", full.clone()))
                .await
                .expect(200)
        ),
        &bare,
        "no longer in use"
    );

    server.set_flags(&["--feature-gates", "EndpointSliceTerminatingCondition=true"]);
    server.restart().await;
    let http = server.admin().await;
    assert_eq!(
        conditions(
            &http
                .put(&path("new"), &slice("new", full.clone()))
                .await
                .expect(200)
        ),
        &full
    );
}

#[tokio::test]
async fn endpoint_slices_are_checked() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let broken = |change: fn(&mut Value)| {
        let mut object = slice("wrong", json!({}));
        change(&mut object);
        object
    };
    for (object, field) in [
        (broken(|o| o["addressType"] = "IPv5".into()), "addressType"),
        (
            broken(|o| o["endpoints"][0]["addresses"] = json!(["fd00::1"])),
            "endpoints[0].addresses",
        ),
        (
            broken(|o| o["endpoints"][0]["addresses"] = json!(["127.0.0.1"])),
            "endpoints[0].addresses[0]",
        ),
        (
            broken(|o| o["endpoints"][0]["addresses"] = json!([])),
            "endpoints[0].addresses",
        ),
        (
            broken(|o| o["ports"] = json!([{"port": 1}, {"port": 2}])),
            "ports[1].name",
        ),
        (
            broken(|o| o["ports"] = json!([{"port": 80, "protocol": "ICMP"}])),
            "ports[0].protocol",
        ),
    ] {
        let refused = http.post(SLICES, &object).await.refused(422, "Invalid");
        assert!(message(&refused).contains(field), "{field}: {refused}");
    }
    http.post(SLICES, &slice("fine", json!({}))).await.expect(201);
    let other = http
        .patch(
            &format!("{SLICES}/fine"),
            "merge",
            &json!({"addressType": "FQDN"}),
        )
        .await;
    other.refused(422, "Invalid");
    let many: Vec<Value> = (0..1001).map(|_| json!({"addresses": ["10.0.0.1"]})).collect();
    let mut object = slice("many", json!({}));
    object["endpoints"] = many.into();
    http.post(SLICES, &object).await.refused(422, "Invalid");
}

fn probed(name: &str, role: &str, probe: Value) -> Value {
    let mut object = pod(name);
    object["spec"]["containers"][0][role] = probe;
    object
}

async fn accepted(http: &Http, role: &str, probe: Value) -> Value {
    let object = probed("tried", role, probe);
    let made = http
        .post(&format!("{PODS}?dryRun=All"), &object)
        .await
        .expect(201);
    made["spec"]["containers"][0][role].clone()
}

#[tokio::test]
async fn millisecond_offsets_are_added_to_the_defaulted_seconds_and_the_sum_is_checked() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let tcp = json!({"tcpSocket": {"port": 80}});
    let with = |base: &Value, fields: Value| {
        let mut probe = base.clone();
        probe
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        probe
    };
    let kept = accepted(
        &http,
        "readinessProbe",
        with(&tcp, json!({"periodMilliseconds": 500})),
    )
    .await;
    assert_eq!(
        (
            kept["periodSeconds"].as_i64(),
            kept["periodMilliseconds"].as_i64()
        ),
        (Some(10), Some(500))
    );
    for (role, fields) in [
        (
            "readinessProbe",
            json!({"periodSeconds": 1, "periodMilliseconds": -800}),
        ),
        (
            "startupProbe",
            json!({"periodSeconds": 1, "periodMilliseconds": -800}),
        ),
        (
            "livenessProbe",
            json!({"periodSeconds": 1, "periodMilliseconds": 999}),
        ),
        (
            "readinessProbe",
            json!({"initialDelaySeconds": 1, "initialDelayMilliseconds": -999}),
        ),
        (
            "readinessProbe",
            json!({"timeoutSeconds": 1, "timeoutMilliseconds": -500}),
        ),
    ] {
        accepted(&http, role, with(&tcp, fields)).await;
    }
    let exec = json!({"exec": {"command": ["true"]}});
    accepted(
        &http,
        "readinessProbe",
        with(&exec, json!({"periodSeconds": 1, "periodMilliseconds": -500})),
    )
    .await;
    for (role, base, fields, named) in [
        (
            "readinessProbe",
            &tcp,
            json!({"timeoutSeconds": 1, "timeoutMilliseconds": -950}),
            ["timeoutMilliseconds", "50ms", "100ms"],
        ),
        (
            "livenessProbe",
            &tcp,
            json!({"timeoutSeconds": 1, "timeoutMilliseconds": -500}),
            ["timeoutMilliseconds", "500ms", "1000ms"],
        ),
        (
            "readinessProbe",
            &tcp,
            json!({"periodSeconds": 1, "periodMilliseconds": -850}),
            ["periodMilliseconds", "150ms", "200ms"],
        ),
        (
            "readinessProbe",
            &exec,
            json!({"periodSeconds": 1, "periodMilliseconds": -600}),
            ["periodMilliseconds", "400ms", "500ms"],
        ),
        (
            "livenessProbe",
            &tcp,
            json!({"periodSeconds": 1, "periodMilliseconds": -500}),
            ["periodMilliseconds", "500ms", "livenessProbe"],
        ),
        (
            "readinessProbe",
            &tcp,
            json!({"initialDelayMilliseconds": -1}),
            ["initialDelayMilliseconds", "-1ms", "0"],
        ),
        (
            "readinessProbe",
            &tcp,
            json!({"periodMilliseconds": 1000}),
            ["periodMilliseconds", "-999", "999"],
        ),
    ] {
        let refused = http
            .post(PODS, &probed("wrong", role, with(base, fields)))
            .await
            .refused(422, "Invalid");
        for part in named {
            assert!(message(&refused).contains(part), "{part}: {refused}");
        }
    }
}

#[tokio::test]
async fn millisecond_offsets_come_and_go_with_their_gate() {
    let mut server = Server::start_to_be_restarted(&["--feature-gates", "SubSecondProbes=true"]).await;
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500});
    let offset = |object: &Value| {
        object["spec"]["containers"][0]["readinessProbe"]
            .get("periodMilliseconds")
            .cloned()
    };
    let template = |probe: &Value| {
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": probed("x", "readinessProbe", probe.clone())["spec"]}}})
    };
    let http = server.admin().await;
    http.post(PODS, &probed("uses", "readinessProbe", probe.clone()))
        .await
        .expect(201);
    http.post(DEPLOYMENTS, &template(&probe)).await.expect(201);

    server.set_flags(&["--feature-gates", "SubSecondProbes=false"]);
    server.restart().await;
    let http = server.admin().await;
    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let kept = http
        .patch(&format!("{PODS}/uses"), "strategic-merge", &label)
        .await
        .expect(200);
    assert_eq!(offset(&kept), Some(json!(-500)), "in use, so kept");
    let dropped = http
        .post(PODS, &probed("new", "readinessProbe", probe.clone()))
        .await
        .expect(201);
    assert_eq!(offset(&dropped), None);
    let replaced = http
        .put(&format!("{DEPLOYMENTS}/d"), &template(&probe))
        .await
        .expect(200);
    assert_eq!(offset(&replaced["spec"]["template"]), Some(json!(-500)));
    let mut without = probe.clone();
    without.as_object_mut().unwrap().remove("periodMilliseconds");
    http.put(&format!("{DEPLOYMENTS}/d"), &template(&without))
        .await
        .expect(200);
    let replaced = http
        .put(&format!("{DEPLOYMENTS}/d"), &template(&probe))
        .await
        .expect(200);
    assert_eq!(offset(&replaced["spec"]["template"]), None, "no longer in use");

    server.set_flags(&["--feature-gates", "SubSecondProbes=true"]);
    server.restart().await;
    let http = server.admin().await;
    assert_eq!(
        offset(&http.get(&format!("{PODS}/uses")).await.expect(200)),
        Some(json!(-500))
    );
    let replaced = http
        .put(&format!("{DEPLOYMENTS}/d"), &template(&probe))
        .await
        .expect(200);
    assert_eq!(offset(&replaced["spec"]["template"]), Some(json!(-500)));
}

#[tokio::test]
async fn a_client_that_does_not_know_the_offsets_does_not_lose_them_from_a_pod() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500});
    http.post(PODS, &probed("p", "readinessProbe", probe))
        .await
        .expect(201);
    // The typed client reads the pod without the field and writes it back.
    let pods: Api<Pod> = Api::default_namespaced(server.client().await);
    let mut read = pods.get("p").await.unwrap();
    read.metadata
        .labels
        .get_or_insert_default()
        .insert("touched".into(), "yes".into());
    pods.replace("p", &PostParams::default(), &read).await.unwrap();
    let found = http.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(found["metadata"]["labels"]["touched"], "yes");
    assert_eq!(
        found["spec"]["containers"][0]["readinessProbe"]["periodMilliseconds"],
        -500
    );
}
