//! What is said about clusters in a few lines.

use pointsman_model::Protocol;
use pointsman_objects::{Node, compact};
use serde_json::json;

use super::*;
use crate::config::{Config, LocalMode, tests::config};

fn cluster(mode: Mode) -> (Config, Cluster) {
    let config = Config {
        mode,
        local: LocalMode::ClusterCidr(vec!["10.0.0.0/16".into()]),
        ..config()
    };
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.2"}]},
    }))
    .unwrap();
    let mut cluster = Cluster::new(&config, "n1", Some(node));
    let service = |name: &str, spec: serde_json::Value| {
        serde_json::from_value::<compact::Service>(json!({
            "metadata": {"namespace": "default", "name": name}, "spec": spec
        }))
        .unwrap()
    };
    cluster.fold_service(&service(
        "web",
        json!({"type": "NodePort", "clusterIP": "10.96.0.7", "externalTrafficPolicy": "Local",
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}),
    ));
    cluster.fold_service(&service(
        "empty",
        json!({"clusterIP": "10.96.0.8", "externalIPs": ["10.96.0.7"],
            "ports": [{"name": "http", "port": 80}]}),
    ));
    let slice: compact::EndpointSlice = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {"addresses": ["10.0.1.5"], "nodeName": "n1"},
            {"addresses": ["10.0.2.5"], "nodeName": "n2"},
            {"addresses": ["10.0.2.6"], "nodeName": "n2", "conditions": {"ready": false}},
            {"addresses": ["10.0.2.7"], "nodeName": "n2",
                "conditions": {"ready": false, "serving": true, "terminating": true}},
        ],
    }))
    .unwrap();
    cluster.fold_slice(&slice);
    cluster.fold_service(&service(
        "leaving",
        json!({"clusterIP": "10.96.0.9", "ports": [{"name": "http", "port": 80}]}),
    ));
    let slice: compact::EndpointSlice = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "leaving-1", "labels": {"kubernetes.io/service-name": "leaving"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.1.9"], "conditions": {"ready": false, "terminating": true}}],
    }))
    .unwrap();
    cluster.fold_slice(&slice);
    (config, cluster)
}

fn ask(mode: Mode, text: &str) -> Explanation {
    let (config, cluster) = cluster(mode);
    let question: Question = text.parse().unwrap();
    let subjects = cluster.subjects(&question);
    cluster.explain(&config, &question, &subjects)
}

#[test]
fn every_endpoint_is_named_with_the_reason_why_it_is_used_or_not() {
    let answer = ask(Mode::Iptables, "default/web");
    let [port] = answer.ports.as_slice() else {
        panic!("{answer:#?}")
    };
    let said: Vec<_> = port
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.address.as_str(), endpoint.cluster, endpoint.local))
        .collect();
    assert_eq!(
        said,
        [
            ("10.0.1.5:8080", "used", "used"),
            ("10.0.2.5:8080", "used", "not used: on another node"),
            (
                "10.0.2.6:8080",
                "not used: not ready",
                "not used: on another node"
            ),
            (
                "10.0.2.7:8080",
                "not used: terminating",
                "not used: on another node"
            ),
        ]
    );
    assert_eq!(answer.zone.as_deref(), Some("a"));
}

#[test]
fn an_unready_endpoint_that_leaves_and_does_not_say_whether_it_serves_gets_no_traffic() {
    for mode in [Mode::Iptables, Mode::Nftables] {
        let answer = ask(mode, "default/leaving");
        let port = &answer.ports[0];
        assert_eq!(port.endpoints[0].address, "10.0.1.9:8080");
        assert!(port.endpoints[0].cluster.starts_with("not used"), "{port:?}");
        let clients = &port.ways[0].clients;
        assert!(
            clients.iter().all(|client| client.fate == "rejected"),
            "{clients:?}"
        );
    }
}

