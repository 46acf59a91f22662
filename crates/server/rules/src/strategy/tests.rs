//! Laws that hold for every kind.

use super::Part;
use super::testing::World;
use crate::{Kind, kinds};
use pointsman_model::Feature;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Field names that rules look at, so that random objects reach deep into them.
const NAMES: &[&str] = &[
    "metadata",
    "name",
    "namespace",
    "labels",
    "deletionTimestamp",
    "spec",
    "status",
    "type",
    "ports",
    "port",
    "nodePort",
    "protocol",
    "targetPort",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "externalIPs",
    "healthCheckNodePort",
    "externalTrafficPolicy",
    "sessionAffinity",
    "sessionAffinityConfig",
    "clientIP",
    "loadBalancer",
    "ingress",
    "ip",
    "endpoints",
    "addresses",
    "addressType",
    "conditions",
    "serving",
    "hints",
    "forZones",
    "subsets",
    "taints",
    "key",
    "effect",
    "podCIDRs",
    "podCIDR",
    "finalizers",
    "phase",
    "rules",
    "verbs",
    "roleRef",
    "subjects",
    "kind",
    "data",
    "binaryData",
    "series",
    "count",
    "involvedObject",
    "workerLatencyProfile",
    "selector",
    "deprecatedTopology",
    "loadBalancerSourceRanges",
    "aggregationRule",
    "clusterRoleSelectors",
];

const TEXTS: &[&str] = &[
    "",
    "None",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "Local",
    "IPv4",
    "IPv6",
    "FQDN",
    "10.0.0.1",
    "fd00::1",
    "10.0.0.0/24",
    "TCP",
    "SingleStack",
    "PreferDualStack",
    "ClientIP",
    "a",
    "A/b/c",
    "ä",
    "cluster",
];

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(TEXTS).prop_map(|text| json!(text));
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => (-2i64..70000).prop_map(Value::from),
        4 => text,
    ];
    leaf.prop_recursive(6, 96, 6, |inner| {
        let object = prop::collection::vec((prop::sample::select(NAMES), inner.clone()), 0..6);
        prop_oneof![
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
            3 => object.prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_object_makes_a_rule_panic(new in any_json(), old in any_json()) {
        let worlds = [
            World::default(),
            World::with_ranges(&["10.0.0.0/24", "fd00::/64"]),
            World::with_gate(Feature::EndpointSliceTerminatingCondition, false),
        ];
        for world in &worlds {
            for kind in kinds::ALL.iter() {
                let strategy = kind.strategy;
                let (stored, _) = world.created(strategy, new.clone());
                for part in [Part::Main, Part::Status] {
                    world.updated(strategy, new.clone(), &old, part);
                    world.updated(strategy, stored.clone(), &stored, part);
                }
                strategy.warnings(&new);
                strategy.bumps_generation(&new, &old);
                strategy.selectable(&new, "status.phase");
                let _ = crate::meta::validate_meta(&new, kind, strategy.name_rule(), "metadata");
                let _ = crate::meta::validate_meta_update(&new, &old);
            }
            let in_use = std::collections::BTreeSet::new();
            let _ = crate::allocation::plan(&mut new.clone(), Some(&old), &world.cluster, &in_use, &mut |_| 0);
        }
    }
}

#[test]
fn writing_back_what_was_read_changes_nothing() {
    let objects = [
        ("v1", "ConfigMap", json!({"data": {"a": "b"}})),
        (
            "v1",
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]}),
        ),
        ("v1", "Namespace", json!({"metadata": {"name": "a"}})),
        (
            "v1",
            "Node",
            json!({"spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "1"}}}),
        ),
        ("v1", "Service", json!({"spec": {"ports": [{"port": 80}]}})),
        (
            "v1",
            "Service",
            json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
        ),
        ("v1", "Service", json!({"spec": {"clusterIP": "None"}})),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "ports": [{"port": 80}]}),
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({"spec": {"leaseDurationSeconds": 40}}),
        ),
        (
            "config.openshift.io/v1",
            "Node",
            json!({"metadata": {"name": "cluster"}, "spec": {"cgroupMode": "v2"}}),
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "a"},
            "subjects": [{"kind": "User", "name": "u"}]}),
        ),
    ];
    let world = World::default();
    for (version, kind, object) in objects {
        let strategy = Kind::by_type(version, kind).unwrap().strategy;
        let (stored, errors) = world.created(strategy, object);
        assert_eq!(errors, Vec::<String>::new(), "{kind}");
        for part in [Part::Main, Part::Status] {
            let (again, errors) = world.updated(strategy, stored.clone(), &stored, part);
            assert_eq!((&again, errors), (&stored, Vec::new()), "{kind} {part:?}");
            assert!(!strategy.bumps_generation(&again, &stored), "{kind}");
        }
    }
}
