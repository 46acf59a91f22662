use super::*;
use proptest::prelude::*;
use serde_json::json;

fn cluster(ranges: &[&str]) -> ClusterSettings {
    let service_ranges = ranges.iter().map(|text| {
        let (network, prefix) = net::valid_cidr("range", text).unwrap();
        IpRange { network, prefix }
    });
    ClusterSettings {
        service_ranges: service_ranges.collect(),
        node_ports: (30000, 32767),
    }
}

fn service(spec: Value) -> Value {
    json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec})
}

/// Plans with picks that always start at the first number.
fn planned(new: &mut Value, old: Option<&Value>, in_use: &[&str]) -> Result<ClaimPlan, Vec<String>> {
    let in_use: BTreeSet<Claim> = in_use.iter().map(|key| Claim::from_key(key).unwrap()).collect();
    plan(new, old, &cluster(&["10.0.0.0/24"]), &in_use, &mut |_| 0)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn keys(claims: &[Claim]) -> Vec<String> {
    claims.iter().map(Claim::key).collect()
}

#[test]
fn a_new_service_gets_an_address_and_node_ports() {
    let mut new = service(json!({"type": "NodePort", "ipFamilies": ["IPv4"], "ports": [
        {"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 80, "protocol": "TCP"}]}));
    let plan = planned(&mut new, None, &["ip/10.0.0.17", "port/30086"]).unwrap();
    assert_eq!(keys(&plan.claim), ["ip/10.0.0.18", "port/30087", "port/30088"]);
    assert_eq!(new["spec"]["clusterIP"], "10.0.0.18");
    assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.18"]));
    let ports: Vec<i64> = (0..3)
        .map(|i| new["spec"]["ports"][i]["nodePort"].as_i64().unwrap())
        .collect();
    assert_eq!(
        ports,
        [30087, 30087, 30088],
        "one port in two protocols shares a node port"
    );
}

#[test]
fn picks_never_take_what_the_same_service_asks_for() {
    let mut new = service(json!({"type": "NodePort", "ports": [
        {"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP", "nodePort": 30086}]}));
    planned(&mut new, None, &[]).unwrap();
    assert_eq!(new["spec"]["ports"][0]["nodePort"], 30087);
}

#[test]
fn explicit_values_that_cannot_be_had_are_refused_in_upstream_words() {
    let refuse = |spec: Value, expected: &str| {
        let errors = planned(&mut service(spec), None, &["ip/10.0.0.5", "port/30100"]).unwrap_err();
        assert_eq!(errors, [expected]);
    };
    refuse(
        json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]}),
        r#"spec.clusterIPs: Invalid value: ["10.0.0.5"]: failed to allocate IP 10.0.0.5: provided IP is already allocated"#,
    );
    refuse(
        json!({"clusterIPs": ["10.1.0.5"]}),
        r#"spec.clusterIPs: Invalid value: ["10.1.0.5"]: failed to allocate IP 10.1.0.5: the provided IP (10.1.0.5) is not in the valid range. The range of valid IPs is 10.0.0.0/24"#,
    );
    refuse(
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}),
        "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated",
    );
    refuse(
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
        "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
    );
    refuse(
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30101,
            "ports": [{"port": 80, "nodePort": 30101}]}),
        "spec.healthCheckNodePort: Invalid value: 30101: provided port is already allocated",
    );
}

#[test]
fn a_full_range_says_so() {
    let full: BTreeSet<Claim> = (1..15)
        .map(|n| Claim::from_key(&format!("ip/10.0.0.{n}")).unwrap())
        .collect();
    let mut new = service(json!({"type": "ClusterIP"}));
    let errors = plan(&mut new, None, &cluster(&["10.0.0.0/28"]), &full, &mut |_| 3).unwrap_err();
    insta::assert_snapshot!(
        errors[0].to_string(),
        @"spec.clusterIPs: Internal error: failed to allocate a serviceIP: range 10.0.0.0/28 is full"
    );
}

#[test]
fn dual_stack_services_get_one_address_of_each_family() {
    let cluster = cluster(&["10.0.0.0/24", "fd00::/64"]);
    let mut new = service(json!({"type": "ClusterIP", "ipFamilies": ["IPv6", "IPv4"]}));
    let plan = plan(&mut new, None, &cluster, &BTreeSet::new(), &mut |_| 0).unwrap();
    assert_eq!(new["spec"]["clusterIPs"], json!(["fd00::101", "10.0.0.17"]));
    assert_eq!(plan.claim, claims_of(&new));
}