#[test]
fn both_modes_say_the_same_about_each_client_of_a_node_port() {
    for mode in [Mode::Iptables, Mode::Nftables] {
        let answer = ask(mode, "192.168.0.2:30080");
        let way = answer.ports[0]
            .ways
            .iter()
            .find(|way| way.kind == "NodePort")
            .unwrap();
        assert_eq!((way.to.as_str(), way.policy), ("*:30080", "Local"));
        let said: Vec<_> = way
            .clients
            .iter()
            .map(|client| {
                (
                    client.client,
                    client.fate,
                    client.endpoints.len(),
                    client.masqueraded,
                )
            })
            .collect();
        assert_eq!(
            said,
            [
                ("a pod", "delivered", 2, false),
                ("this node", "delivered", 2, true),
                ("outside", "delivered", 1, false),
            ],
            "{mode:?}"
        );
    }
}

#[test]
fn the_rules_on_the_way_are_named_as_the_kernel_shows_them() {
    let iptables = ask(Mode::Iptables, "10.96.0.7:80/tcp");
    let rules = &iptables.ports[0].ways[0].rules;
    assert!(
        rules[0].starts_with("nat -A KUBE-SERVICES -d 0.0.0.7/0.0.0.255 -j KUBE-SERVICES-07"),
        "{rules:?}"
    );
    assert!(
        rules[1].contains("-A KUBE-SERVICES-07 -d 10.96.0.7/32"),
        "{rules:?}"
    );
    assert!(
        rules
            .iter()
            .any(|rule| rule.contains("--to-destination 10.0.1.5:8080")),
        "{rules:?}"
    );
    let nftables = ask(Mode::Nftables, "10.96.0.7:80");
    let rules = &nftables.ports[0].ways[0].rules;
    for wanted in [
        "cluster-ips { 10.96.0.7 }",
        "size-2 { 10.96.0.7 . tcp . 80 }",
        "backends { 10.96.0.7 . tcp . 80 . 0 : 10.0.1.5 . 8080 }",
    ] {
        assert!(
            rules.iter().any(|rule| rule == wanted),
            "{wanted} is missing in {rules:?}"
        );
    }
}

#[test]
fn a_contested_address_names_its_owner_and_a_service_without_endpoints_rejects() {
    let answer = ask(Mode::Nftables, "default/empty:80");
    let ways = &answer.ports[0].ways;
    assert!(
        ways[0].clients.iter().all(|client| client.fate == "rejected"),
        "{ways:?}"
    );
    assert_eq!(ways[1].taken_by.as_deref(), Some("default/web"));
}

#[test]
fn what_nobody_answers_to_is_said_so() {
    for (question, word) in [
        ("10.96.0.7:81", "no such port"),
        ("10.97.0.1:80", "no Service answers"),
        ("default/nobody", "there is no Service"),
        ("default/web:dns", "no port"),
    ] {
        let answer = ask(Mode::Iptables, question);
        assert!(answer.ports.is_empty());
        assert!(
            answer.notes.iter().any(|note| note.contains(word)),
            "{question}: {:?}",
            answer.notes
        );
    }
    let udp: Question = "10.96.0.7:80/udp".parse().unwrap();
    assert!(matches!(
        udp,
        Question::Address {
            protocol: Some(Protocol::Udp),
            ..
        }
    ));
}

#[test]
fn the_outcome_says_what_was_missing() {
    let outcome = |text: &str| ask(Mode::Nftables, text).outcome;
    assert_eq!(outcome("default/web"), Outcome::Explained);
    assert_eq!(outcome("default/web:80"), Outcome::Explained);
    assert_eq!(
        outcome("default/web:30080"),
        Outcome::Explained,
        "a node port names a port too"
    );
    assert_eq!(outcome("192.168.0.2:30080"), Outcome::Explained);
    assert_eq!(outcome("default/web:81"), Outcome::NoPort);
    assert_eq!(outcome("10.96.0.7:81"), Outcome::NoPort);
    assert_eq!(outcome("default/other"), Outcome::NoService);
    assert_eq!(outcome("default/other:80"), Outcome::NoService);
    assert_eq!(outcome("10.96.9.9:80"), Outcome::NoService);
    let (config, _) = cluster(Mode::Nftables);
    let nowhere = Cluster::new(&config, "n9", None);
    let question: Question = "default/web".parse().unwrap();
    let answer = nowhere.explain(&config, &question, &nowhere.subjects(&question));
    assert_eq!(answer.outcome, Outcome::NoNode);
    assert!(
        answer.notes[0].contains("there is no Node n9"),
        "{:?}",
        answer.notes
    );
}
