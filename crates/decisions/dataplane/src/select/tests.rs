//! The selection rows of the upstream topology tests, said in a line each.

use std::net::Ipv4Addr;
use std::sync::Arc;

use pointsman_model::{Backend, Conditions, Hints, Port};
use proptest::prelude::*;

use super::*;

const BOTH: Needs = Needs {
    cluster: true,
    local: true,
};
const CLUSTER: Needs = Needs {
    cluster: true,
    local: false,
};
const LOCAL: Needs = Needs {
    cluster: false,
    local: true,
};

fn viewpoint(zone: &str) -> Viewpoint {
    Viewpoint {
        node: "n1".into(),
        zone: (!zone.is_empty()).then(|| zone.into()),
    }
}

/// `1@n1 ready zones=a,b nodes=n1`: an endpoint's last address byte, node, health and hints.
fn endpoint(text: &str) -> Endpoint<Ipv4Addr> {
    let mut words = text.split_whitespace();
    let (number, node) = words.next().unwrap().split_once('@').unwrap();
    let mut conditions = Conditions::READY;
    let mut hints = Hints::default();
    for word in words {
        match word.split_once('=') {
            Some(("zones", zones)) => hints.zones = zones.split(',').map(Zone::from).collect(),
            Some(("nodes", nodes)) => hints.nodes = nodes.split(',').map(NodeName::from).collect(),
            _ => {
                let (ready, serving, terminating) = match word {
                    "ready" => (true, true, false),
                    "unready" => (false, false, false),
                    "serving" => (false, true, false),
                    "terminating" => (false, true, true),
                    "gone" => (false, false, true),
                    _ => panic!("{word:?}"),
                };
                conditions = Conditions {
                    ready,
                    serving,
                    terminating,
                };
            }
        }
    }
    let address = Ipv4Addr::new(10, 0, 0, number.parse().unwrap());
    Endpoint {
        backend: Backend {
            address,
            port: Port::new(80).unwrap(),
        },
        conditions,
        node: (!node.is_empty()).then(|| node.into()),
        hints: Some(Arc::new(hints)),
    }
}

/// Selects and writes both sets as `cluster | local | any`.
fn select(zone: &str, needs: Needs, endpoints: &[&str]) -> String {
    let endpoints: Vec<_> = endpoints.iter().map(|text| endpoint(text)).collect();
    let selection = Selection::new(&endpoints, needs, &viewpoint(zone));
    let list = |backends: &mut dyn Iterator<Item = Backend<Ipv4Addr>>| {
        let ends: Vec<String> = backends
            .map(|backend| backend.address.octets()[3].to_string())
            .collect();
        ends.join(",")
    };
    let any = if selection.has_any { "any" } else { "none" };
    format!(
        "{} | {} | {any}",
        list(&mut selection.cluster()),
        list(&mut selection.local())
    )
}

#[test]
fn zone_hints_apply_when_all_ready_endpoints_have_them_and_one_names_our_zone() {
    let all = ["1@n1 zones=a", "2@n2 zones=b", "3@n3 zones=c", "4@n4 zones=a"];
    assert_eq!(select("a", CLUSTER, &all), "1,4 |  | any");
    assert_eq!(
        select("", CLUSTER, &all),
        "1,2,3,4 |  | any",
        "a node without a zone"
    );
    assert_eq!(
        select("d", CLUSTER, &all),
        "1,2,3,4 |  | any",
        "no endpoint for our zone"
    );
    let unready_one = ["1@n1 zones=a unready", "2@n2 zones=b", "4@n4 zones=a"];
    assert_eq!(select("a", CLUSTER, &unready_one), "4 |  | any");
    let only_unready_here = ["1@n1 zones=a unready", "2@n2 zones=b"];
    assert_eq!(select("a", CLUSTER, &only_unready_here), "2 |  | any");
    let unhinted = ["1@n1 zones=a", "2@n2"];
    assert_eq!(select("a", CLUSTER, &unhinted), "1,2 |  | any");
    let several = [
        "1@n1 zones=a,b,c",
        "2@n2 zones=b,c",
        "3@n3 zones=b,d",
        "4@n4 zones=c",
    ];
    assert_eq!(select("a", CLUSTER, &several), "1 |  | any");
    assert_eq!(select("c", CLUSTER, &several), "1,2,4 |  | any");
}

#[test]
fn node_hints_come_first_and_degrade_to_zone_hints() {
    let here = ["1@n1 zones=a nodes=n1", "2@n2 zones=a nodes=n2"];
    assert_eq!(select("a", CLUSTER, &here), "1 |  | any");
    let gap = ["1@n1 nodes=n1", "2@n2"];
    assert_eq!(select("a", CLUSTER, &gap), "1,2 |  | any");
    let elsewhere = ["2@n2 zones=a nodes=n2", "3@n3 zones=b nodes=n3"];
    assert_eq!(select("a", CLUSTER, &elsewhere), "2 |  | any");
}

#[test]
fn the_local_set_ignores_hints_and_the_cluster_set_obeys_them() {
    let endpoints = ["1@n1 zones=a", "2@n1 zones=b", "3@n2 zones=b", "4@n2 zones=a"];
    assert_eq!(select("a", BOTH, &endpoints), "1,4 | 1,2 | any");
}

