//! Is a node whose proxy says nothing behind, for everybody who asks?

use crate::cluster::{Cluster, eventually, program};
use crate::harm::Stopped;
use pointsman_harness::browser::Browser;
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

const PODS: [&str; 2] = ["one", "two"];

/// What the collector answers.
fn ask(cluster: &Cluster, path: &str) -> String {
    let page = cluster.facts["page"].as_str().unwrap();
    let authority = page.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(authority).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

pub fn state(cluster: &Cluster) -> Value {
    serde_json::from_str(&ask(cluster, "/api/v1/state")).unwrap()
}

fn metric(cluster: &Cluster, series: &str) -> f64 {
    let metrics = ask(cluster, "/metrics");
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(series));
    let value = values
        .next()
        .unwrap_or_else(|| panic!("no {series} in {metrics}"));
    value.trim().parse().unwrap()
}

/// The page of a cluster in a real browser.
struct Page {
    runtime: tokio::runtime::Runtime,
    browser: Browser,
}

impl Page {
    fn open(cluster: &Cluster) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let url = cluster.facts["page"].as_str().unwrap();
        let browser = runtime.block_on(async {
            let browser = Browser::start(1000, 1000).await;
            browser.open(url).await;
            browser
        });
        Self { runtime, browser }
    }

    /// Waits until the page's sentence is one of these, at this level.
    fn says(&self, level: &str, sentence: &str) {
        let text = "document.getElementById('sentence').textContent";
        let shown = "document.getElementById('summary').dataset.level";
        let expression = format!("{shown} === '{level}' && new RegExp('{sentence}').test({text})");
        self.runtime.block_on(self.browser.until(&expression));
    }
}

/// What came of the gate of a pod, once it is open.
fn gate_of(cluster: &Cluster, pod: &str) -> Value {
    let about = format!("default/{pod}");
    eventually(&format!("{pod} had a gate"), || {
        let state = state(cluster);
        let recent = state["gates"]["recent"].as_array().unwrap();
        recent
            .iter()
            .find(|gate| gate["about"] == about.as_str())
            .cloned()
    })
}

fn objects() -> String {
    let pod = |name| {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": { "nodeName": "n1", "terminationGracePeriodSeconds": 5, "containers": [{
                "name": "web", "image": "host", "command": [program(), "serve-http"] }] } })
    };
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] } });
    let items = [pod(PODS[0]), pod(PODS[1]), service];
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

#[test]
fn a_frozen_proxy_is_behind_on_the_page_in_metrics_and_at_the_gate_until_it_goes_on() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &objects());
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/one",
        "pod/two",
        "--timeout=60s",
    ]);
    // Two proxies and the DNS, which has nothing to pool.
    eventually("all is well", || {
        let state = state(&cluster);
        (state["summary"]["level"] == "ok" && state["programmers"]["live"] == 3).then_some(())
    });
    eventually("samples of all proxies are covered", || {
        (state(&cluster)["sli"]["pooled"]["coverage"].as_f64() > Some(0.95)).then_some(())
    });

    // The collector shows its certificate, where others learn nothing.
    let proxy = cluster.facts["nodes"][0]["address"].as_str().unwrap();
    let url = format!("https://{proxy}:10249/watermark");
    let ask = [
        "n1",
        "--",
        "curl",
        "-sk",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        &url,
    ];
    assert_eq!(cluster.pointsman("exec", &ask).stdout, b"401");

    let page = Page::open(&cluster);
    page.says("ok", "");
    let frozen = Stopped::proxy(&cluster, "n2");
    // Long enough for it to be given up, if silence were an excuse.
    let seen = eventually("n2 is silent for more than 33 s", || {
        let state = state(&cluster);
        let list = state["programmers"]["list"].as_array().unwrap().clone();
        let programmer = list.into_iter().find(|it| it["name"] == "n2").unwrap();
        (programmer["lastSeenSeconds"].as_f64() > Some(33.0)).then_some(state)
    });
    let nodes = cluster.kubectl(&["get", "nodes", "--no-headers"]);
    assert!(!nodes.contains("NotReady"), "the agent is well: {nodes}");
    assert_eq!(seen["summary"]["level"], "behind", "{}", seen["summary"]);
    assert_eq!(seen["lagging"][0]["name"], "n2", "{}", seen["lagging"]);
    assert_eq!(seen["lagging"][0]["stage"], "silent");
    assert_eq!(seen["programmers"]["silent"], 1);
    let coverage = seen["sli"]["exact"]["coverage"].as_f64().unwrap();
    assert!((0.66..0.67).contains(&coverage), "{coverage}");
    assert!(metric(&cluster, "pointsman_sli_programmers_lagging ") >= 1.0);
    let silent = "pointsman_sli_programmers{state=\"silent\"}";
    assert_eq!(metric(&cluster, silent), 1.0, "what the alert looks at");

    page.says("behind", "^n2 silent [0-9.]+ s");
    cluster.kubectl(&["delete", "pod", "one"]);
    let gate = gate_of(&cluster, "one");
    assert_eq!(
        (&gate["outcome"], &gate["behind"]),
        (&json!("bound"), &json!(["n2"]))
    );
    let waited = gate["waitedSeconds"].as_f64().unwrap();
    assert!(
        (1.0..5.0).contains(&waited),
        "one that is overdue is not worth the bound: {gate}"
    );

    page.says("behind", "^n2 silent [0-9.]+ s: .*default.web missing there");
    page.runtime.block_on(page.browser.keep("page-frozen-proxy"));

    drop(frozen);
    eventually("all is well again", || {
        let state = state(&cluster);
        let lags = metric(&cluster, "pointsman_sli_programmers_lagging ");
        let well = state["summary"]["level"] == "ok" && state["programmers"]["live"] == 3 && lags == 0.0;
        well.then_some(())
    });
    assert_eq!(metric(&cluster, silent), 0.0);
    page.says("ok", "");
    page.runtime.block_on(page.browser.close());
    cluster.kubectl(&["delete", "pod", "two"]);
    assert_eq!(gate_of(&cluster, "two")["outcome"], "everywhere");
}
