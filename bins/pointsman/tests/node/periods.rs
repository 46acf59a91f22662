//! How often are containers of a running node really asked, and since when?
//!
//! The servers are the test's own, so that what counts is when a question arrives. A machine that stalls delays some of
//! them: bounds lie halfway between what is right and what would be wrong.

use crate::lab::{ADDRESS, Lab, on_a_node, on_a_node_with};
use pointsman_harness::Probed;
use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Op, Outcome, Store, Transaction};
use serde_json::{Value, json};
use std::time::Duration;

const HALF: Duration = Duration::from_millis(500);
const ALMOST_A_SECOND: Duration = Duration::from_millis(900);

/// A probe of the server every 200 ms, as long as that is granted.
fn fast(server: &Probed) -> Value {
    json!({
        "httpGet": { "host": ADDRESS, "port": server.port },
        "periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 1000,
    })
}

/// Two probes whose first checks lie 1.1 s apart, or 2 s if milliseconds do not count.
fn delayed(soon: &Probed, late: &Probed) -> Value {
    let mut liveness = json!({ "httpGet": { "host": ADDRESS, "port": late.port }, "failureThreshold": 1000 });
    liveness["initialDelaySeconds"] = 2.into();
    liveness["initialDelayMilliseconds"] = (-900).into();
    json!({ "command": ["sleep", "3600"], "readinessProbe": fast(soon), "livenessProbe": liveness })
}

async fn apart(soon: &Probed, late: &Probed) -> Duration {
    late.first_asked().await - soon.first_asked().await
}

/// The agent's own count of probes of a kind.
async fn workers(lab: &Lab, labels: &str) -> Option<String> {
    let metrics = lab.ask_agent("/metrics").await;
    let line = metrics.lines().find_map(|line| {
        line.strip_prefix("pointsman_probe_workers{")?
            .strip_prefix(labels)
    });
    line.map(|rest| rest.trim_start_matches('}').trim().to_owned())
}

const FAST_STARTUP: &str = r#"probe_type="Startup",handler="httpGet",sub_second="true""#;
const SLOW_STARTUP: &str = r#"probe_type="Startup",handler="httpGet",sub_second="false""#;

#[test]
fn sub_second_periods_and_delays_hold_until_the_first_success_and_whole_seconds_after_it() {
    on_a_node(async |lab| {
        let [startup, readiness, soon, late] = [(); 4].map(|()| Probed::start(ADDRESS));
        let probes = json!({
            "command": ["sleep", "3600"], "startupProbe": fast(&startup), "readinessProbe": fast(&readiness),
        });
        lab.pod("slow-to-start", probes).await;
        lab.pod("delayed", delayed(&soon, &late)).await;
        let pace = startup.pace().await;
        assert!(pace < HALF, "startup is asked every {pace:?}");
        assert_eq!(readiness.count(), 0, "startup comes first");
        assert_eq!(workers(lab, FAST_STARTUP).await.as_deref(), Some("1"));
        startup.answer(200);
        let pace = readiness.pace().await;
        assert!(pace < HALF, "readiness is asked every {pace:?}");
        let asked = startup.count();
        readiness.answer(200);
        lab.ready("slow-to-start").await;
        let pace = readiness.pace().await;
        assert!(pace > ALMOST_A_SECOND, "after success still every {pace:?}");
        assert_eq!(startup.count(), asked, "startup is asked no more");
        let apart = apart(&soon, &late).await;
        let right = Duration::from_millis(700)..Duration::from_millis(1700);
        assert!(right.contains(&apart), "1.1 s were {apart:?}");
    });
}

#[test]
fn with_the_gate_off_on_the_agent_stored_offsets_have_no_effect() {
    on_a_node_with(&["--feature-gates=SubSecondProbes=false"], async |lab| {
        let [startup, soon, late] = [(); 3].map(|()| Probed::start(ADDRESS));
        let probes = json!({ "command": ["sleep", "3600"], "startupProbe": fast(&startup) });
        lab.pod("slow-to-start", probes).await;
        lab.pod("delayed", delayed(&soon, &late)).await;
        let pace = startup.pace().await;
        assert!(pace > ALMOST_A_SECOND, "startup is asked every {pace:?}");
        assert_eq!(workers(lab, FAST_STARTUP).await, None);
        assert_eq!(workers(lab, SLOW_STARTUP).await.as_deref(), Some("1"));
        let apart = apart(&soon, &late).await;
        assert!(apart > Duration::from_millis(1700), "2 s were {apart:?}");
        let pod = lab.http.get(&crate::lab::pod_path("delayed")).await.json();
        let liveness = &pod["spec"]["containers"][0]["livenessProbe"];
        assert_eq!(liveness["initialDelayMilliseconds"], -900, "it is stored");
    });
}

#[test]
fn liveness_is_asked_once_a_second_at_most_whatever_an_api_server_lets_through() {
    on_a_node(async |lab| {
        let server = Probed::start(ADDRESS);
        server.answer(200);
        let hasty = fast(&server);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "hasty" },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "c", "image": "host", "command": ["sleep", "3600"] }],
            },
        });
        let pods = "/api/v1/namespaces/default/pods";
        let mut refused = pod.clone();
        refused["spec"]["containers"][0]["livenessProbe"] = hasty.clone();
        lab.http.post(pods, &refused).await.refused(422, "Invalid");
        lab.http.post(pods, &pod).await.expect(201);
        rewrite(lab, "hasty", |pod| {
            pod["spec"]["nodeName"] = "n1".into();
            pod["spec"]["containers"][0]["livenessProbe"] = hasty;
        })
        .await;
        let pace = server.pace().await;
        assert!(pace > ALMOST_A_SECOND, "liveness is asked every {pace:?}");
        let pod = lab.http.get(&crate::lab::pod_path("hasty")).await.json();
        let probe = &pod["spec"]["containers"][0]["livenessProbe"];
        assert_eq!(probe["periodMilliseconds"], -800, "the agent has seen it");
    });
}

/// Changes a stored pod as another API server might have written it.
async fn rewrite(lab: &mut Lab, name: &str, change: impl FnOnce(&mut Value)) {
    let mut pod = lab.http.get(&crate::lab::pod_path(name)).await.json();
    change(&mut pod);
    pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    // The server keeps objects with their fields in this order.
    let [metadata, spec, status] = ["metadata", "spec", "status"].map(|field| &pod[field]);
    let stored = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"spec":{spec},"status":{status}}}"#
    );
    lab.server.terminate().await;
    let store = EmbeddedStore::open(&lab.server.data_dir().join("store"), Options::default()).unwrap();
    let key = format!("/registry/core/pods/default/{name}").into();
    let written = store.commit(Transaction {
        expect: Vec::new(),
        ops: vec![Op::Put(key, stored.into())],
    });
    let written = written.await.unwrap();
    assert!(matches!(written, Outcome::Committed(_)), "{written:?}");
    drop(store);
    lab.server.launch().await;
    lab.http = lab.server.admin().await;
}