#[test]
fn type_changes_release_what_is_no_longer_used() {
    let old = service(
        json!({"type": "LoadBalancer", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 30200, "ports": [{"port": 80, "nodePort": 30201}]}),
    );
    let in_use = ["ip/10.0.0.9", "port/30200", "port/30201"];
    assert_eq!(keys(&claims_of(&old)), in_use);

    let mut new =
        service(json!({"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]}));
    let plan = planned(&mut new, Some(&old), &in_use).unwrap();
    assert_eq!(
        (keys(&plan.claim), keys(&plan.release)),
        (vec![], in_use.map(str::to_owned).to_vec())
    );

    let mut new = old.clone();
    new["spec"]["externalTrafficPolicy"] = json!("Cluster");
    new["spec"]["healthCheckNodePort"] = json!(0);
    let plan = planned(&mut new, Some(&old), &in_use).unwrap();
    assert_eq!(keys(&plan.release), ["port/30200"]);

    let mut headless = service(json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}));
    assert_eq!(planned(&mut headless, None, &[]).unwrap(), ClaimPlan::default());
}

#[test]
fn load_balancers_may_do_without_node_ports() {
    let mut new = service(
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [
        {"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP", "nodePort": 30001}]}),
    );
    let plan = planned(&mut new, None, &[]).unwrap();
    assert_eq!(keys(&plan.claim), ["ip/10.0.0.17", "port/30001"]);
    assert_eq!(new["spec"]["ports"][0].get("nodePort"), None);
}

#[test]
fn repair_finds_missing_orphaned_and_doubled_claims() {
    let named = |name: &str, ip: &str| json!({"metadata": {"namespace": "n", "name": name}, "spec": {"type": "ClusterIP", "clusterIPs": [ip]}});
    let services = [
        named("a", "10.0.0.1"),
        named("b", "10.0.0.2"),
        named("c", "10.0.0.2"),
    ];
    let claim = |key: &str| Claim::from_key(key).unwrap();
    let found = repair(&services, [claim("ip/10.0.0.2"), claim("port/30000")]);
    assert_eq!(found.missing, [(claim("ip/10.0.0.1"), "n/a".to_owned())]);
    assert_eq!(found.orphaned, [claim("port/30000")]);
    assert_eq!(
        found.conflicting,
        [Conflict {
            claim: claim("ip/10.0.0.2"),
            holders: vec!["n/b".into(), "n/c".into()]
        }]
    );
}

fn any_service() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        Just("ClusterIP"),
        Just("NodePort"),
        Just("LoadBalancer"),
        Just("ExternalName")
    ];
    let port = (
        1i64..5,
        prop_oneof![Just("TCP"), Just("UDP")],
        prop_oneof![3 => Just(0i64), 1 => 30000i64..30020],
    );
    let families = prop_oneof![
        Just(json!(["IPv4"])),
        Just(json!(["IPv6", "IPv4"])),
        Just(json!([]))
    ];
    let address = prop_oneof![4 => Just(String::new()), 1 => Just("None".to_owned()), 1 => (0u8..=255).prop_map(|n| format!("10.0.0.{n}"))];
    (kind, prop::collection::vec(port, 0..4), families, address, any::<bool>(), any::<bool>()).prop_map(
        |(kind, ports, families, address, local, allocate)| {
            let ports: Vec<Value> = ports
                .into_iter()
                .map(|(port, protocol, node_port)| json!({"port": port, "protocol": protocol, "nodePort": node_port}))
                .collect();
            let mut spec = json!({"type": kind, "ports": ports, "ipFamilies": families, "clusterIP": address,
                "externalTrafficPolicy": if local { "Local" } else { "Cluster" }, "allocateLoadBalancerNodePorts": allocate});
            if !address.is_empty() {
                spec["clusterIPs"] = json!([address]);
            }
            service(spec)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_history_of_writes_gives_one_claim_to_two_services(
        writes in prop::collection::vec((0usize..6, prop::option::weighted(0.8, any_service())), 1..40),
        seed in any::<u64>(),
    ) {
        let cluster = cluster(&["10.0.0.0/26", "fd00::/120"]);
        let mut services: Vec<Option<Value>> = vec![None; 6];
        let mut store: BTreeSet<Claim> = BTreeSet::new();
        let mut state = seed;
        let mut pick = |count: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % count
        };
        for (slot, write) in writes {
            let old = services[slot].take();
            let Some(mut new) = write else {
                for claim in old.iter().flat_map(claims_of) {
                    prop_assert!(store.remove(&claim));
                }
                continue;
            };
            let Ok(made) = plan(&mut new, old.as_ref(), &cluster, &store, &mut pick) else {
                services[slot] = old;
                continue;
            };
            for claim in &made.release {
                prop_assert!(store.remove(claim), "{claim:?} was released but not held");
            }
            for claim in &made.claim {
                prop_assert!(store.insert(*claim), "{claim:?} was claimed twice");
            }
            let again = plan(&mut new.clone(), Some(&new), &cluster, &store, &mut pick);
            prop_assert_eq!(again, Ok(ClaimPlan::default()));
            services[slot] = Some(new);
        }
        prop_assert_eq!(repair(services.iter().flatten(), store), Repair::default());
    }

    #[test]
    fn keys_name_claims_uniquely(port in 1u16.., address in any::<IpAddr>()) {
        for claim in [Claim::NodePort(port), Claim::Address(address)] {
            prop_assert_eq!(Claim::from_key(&claim.key()), Some(claim));
        }
    }
}
