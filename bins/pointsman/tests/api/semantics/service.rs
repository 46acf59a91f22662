//! Addresses and ports of Services.

use super::SERVICES;
use jiff::Timestamp;
use pointsman_harness::wire::{message, version_of};
use pointsman_harness::{Server, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn service(name: &str, spec: Value) -> Value {
    let mut service =
        json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

#[tokio::test]
async fn defaults_and_addresses_are_filled_in() {
    let server = Server::start(&["--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112"]).await;
    let http = server.admin().await;
    let made = http
        .post(SERVICES, &service("plain", json!({})))
        .await
        .expect(201);
    let spec = &made["spec"];
    assert_eq!(
        (spec["type"].as_str(), spec["sessionAffinity"].as_str()),
        (Some("ClusterIP"), Some("None"))
    );
    assert_eq!(
        (
            spec["internalTrafficPolicy"].as_str(),
            spec["ipFamilyPolicy"].as_str()
        ),
        (Some("Cluster"), Some("SingleStack"))
    );
    assert_eq!(
        (&spec["ports"][0]["protocol"], &spec["ports"][0]["targetPort"]),
        (&json!("TCP"), &json!(80))
    );
    assert!(spec["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    let dual = http
        .post(
            SERVICES,
            &service("dual", json!({"ipFamilyPolicy": "PreferDualStack"})),
        )
        .await
        .expect(201);
    assert_eq!(dual["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert!(
        dual["spec"]["clusterIPs"][1]
            .as_str()
            .unwrap()
            .starts_with("fd00:96::")
    );
    let headless = http
        .post(SERVICES, &service("headless", json!({"clusterIP": "None"})))
        .await
        .expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let far =
        json!({"metadata": {"name": "far"}, "spec": {"type": "ExternalName", "externalName": "example.org"}});
    assert_eq!(
        http.post(SERVICES, &far).await.expect(201)["spec"].get("clusterIP"),
        None
    );
    let balanced = http
        .post(SERVICES, &service("balanced", json!({"type": "LoadBalancer"})))
        .await
        .expect(201);
    let port = balanced["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    assert_eq!(balanced["spec"]["allocateLoadBalancerNodePorts"], true);
    let own = http
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await
        .expect(200);
    assert_eq!(own["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test]
async fn wishes_are_granted_once_and_given_back_on_delete() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let wish =
        json!({"type": "NodePort", "clusterIP": "10.96.7.7", "ports": [{"port": 80, "nodePort": 31234}]});
    http.post(SERVICES, &service("first", wish.clone()))
        .await
        .expect(201);
    let taken = http
        .post(SERVICES, &service("second", wish.clone()))
        .await
        .refused(422, "Invalid");
    assert!(
        message(&taken).contains("10.96.7.7") || message(&taken).contains("31234"),
        "{taken}"
    );
    let port_only = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 31234}]});
    let taken = http
        .post(SERVICES, &service("second", port_only))
        .await
        .refused(422, "Invalid");
    assert!(
        message(&taken).contains("spec.ports[0].nodePort") && message(&taken).contains("31234"),
        "{taken}"
    );
    for wrong in [
        json!({"clusterIP": "192.0.2.1"}),
        json!({"clusterIP": "10.96.0.1"}),
        json!({"clusterIP": "nonsense"}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
        json!({"ports": [{"port": 80, "nodePort": 31000}]}),
        json!({"ports": []}),
        json!({"ports": [{"port": 80}, {"port": 81}]}),
        json!({"type": "NodePort", "clusterIP": "None"}),
        json!({"clusterIPs": ["10.96.9.9"]}),
    ] {
        http.post(SERVICES, &service("wrong", wrong))
            .await
            .refused(422, "Invalid");
    }
    // A dry run takes nothing.
    let other = json!({"clusterIP": "10.96.8.8"});
    http.post(
        &format!("{SERVICES}?dryRun=All"),
        &service("tried", other.clone()),
    )
    .await
    .expect(201);
    http.post(SERVICES, &service("real", other)).await.expect(201);
    http.delete(&format!("{SERVICES}/first")).await.expect(200);
    http.post(SERVICES, &service("second", wish)).await.expect(201);
}

#[tokio::test]
async fn updates_keep_release_and_refuse_as_the_rules_say() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let made = http
        .post(SERVICES, &service("s", json!({"type": "NodePort"})))
        .await
        .expect(201);
    let path = format!("{SERVICES}/s");
    let (ip, port) = (
        made["spec"]["clusterIP"].clone(),
        made["spec"]["ports"][0]["nodePort"].clone(),
    );
    // Who does not name them keeps them.
    let kept = http
        .put(&path, &service("s", json!({"type": "NodePort"})))
        .await
        .expect(200);
    assert_eq!(
        (&kept["spec"]["clusterIP"], &kept["spec"]["ports"][0]["nodePort"]),
        (&ip, &port)
    );
    http.patch(
        &path,
        "merge",
        &json!({"spec": {"clusterIP": "10.96.1.2", "clusterIPs": ["10.96.1.2"]}}),
    )
    .await
    .refused(422, "Invalid");
    let both = http
        .patch(
            &path,
            "merge",
            &json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}),
        )
        .await
        .expect(200);
    assert_eq!(both["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
    assert_eq!(both["spec"]["clusterIP"], ip);
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let single = http.patch(&path, "merge", &single).await.expect(200);
    assert_eq!(single["spec"]["clusterIPs"], json!([ip]));
    let plain = http
        .patch(&path, "merge", &json!({"spec": {"type": "ClusterIP"}}))
        .await
        .expect(200);
    assert_eq!(plain["spec"]["ports"][0].get("nodePort"), None);
    let reuse = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    http.post(SERVICES, &service("reuse", reuse)).await.expect(201);
    let far = json!({"spec": {"type": "ExternalName", "externalName": "example.org"}});
    assert_eq!(
        http.patch(&path, "merge", &far).await.expect(200)["spec"].get("clusterIP"),
        None
    );
    http.post(SERVICES, &service("again", json!({"clusterIP": ip})))
        .await
        .expect(201);
}

#[tokio::test]
async fn parallel_creates_never_share_an_address_and_a_full_range_says_so() {
    // Six usable addresses, one of them taken by the API server itself.
    let server = Server::start(&[
        "--service-cluster-ip-range",
        "10.50.0.0/29",
        "--service-node-port-range",
        "31000-31003",
    ])
    .await;
    let http = server.admin().await;
    let posts = (0..8).map(|at| {
        let http = http.clone();
        async move { http.post(SERVICES, &service(&format!("s{at}"), json!({}))).await }
    });
    let answers = futures::future::join_all(posts).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.code == 201);
    let addresses: BTreeSet<String> = made
        .iter()
        .map(|answer| answer.json()["spec"]["clusterIP"].to_string())
        .collect();
    assert_eq!((made.len(), addresses.len(), refused.len()), (5, 5, 3));
    for answer in refused {
        assert!(
            answer.code >= 400 && answer.json()["message"].as_str().unwrap().contains("range"),
            "{}",
            answer.text
        );
    }
    http.delete(&format!("{SERVICES}?fieldSelector=metadata.name!%3Dkubernetes"))
        .await
        .expect(200);
    let node_ports = (0..4).map(|at| {
        let http = http.clone();
        async move {
            http.post(SERVICES, &service(&format!("n{at}"), json!({"type": "NodePort"})))
                .await
                .expect(201)
        }
    });
    let made = futures::future::join_all(node_ports).await;
    let ports: BTreeSet<String> = made
        .iter()
        .map(|made| made["spec"]["ports"][0]["nodePort"].to_string())
        .collect();
    assert_eq!(ports.len(), 4);
}

#[tokio::test]
async fn allocations_survive_a_kill_without_leaks_or_doubles() {
    let mut server = Server::start_to_be_restarted(&[
        "--service-cluster-ip-range",
        "10.50.0.0/28",
        "--service-node-port-range",
        "31000-31020",
    ])
    .await;
    for round in 0..2 {
        let http = server.admin().await;
        let churn = tokio::spawn(async move {
            for at in 0.. {
                let name = format!("r{round}-{at}");
                let made = http
                    .try_post(SERVICES, &service(&name, json!({"type": "NodePort"})))
                    .await;
                let Ok(made) = made else { return };
                if made.code != 201 || at % 3 != 0 {
                    let delete = http::Request::delete(format!("{SERVICES}/{name}"))
                        .body(Vec::new())
                        .unwrap();
                    if http.try_send(delete).await.is_err() {
                        return;
                    }
                }
            }
        });
        let http = server.admin().await;
        eventually("some Services are there", async || {
            let list = http.get(SERVICES).await.expect(200);
            (list["items"].as_array().unwrap().len() > 2 + round * 2).then_some(())
        })
        .await;
        server.kill().await;
        churn.await.unwrap();
        server.launch().await;
    }
    let http = server.admin().await;
    let list = http.get("/api/v1/services").await.expect(200);
    let held = list["items"].as_array().unwrap();
    let addresses: BTreeSet<&str> = held
        .iter()
        .map(|item| item["spec"]["clusterIP"].as_str().unwrap())
        .collect();
    assert_eq!(addresses.len(), held.len(), "{list}");
    // Every address that is not held can be had: nothing leaked.
    let free = 14 - held.len();
    for at in 0..free {
        http.post(SERVICES, &service(&format!("fill{at}"), json!({})))
            .await
            .expect(201);
    }
    assert!(http.post(SERVICES, &service("over", json!({}))).await.code >= 400);
}

/// When the server says that it wrote this version.
fn stamp(service: &Value) -> Timestamp {
    let text = service["metadata"]["annotations"]["pointsman.io/last-change-time"].as_str();
    text.unwrap_or_else(|| panic!("no stamp: {service}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn every_write_says_when_it_happened_and_so_does_the_removal() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let path = format!("{SERVICES}/web");
    let before = Timestamp::now();
    let mut claimed = service("web", json!({}));
    claimed["metadata"]["annotations"] = json!({"pointsman.io/last-change-time": "2001-01-01T00:00:00Z"});
    let made = http.post(SERVICES, &claimed).await.expect(201);
    let created = Timestamp::now();
    assert!(
        (before..=created).contains(&stamp(&made)),
        "a client does not choose it: {made}"
    );

    // A client that replaces the whole object cannot lose it, and a write that changes nothing is none.
    let mut replaced = made.clone();
    replaced["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("annotations");
    let same = http.put(&path, &replaced).await.expect(200);
    assert_eq!(
        (version_of(&same), stamp(&same)),
        (version_of(&made), stamp(&made))
    );

    let mut watch = http
        .watch(&format!(
            "{SERVICES}?watch=1&resourceVersion={}",
            version_of(&made)
        ))
        .await;
    let patch = json!({"spec": {"ports": [{"port": 81}]}});
    let changed = http.patch(&path, "merge", &patch).await.expect(200);
    let patched = Timestamp::now();
    assert!((created..=patched).contains(&stamp(&changed)), "{changed}");
    assert_eq!(stamp(&watch.expect().await.object), stamp(&changed));

    http.delete(&path).await.expect(200);
    let deleted = watch.expect().await;
    assert_eq!(deleted.brief(), "DELETED web");
    assert!(
        (patched..=Timestamp::now()).contains(&stamp(&deleted.object)),
        "{}",
        deleted.object
    );
}
