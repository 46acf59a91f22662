//! Who reads what a proxy shows at an address that others reach?

use crate::eventually;
use crate::node::Network;

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