#[test]
fn local_sets_hold_local_endpoints_only() {
    assert_eq!(select("", LOCAL, &[]), " |  | none");
    assert_eq!(select("", LOCAL, &["1@n2", "2@n3"]), " |  | any");
    assert_eq!(select("", LOCAL, &["1@n1", "2@n1"]), " | 1,2 | any");
    assert_eq!(select("", LOCAL, &["1@n1", "2@n2"]), " | 1 | any");
    assert_eq!(
        select("", LOCAL, &["1@"]),
        " |  | any",
        "an endpoint without a node is not local"
    );
}

#[test]
fn only_ready_endpoints_count_while_there_are_any() {
    assert_eq!(
        select("", CLUSTER, &["1@n1 unready", "2@n2 unready"]),
        " |  | none"
    );
    assert_eq!(select("", CLUSTER, &["1@n1", "2@n2 unready"]), "1 |  | any");
    assert_eq!(
        select("", CLUSTER, &["1@n1 serving"]),
        " |  | none",
        "serving alone is not enough"
    );
    assert_eq!(select("", CLUSTER, &["1@n1 gone"]), " |  | none");
    assert_eq!(select("", CLUSTER, &["1@n1", "2@n2 terminating"]), "1 |  | any");
}

#[test]
fn terminating_endpoints_serve_when_nothing_ready_is_left_in_each_set_by_itself() {
    assert_eq!(
        select("", CLUSTER, &["1@n1 terminating", "2@n2 terminating"]),
        "1,2 |  | any"
    );
    assert_eq!(
        select("", BOTH, &["1@n2 terminating", "2@n3 terminating"]),
        "1,2 |  | any"
    );
    assert_eq!(select("", BOTH, &["1@n1 terminating", "2@n2"]), "2 | 1 | any");
    assert_eq!(
        select(
            "a",
            CLUSTER,
            &["1@n1 zones=a terminating", "2@n2 zones=b terminating"]
        ),
        "1,2 |  | any",
        "hints mean nothing among the terminating"
    );
}

#[test]
fn a_node_without_a_name_has_no_local_endpoints() {
    let endpoints = [endpoint("1@n1")].map(|mut endpoint| {
        endpoint.node = Some("".into());
        endpoint
    });
    let from = Viewpoint {
        node: "".into(),
        zone: None,
    };
    assert_eq!(Selection::new(&endpoints, LOCAL, &from).local().count(), 0);
}

#[test]
fn every_refusal_has_its_reason() {
    let endpoints: Vec<_> = [
        "1@n1 zones=a",
        "2@n2 zones=b",
        "3@n2 unready",
        "4@n2 terminating",
        "5@n2 gone",
    ]
    .map(endpoint)
    .into();
    let verdicts: Vec<Verdict> = judge(&endpoints, CLUSTER, &viewpoint("a"))
        .iter()
        .map(|judgement| judgement.cluster)
        .collect();
    let expected = [
        Verdict::Used,
        Verdict::OtherZone,
        Verdict::NotReady,
        Verdict::Terminating,
        Verdict::Terminating,
    ];
    assert_eq!(verdicts, expected);
}

fn any_endpoint() -> impl Strategy<Value = Endpoint<Ipv4Addr>> {
    let zone = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let node = prop::option::of(prop::sample::select(vec!["n1", "n2"]));
    (
        any::<u8>(),
        any::<[bool; 3]>(),
        prop::sample::select(vec!["n1", "n2", ""]),
        zone,
        node,
    )
        .prop_map(|(number, [ready, serving, terminating], node, zone, hint)| {
            let mut endpoint = endpoint(&format!("{number}@{node}"));
            endpoint.conditions = Conditions {
                ready,
                serving,
                terminating,
            };
            endpoint.hints = Some(Arc::new(Hints {
                zones: zone.into_iter().map(Zone::from).collect(),
                nodes: hint.into_iter().map(NodeName::from).collect(),
            }));
            endpoint
        })
}

proptest! {
    #[test]
    fn a_set_is_empty_only_if_nothing_could_serve_it(
        mut endpoints in prop::collection::vec(any_endpoint(), 0..8),
        zone in prop::sample::select(vec!["", "a", "b"]),
    ) {
        endpoints.sort_by_key(|endpoint| endpoint.backend);
        endpoints.dedup_by_key(|endpoint| endpoint.backend);
        let from = viewpoint(zone);
        let selection = Selection::new(&endpoints, BOTH, &from);
        let usable = |endpoint: &&Endpoint<Ipv4Addr>| is_usable(endpoint);
        prop_assert_eq!(selection.cluster().next().is_some(), endpoints.iter().any(|endpoint| usable(&endpoint)));
        let local_usable = endpoints.iter().filter(usable).any(|endpoint| is_local(endpoint, &from));
        prop_assert_eq!(selection.local().next().is_some(), local_usable);
        // Ready and last-resort endpoints never share a set.
        let ready = |backend: Backend<Ipv4Addr>| {
            endpoints.iter().any(|endpoint| endpoint.backend == backend && endpoint.conditions.ready)
        };
        for set in [selection.cluster().collect::<Vec<_>>(), selection.local().collect()] {
            let count = set.iter().filter(|backend| ready(**backend)).count();
            prop_assert!(count == 0 || count == set.len());
        }
    }
}
