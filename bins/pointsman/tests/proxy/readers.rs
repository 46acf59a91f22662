//! Who reads what a proxy shows at an address that others reach?

use crate::eventually;
use crate::node::Network;
use serde_json::Value;

#[test]
fn at_its_nodes_address_a_proxy_shows_metrics_and_watermarks_to_those_who_may_read_them() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let keys = cluster.directory().join("data/pki").display().to_string();
    let authority = format!("--client-ca-file={keys}/ca.crt");
    cluster.start_proxy(&["--metrics-bind-address=0.0.0.0:10249", &authority]);
    // A stream goes on, so that curl ends by itself after its head.
    let ask = |who: Option<&str>, path: &str| {
        let who = who.map_or(String::new(), |who| {
            format!("--cert {keys}/{who}.crt --key {keys}/{who}.key")
        });
        let head = "curl -sk --max-time 3 -o /dev/null -w '%{http_code}'";
        network
            .node
            .sh(&format!("{head} {who} https://10.0.1.1:10249{path} || true"))
    };
    eventually("it listens", || ask(None, "/healthz") == "200");
    for (who, path, code) in [
        (None, "/proxyMode", "200"),
        (None, "/metrics", "401"),
        (None, "/watermark", "401"),
        (None, "/configz", "401"),
        (Some("sli"), "/metrics", "200"),
        (Some("sli"), "/watermark", "200"),
        (Some("sli"), "/clock", "200"),
        (Some("sli"), "/configz", "403"),
        (Some("proxy"), "/watermark", "403"),
        (Some("admin"), "/configz", "200"),
    ] {
        assert_eq!(ask(who, path), code, "{who:?} {path}");
    }
    let plain = network
        .node
        .sh("curl -s --max-time 3 http://10.0.1.1:10249/metrics || true");
    assert!(!plain.contains("kubeproxy"), "{plain}");
}

#[test]
fn on_the_node_itself_a_proxy_answers_where_kube_proxy_does_though_it_serves_others_elsewhere() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.start_proxy(&["--metrics-bind-address=10.0.1.1:10249"]);
    let ask = |url: &str| {
        let head = "curl -sk --max-time 3 -o /dev/null -w '%{http_code}'";
        network.node.sh(&format!("{head} {url} || true"))
    };
    for path in ["/proxyMode", "/configz", "/metrics"] {
        eventually(path, || ask(&format!("http://127.0.0.1:10249{path}")) == "200");
    }
    assert_eq!(
        ask("https://10.0.1.1:10249/metrics"),
        "401",
        "others show who they are"
    );
}

#[test]
fn a_collector_reads_watermarks_with_its_certificate_or_token_and_says_why_it_cannot_without() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let file = |name: &str| cluster.directory().join(name).display().to_string();
    let (tokens, token) = (file("tokens.csv"), file("token"));
    std::fs::write(&tokens, "secret,system:pointsman-sli,sli\n").unwrap();
    std::fs::write(&token, "secret\n").unwrap();
    let (keys, kubeconfig) = (file("data/pki"), file("data/kubeconfigs/sli.kubeconfig"));
    cluster.kill("apiserver");
    cluster.start_apiserver_with(&["--token-auth-file", &tokens]);
    let authority = format!("--client-ca-file={keys}/ca.crt");
    cluster.start_proxy(&["--metrics-bind-address=10.0.1.1:10249", &authority]);
    let certificate = |who: &str| {
        vec![
            format!("--programmer-client-certificate={keys}/{who}.crt"),
            format!("--programmer-client-key={keys}/{who}.key"),
        ]
    };
    for (shown, problem) in [
        (Vec::new(), Some("does not speak plain HTTP")),
        (certificate("sli"), None),
        // Nobody lets proxies read each other.
        (certificate("proxy"), Some("status 403")),
        (vec![format!("--programmer-token-file={token}")], None),
    ] {
        let mut arguments = vec![
            "--kubeconfig",
            &kubeconfig,
            "--programmer=n1=http://10.0.1.1:10249",
            "--scrape-interval=200ms",
        ];
        arguments.extend(shown.iter().map(String::as_str));
        cluster.spawn("sli", &arguments);
        let mut state = Value::Null;
        eventually(&format!("{shown:?}: {problem:?}"), || {
            let page = "curl -s --max-time 3 http://127.0.0.1:10270/api/v1/state || true";
            state = serde_json::from_str(&network.node.sh(page)).unwrap_or_default();
            let Some(problem) = problem else {
                return state["programmers"]["live"] == 1 && state["summary"]["level"] == "ok";
            };
            let behind = &state["lagging"][0];
            behind["name"] == "n1"
                && state["programmers"]["behind"] == 1
                && behind["problem"]
                    .as_str()
                    .is_some_and(|said| said.contains(problem))
        });
        cluster.kill("sli");
    }
}
