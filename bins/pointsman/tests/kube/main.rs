//! Does every role work with nothing but a kubeconfig, against any cluster's API server?
//!
//! `make test-kube KUBECONFIG=...` names the cluster; without a name the embedded server is used. The suite
//! makes a namespace and a Node without a machine, works with them and removes them. It needs the right to do that, to
//! do as it likes in the namespace, and to read Services, EndpointSlices, Nodes and Pods. Nobody runs its pods; their
//! addresses are those of a network namespace of the test.

mod api;
mod lab;

use api::{Api, eventually};
use lab::Lab;
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const NODE: &str = "198.18.0.9";
const ONE: &str = "198.18.0.1";
const TWO: &str = "198.18.0.2";
const PROBED: &str = "198.18.0.3";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_works_with_nothing_but_a_kubeconfig() {
    require_netns!();
    let named = std::env::var_os("POINTSMAN_TEST_KUBECONFIG").map(PathBuf::from);
    let embedded = match named {
        Some(_) => None,
        None => Some(pointsman_harness::Server::start(&[]).await),
    };
    let kubeconfig = named.unwrap_or_else(|| embedded.as_ref().unwrap().kubeconfig());
    let mut api = Api::connect(&kubeconfig, NODE).await;
    let mut lab = Lab::new(&kubeconfig, &[NODE, ONE, TWO, PROBED]);
    lab.start(
        "proxy",
        "proxy",
        &["--proxy-mode=nftables", "--hostname-override", &api.node],
    );
    let programmer = format!("--programmer={}=http://127.0.0.1:10249", api.node);
    lab.start("sli", "sli", &["--discover=false", &programmer]);

    let address = make_service(&api).await;
    slices_follow_pods(&mut api, &mut lab).await;
    rules_follow_slices(&lab, &address).await;
    readiness_takes_a_pod_out_everywhere(&api, &lab, &address).await;
    the_watermark_covers_what_was_written(&api, &lab).await;
    explanations_agree_with_the_kernel(&api, &lab).await;
    probes_write_readiness(&api, &mut lab).await;
    api.remove().await;
}

/// A Service with two pods behind it that are ready; returns its address.
async fn make_service(api: &Api) -> String {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": 8080 }]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": ports },
    });
    let made = api.create("services", &service).await;
    for (name, address) in [("one", ONE), ("two", TWO)] {
        api.make_pod(name, json!({ "labels": { "app": "web" } }), json!({}))
            .await;
        api.report(name, address, true).await;
    }
    made["spec"]["clusterIP"]
        .as_str()
        .expect("a cluster address")
        .to_owned()
}

/// The cluster's own controller writes slices, or ours does where there is none.
async fn slices_follow_pods(api: &mut Api, lab: &mut Lab) {
    let others = Duration::from_secs(if api.is_named() { 5 } else { 0 });
    if !api
        .becomes_true(others, async |api| ready_addresses(api).await.len() == 2)
        .await
    {
        api.has_own_controllers = true;
        let arguments = [
            "--controllers=endpointslice",
            "--leader-elect=false",
            "--metrics-listen=off",
        ];
        lab.start("controllers", "controllers", &arguments);
    }
    eventually("a slice names both pods", async || {
        (ready_addresses(api).await == [ONE, TWO]).then_some(())
    })
    .await;
}

async fn rules_follow_slices(lab: &Lab, address: &str) {
    eventually("both pods answer at the Service's address", async || {
        (lab.who_answers(address, 40) == [ONE, TWO]).then_some(())
    })
    .await;
}

async fn readiness_takes_a_pod_out_everywhere(api: &Api, lab: &Lab, address: &str) {
    api.report("two", TWO, false).await;
    eventually("the slice says so", async || {
        (ready_addresses(api).await == [ONE]).then_some(())
    })
    .await;
    eventually("only the other pod answers", async || {
        (lab.who_answers(address, 40) == [ONE]).then_some(())
    })
    .await;
}

/// What the collector calls the lowest mark covers every slice that we know.
async fn the_watermark_covers_what_was_written(api: &Api, lab: &Lab) {
    let written = api.slices("web").await;
    let version = |slice: &Value| slice["metadata"]["resourceVersion"].as_str()?.parse::<f64>().ok();
    let newest = written.iter().filter_map(version).fold(0.0, f64::max);
    eventually("the watermark covers the slice", async || {
        let text = lab.get("127.0.0.1:10270", "/metrics")?;
        let name = "pointsman_sli_watermark_lowest_resource_version{resource=\"endpointslices\"}";
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        (line.trim().parse::<f64>().ok()? >= newest).then_some(())
    })
    .await;
}

async fn explanations_agree_with_the_kernel(api: &Api, lab: &Lab) {
    let question = format!("{}/web:http", api.namespace);
    let arguments = [
        "explain",
        &question,
        "--node",
        &api.node,
        "--proxy-mode=nftables",
        "--output=json",
    ];
    eventually("the explanation agrees with the kernel", async || {
        let said = lab.run(&arguments);
        let answer: Value = serde_json::from_str(&said).unwrap_or_default();
        let endpoints = answer["ports"][0]["endpoints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let used: Vec<&Value> = endpoints
            .iter()
            .filter(|endpoint| endpoint["cluster"] == "used")
            .collect();
        let is_right = endpoints.len() == 2 && used.len() == 1 && answer["kernel"]["agrees"] == true;
        if !is_right {
            // Shown if it stays like this.
            eprintln!("{said}");
        }
        is_right.then_some(())
    })
    .await;
}

/// Beside a kubelet, the prober writes a condition that the pod's readiness waits for.
async fn probes_write_readiness(api: &Api, lab: &mut Lab) {
    let probe = json!({ "tcpSocket": { "port": 8080 }, "periodSeconds": 1 }).to_string();
    let metadata = json!({ "annotations": { "probe.pointsman.io/readiness": probe } });
    let gates = json!({ "readinessGates": [{ "conditionType": "pointsman.io/ready" }] });
    api.make_pod("probed", metadata, gates).await;
    api.report("probed", PROBED, false).await;
    lab.start(
        "probes",
        "node",
        &[
            "--probe-only",
            "--node-name",
            &api.node,
            "--probe-only-listen=off",
        ],
    );
    eventually("the condition is written", async || {
        let pod = api.get("pods/probed").await;
        let conditions = pod["status"]["conditions"].as_array()?;
        let mut ours = conditions
            .iter()
            .filter(|condition| condition["type"] == "pointsman.io/ready");
        ours.any(|condition| condition["status"] == "True").then_some(())
    })
    .await;
}

/// The addresses that slices call ready, in order.
async fn ready_addresses(api: &Api) -> Vec<String> {
    let mut ready = Vec::new();
    for slice in api.slices("web").await {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] != false {
                ready.extend(endpoint["addresses"][0].as_str().map(str::to_owned));
            }
        }
    }
    ready.sort_unstable();
    ready
}
