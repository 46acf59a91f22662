//! The examples of the Kubernetes DNS specification, as a table.

use pointsman_names::{Answer, Data, Kind, Zone};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

fn service(zone: &mut Zone, name: &str, spec: Value) {
    let object = json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec});
    zone.set_service(
        "ns",
        name,
        Some(Arc::new(serde_json::from_value(object).unwrap())),
    );
}

fn slice(zone: &mut Zone, of: &str, name: &str, endpoints: Value) {
    let object = json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "web", "protocol": "TCP", "port": 8080}],
    });
    zone.set_slice(
        "ns",
        name,
        Some(Arc::new(serde_json::from_value(object).unwrap())),
    );
}

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local.");
    let ports = json!([{"name": "web", "port": 80, "targetPort": 8080}]);
    service(
        &mut zone,
        "web",
        json!({"clusterIP": "10.3.0.1", "clusterIPs": ["10.3.0.1", "fd00::1"], "ports": ports}),
    );
    service(&mut zone, "db", json!({"clusterIP": "None", "ports": ports}));
    service(
        &mut zone,
        "early",
        json!({"clusterIP": "None", "publishNotReadyAddresses": true}),
    );
    service(&mut zone, "empty", json!({"clusterIP": "None"}));
    service(
        &mut zone,
        "out",
        json!({"type": "ExternalName", "externalName": "example.org."}),
    );
    service(
        &mut zone,
        "in",
        json!({"type": "ExternalName", "externalName": "web.ns.svc.cluster.local"}),
    );
    service(
        &mut zone,
        "self",
        json!({"type": "ExternalName", "externalName": "self.ns.svc.cluster.local"}),
    );
    let endpoints = json!([
        {"addresses": ["10.1.0.1"], "hostname": "db-0"},
        {"addresses": ["10.1.0.2"]},
        {"addresses": ["10.1.0.3"], "conditions": {"ready": false}},
    ]);
    slice(&mut zone, "db", "db-1", endpoints);
    slice(
        &mut zone,
        "early",
        "early-1",
        json!([{"addresses": ["10.1.0.3"], "conditions": {"ready": false}}]),
    );
    zone
}

/// An answer in a few words.
fn asked(zone: &Zone, name: &str, kind: Kind) -> String {
    match zone.answer(name, kind) {
        Answer::Records { answers, .. } => {
            let data = answers.into_iter().map(|record| match record.data {
                Data::Address(address) => address.to_string(),
                Data::Srv { port, target } => format!("{port} {target}"),
                Data::Ptr(name) | Data::Cname(name) => name,
                Data::Txt(text) => text.to_owned(),
                Data::Soa => "soa".to_owned(),
            });
            data.collect::<Vec<_>>().join(", ")
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn names_answer_as_the_specification_says() {
    let zone = zone();
    let db = "10.1.0.1, 10.1.0.2";
    let srv = "8080 10-1-0-2.db.ns.svc.cluster.local, 8080 db-0.db.ns.svc.cluster.local";
    for (name, kind, expected) in [
        ("dns-version.cluster.local", Kind::Txt, "1.1.0"),
        ("cluster.local", Kind::Soa, "soa"),
        ("svc.cluster.local", Kind::A, "NoData"),
        ("ns.svc.cluster.local", Kind::A, "NoData"),
        ("other.svc.cluster.local", Kind::A, "NotFound"),
        ("web.ns.svc.cluster.local", Kind::A, "10.3.0.1"),
        ("web.ns.svc.cluster.local", Kind::Aaaa, "fd00::1"),
        ("web.ns.svc.cluster.local", Kind::Txt, "NoData"),
        (
            "_web._tcp.web.ns.svc.cluster.local",
            Kind::Srv,
            "80 web.ns.svc.cluster.local",
        ),
        ("_web._tcp.web.ns.svc.cluster.local", Kind::A, "NoData"),
        ("_tcp.web.ns.svc.cluster.local", Kind::A, "NoData"),
        ("_web._udp.web.ns.svc.cluster.local", Kind::Srv, "NotFound"),
        ("x.web.ns.svc.cluster.local", Kind::A, "NotFound"),
        ("db.ns.svc.cluster.local", Kind::A, db),
        ("db.ns.svc.cluster.local", Kind::Aaaa, "NoData"),
        ("db-0.db.ns.svc.cluster.local", Kind::A, "10.1.0.1"),
        ("10-1-0-2.db.ns.svc.cluster.local", Kind::A, "10.1.0.2"),
        ("10-1-0-3.db.ns.svc.cluster.local", Kind::A, "NotFound"),
        ("_web._tcp.db.ns.svc.cluster.local", Kind::Srv, srv),
        ("early.ns.svc.cluster.local", Kind::A, "10.1.0.3"),
        ("empty.ns.svc.cluster.local", Kind::A, "NotFound"),
        ("out.ns.svc.cluster.local", Kind::A, "example.org"),
        ("out.ns.svc.cluster.local", Kind::Cname, "example.org"),
        (
            "in.ns.svc.cluster.local",
            Kind::A,
            "web.ns.svc.cluster.local, 10.3.0.1",
        ),
        ("1.0.3.10.in-addr.arpa", Kind::Ptr, "web.ns.svc.cluster.local"),
        ("1.0.1.10.in-addr.arpa", Kind::Ptr, "db-0.db.ns.svc.cluster.local"),
        ("10-1-0-7.ns.pod.cluster.local", Kind::A, "10.1.0.7"),
        ("10-1-0-7.ns.pod.cluster.local", Kind::Aaaa, "NoData"),
        ("fd00--7.ns.pod.cluster.local", Kind::Aaaa, "fd00::7"),
        ("web.ns.pod.cluster.local", Kind::A, "NotFound"),
        ("ns.pod.cluster.local", Kind::A, "NoData"),
        ("9.9.9.9.in-addr.arpa", Kind::Ptr, "Elsewhere"),
        ("example.org", Kind::A, "Elsewhere"),
        ("notcluster.local", Kind::A, "Elsewhere"),
    ] {
        assert_eq!(asked(&zone, name, kind), expected, "{name} {kind:?}");
    }
    // Aliases that lead to themselves end.
    assert!(asked(&zone, "self.ns.svc.cluster.local", Kind::A).starts_with("self."));
}

#[test]
fn what_is_gone_has_no_name_and_no_address() {
    let mut zone = zone();
    slice(&mut zone, "db", "db-1", json!([]));
    assert_eq!(asked(&zone, "db.ns.svc.cluster.local", Kind::A), "NotFound");
    slice(&mut zone, "empty", "db-1", json!([{"addresses": ["10.1.0.1"]}]));
    assert_eq!(asked(&zone, "empty.ns.svc.cluster.local", Kind::A), "10.1.0.1");
    for name in ["web", "db", "early", "empty", "out", "in", "self"] {
        zone.set_service("ns", name, None);
    }
    assert_eq!(asked(&zone, "1.0.3.10.in-addr.arpa", Kind::Ptr), "Elsewhere");
    zone.set_slice("ns", "db-1", None);
    zone.set_slice("ns", "early-1", None);
    assert_eq!(asked(&zone, "ns.svc.cluster.local", Kind::A), "NotFound");
}

proptest! {
    #[test]
    fn any_name_has_an_answer(name in "([a-z0-9_-]{0,5}\\.){0,8}(cluster\\.local|ip6\\.arpa|in-addr\\.arpa|)") {
        let _ = zone().answer(&name, Kind::A);
    }
}
