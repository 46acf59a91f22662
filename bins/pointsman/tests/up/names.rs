//! Do pods find Services by name, and changes of them?

use crate::cluster::{Cluster, eventually};
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "host", "command": ["sleep", "1000"] }],
        },
    });
    pod["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    pod
}

/// Endpoints of a headless Service that nobody runs: their names are all that is asked for.
fn slice(addresses: &[String]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|it| json!({ "addresses": [it] })).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "db-1", "labels": { "kubernetes.io/service-name": "db" } },
        "addressType": "IPv4", "endpoints": endpoints, "ports": [],
    })
}

/// The IPv4 addresses of a name, as programs in the pod see them.
fn addresses(cluster: &Cluster, name: &str) -> BTreeSet<String> {
    let answer = cluster.pointsman("exec", &["client", "--", "getent", "ahostsv4", name]);
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let first = text.lines().filter_map(|line| line.split_whitespace().next());
    first.map(str::to_owned).collect()
}

fn said(cluster: &Cluster, command: &[&str]) -> String {
    let answer = cluster.pointsman("exec", &[&["client", "--"], command].concat());
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

#[test]
fn pods_find_services_by_name_and_see_what_changes() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1"]);
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        pod("client", json!({})),
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
          "spec": { "ports": [{ "port": 80 }] } },
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" },
          "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } },
        slice(&["192.0.2.1".to_owned()]),
    ] });
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &objects.to_string());
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/client", "--timeout=60s"]);
    let of = |namespace: &str, name: &str| {
        let address = [
            "get",
            "service",
            "-n",
            namespace,
            name,
            "-o",
            "jsonpath={.spec.clusterIP}",
        ];
        cluster.kubectl(&address)
    };

    let server = of("kube-system", "kube-dns");
    assert!(server.ends_with(".0.10"), "{server}");
    let resolver = said(&cluster, &["cat", "/etc/resolv.conf"]);
    assert!(resolver.contains(&format!("nameserver {server}\n")), "{resolver}");
    let search = "search default.svc.cluster.local svc.cluster.local cluster.local";
    assert!(
        resolver.starts_with(search) && resolver.contains("options ndots:5"),
        "{resolver}"
    );

    let web = BTreeSet::from([of("default", "web")]);
    for name in ["web", "web.default", "web.default.svc.cluster.local"] {
        assert_eq!(addresses(&cluster, name), web, "{name}");
    }
    assert_eq!(
        addresses(&cluster, "kubernetes"),
        BTreeSet::from([of("default", "kubernetes")])
    );
    assert_eq!(addresses(&cluster, "none.default"), BTreeSet::new());
    let reverse = said(&cluster, &["getent", "hosts", web.first().unwrap()]);
    assert!(reverse.contains("web.default.svc.cluster.local"), "{reverse}");

    assert_eq!(
        addresses(&cluster, "db"),
        BTreeSet::from(["192.0.2.1".to_owned()])
    );
    // More than a datagram holds: the rest comes over TCP.
    let many: Vec<String> = (1..=90).map(|last| format!("192.0.2.{last}")).collect();
    cluster.kubectl_with(&["replace", "-f", "-"], &slice(&many).to_string());
    let many: BTreeSet<String> = many.into_iter().collect();
    eventually("the changed slice is answered", || {
        (addresses(&cluster, "db") == many).then_some(())
    });
    cluster.kubectl(&["delete", "service", "web"]);
    eventually("the deleted Service is no longer answered", || {
        addresses(&cluster, "web").is_empty().then_some(())
    });

    let status: Value =
        serde_json::from_slice(&cluster.pointsman("status", &["--output=json"]).stdout).unwrap();
    assert_eq!(
        (&status[0]["dns"]["state"], &status[0]["well"]),
        (&json!("ok"), &json!(true)),
        "{status:#}"
    );
}

#[test]
fn a_pod_that_brings_its_own_resolver_has_it() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1"]);
    let own = json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["192.0.2.53"], "searches": ["example.org"] } });
    let host = json!({ "dnsPolicy": "Default" });
    let pods =
        json!({ "apiVersion": "v1", "kind": "List", "items": [pod("client", own), pod("host", host)] });
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &pods.to_string());
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/client",
        "pod/host",
        "--timeout=60s",
    ]);
    let resolver = said(&cluster, &["cat", "/etc/resolv.conf"]);
    assert_eq!(resolver, "search example.org\nnameserver 192.0.2.53\n");
    let answer = cluster.pointsman("exec", &["host", "--", "cat", "/etc/resolv.conf"]);
    assert_eq!(
        answer.stdout,
        std::fs::read("/etc/resolv.conf").unwrap_or_default()
    );
}
