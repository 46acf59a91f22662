//! Do Services work that people make with kubectl?

use serde_json::Value;

use crate::eventually;
use crate::features::{answers, said};
use crate::node::{Answer, Cluster, Network};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: web}}
spec:
  nodeName: n1
  containers: [{name: web, image: host}]
";

/// Two ports and two protocols without a selector; who answers is written by hand.
const BY_HAND: &str = "
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ports:
  - {name: web, port: 80, targetPort: 8080}
  - {name: dns, port: 53, targetPort: 8080, protocol: UDP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports:
- {name: web, port: 8080, protocol: TCP}
- {name: dns, port: 8080, protocol: UDP}
endpoints:
- {addresses: [10.0.1.5], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.0.1.6], nodeName: n1, conditions: {ready: true}}
";

/// Reached from outside, by some, on the nodes that have endpoints.
const BALANCED: &str = "
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [10.0.2.0/24]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
";
const BALANCER: &str = "203.0.113.5";

/// Makes a pod as a kubelet reports it: running, ready, with an address.
fn pod(cluster: &Cluster<'_>, name: &str, address: &str) {
    cluster.kubectl_apply(&POD.replace("NAME", name));
    let status = serde_json::json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    cluster.kubectl(&[
        "patch",
        "pod",
        name,
        "--subresource=status",
        "-p",
        &status.to_string(),
    ]);
}

fn field(cluster: &Cluster<'_>, service: &str, path: &str) -> String {
    let output = format!("jsonpath={{{path}}}");
    cluster.kubectl(&["get", "service", service, "-o", &output])
}

#[test]
fn services_made_edited_and_deleted_with_kubectl_work_end_to_end() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let cluster = network.start("iptables");
    cluster.node_object();
    pod(&cluster, "web-1", "10.0.1.5");

    cluster.kubectl(&["create", "service", "clusterip", "web", "--tcp=80:8080"]);
    let web = field(&cluster, "web", ".spec.clusterIP");
    answers(&network, &web, "10.0.1.5");

    cluster.kubectl(&[
        "create",
        "service",
        "nodeport",
        "door",
        "--tcp=80:8080",
        "--node-port=30080",
    ]);
    cluster.kubectl(&["set", "selector", "service/door", "app=web"]);
    eventually("the node port answers", || {
        network.ask("10.0.2.1", 30080) == Answer::Said("10.0.1.5".into())
    });

    edited(&network, &cluster, &web);
    sticky(&network, &cluster);
    balanced(&network, &cluster);

    cluster.kubectl(&["delete", "service", "web", "door", "sticky", "shop"]);
    eventually("nothing of them is left", || {
        let rules = network.node.sh("iptables-save");
        ["web", "door", "sticky", "shop"]
            .iter()
            .all(|name| !rules.contains(&format!("default/{name}")))
    });
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
    assert_eq!(cluster.metric(failures), 0.0);
}

/// Another port, and another pod behind the same Service.
fn edited(network: &Network, cluster: &Cluster<'_>, address: &str) {
    let port = r#"[{"op": "replace", "path": "/spec/ports/0/port", "value": 8000}]"#;
    cluster.kubectl(&["patch", "service", "web", "--type=json", "-p", port]);
    eventually("the new port answers", || {
        network.ask(address, 8000) == Answer::Said("10.0.1.5".into())
    });
    pod(cluster, "web-2", "10.0.1.6");
    eventually("a second pod answers too", || {
        network.ask(address, 8000) == Answer::Said("10.0.1.6".into())
    });
    cluster.kubectl(&["delete", "pod", "web-1", "--grace-period=0", "--force"]);
    eventually("the first does not any more", || {
        (0..8).all(|_| network.ask(address, 8000) == Answer::Said("10.0.1.6".into()))
    });
}

/// A client stays with its endpoint, and UDP works beside TCP.
fn sticky(network: &Network, cluster: &Cluster<'_>) {
    cluster.kubectl_apply(BY_HAND);
    let address = field(cluster, "sticky", ".spec.clusterIP");
    let mut first = Answer::Refused;
    eventually("somebody answers", || {
        first = network.ask(&address, 80);
        matches!(first, Answer::Said(_))
    });
    for _ in 0..10 {
        assert_eq!(network.ask(&address, 80), first, "the client stays");
    }
    let client = network.udp_client(&address, 53);
    eventually("UDP is answered", || said(&client).is_some());
}

/// Source ranges and the local policy of a load balancer's address, before and after edits.
fn balanced(network: &Network, cluster: &Cluster<'_>) {
    cluster.kubectl_apply(BALANCED);
    let status = format!(r#"{{"status": {{"loadBalancer": {{"ingress": [{{"ip": "{BALANCER}"}}]}}}}}}"#);
    cluster.kubectl(&["patch", "service", "shop", "--subresource=status", "-p", &status]);
    answers(network, BALANCER, "10.0.1.6");
    let shown: Value =
        serde_json::from_str(&cluster.kubectl(&["get", "service", "shop", "-o", "json"])).unwrap();
    let health = shown["spec"]["healthCheckNodePort"].as_u64().unwrap();
    let health = u16::try_from(health).unwrap();
    eventually("the health check says that endpoints are here", || {
        cluster.status(health, "/") == "200"
    });
    let ranges = |range: &str| format!(r#"{{"spec": {{"loadBalancerSourceRanges": ["{range}"]}}}}"#);
    cluster.kubectl(&["patch", "service", "shop", "-p", &ranges("192.0.2.0/24")]);
    eventually("others are dropped", || {
        matches!(network.ask(BALANCER, 80), Answer::Other(_))
    });
    cluster.kubectl(&["patch", "service", "shop", "-p", &ranges("10.0.2.9/32")]);
    answers(network, BALANCER, "10.0.1.6");
    cluster.kubectl(&["delete", "pod", "web-2", "--grace-period=0", "--force"]);
    eventually("without any endpoint clients are refused", || {
        network.ask(BALANCER, 80) == Answer::Refused
    });
    eventually("and says so to load balancers", || {
        cluster.status(health, "/") == "503"
    });
}
