use super::*;
use crate::allocation::plan;
use crate::strategy::testing::{World, created, updated};
use std::collections::BTreeSet;

const DUAL: &[&str] = &["10.0.0.0/24", "fd00::/64"];

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
}

/// A create in a single-stack IPv4 cluster.
fn check(spec: Value, expected: &[&str]) {
    check_in(&World::default(), spec, expected);
}

fn check_in(world: &World, spec: Value, expected: &[&str]) {
    let errors = world.created(&ServiceStrategy, service(spec.clone())).1;
    assert_eq!(errors, expected, "{spec}");
}

/// Creates and allocates, with every pick at the start of its range.
fn stored(world: &World, spec: Value) -> Value {
    let (mut object, errors) = world.created(&ServiceStrategy, service(spec));
    assert_eq!(errors, Vec::<String>::new());
    plan(&mut object, None, &world.cluster, &BTreeSet::new(), &mut |_| 0).unwrap();
    object
}

/// Updates and allocates; the errors of either step.
fn change(world: &World, new: Value, old: &Value) -> Result<Value, Vec<String>> {
    let (mut object, errors) = world.updated(&ServiceStrategy, new, old, Part::Main);
    if !errors.is_empty() {
        return Err(errors);
    }
    let held = crate::allocation::claims_of(old)
        .into_iter()
        .collect::<BTreeSet<_>>();
    match plan(&mut object, Some(old), &world.cluster, &held, &mut |_| 0) {
        Ok(_) => Ok(object),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn what_is_left_out_is_filled_in() {
    let object = stored(
        &World::default(),
        json!({"ports": [{"port": 80}], "selector": {"a": "b"}}),
    );
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&object["spec"]).unwrap(),
        @r#"
    {
      "clusterIP": "10.0.0.17",
      "clusterIPs": [
        "10.0.0.17"
      ],
      "internalTrafficPolicy": "Cluster",
      "ipFamilies": [
        "IPv4"
      ],
      "ipFamilyPolicy": "SingleStack",
      "ports": [
        {
          "port": 80,
          "protocol": "TCP",
          "targetPort": 80
        }
      ],
      "selector": {
        "a": "b"
      },
      "sessionAffinity": "None",
      "type": "ClusterIP"
    }
    "#
    );
    assert_eq!(object["status"], json!({"loadBalancer": {}}));
    let balanced = stored(
        &World::default(),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP", "ports": [{"port": 80, "targetPort": "http"}]}),
    );
    let spec = &balanced["spec"];
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(
        spec["sessionAffinityConfig"],
        json!({"clientIP": {"timeoutSeconds": 10800}})
    );
    assert_eq!(
        (&spec["ports"][0]["nodePort"], &spec["healthCheckNodePort"]),
        (&json!(30086), &json!(30087))
    );
    let external = stored(
        &World::default(),
        json!({"externalIPs": ["192.0.2.1"], "ports": [{"port": 80}]}),
    );
    assert_eq!(external["spec"]["externalTrafficPolicy"], "Cluster");
}

#[test]
fn common_mistakes_read_as_upstream_users_know_them() {
    check(json!({}), &["spec.ports: Required value"]);
    check(json!({"clusterIP": "None"}), &[]);
    check(
        json!({"type": "Cluster", "ports": [{"port": 80}]}),
        &[
            r#"spec.type: Unsupported value: "Cluster": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#,
        ],
    );
    check(
        json!({"ports": [{"port": 0}, {"port": 80, "name": "a"}, {"port": 80, "name": "a", "protocol": "TCP", "targetPort": "UP-"}]}),
        &[
            "spec.ports[0].name: Required value",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            r#"spec.ports[2].name: Duplicate value: "a""#,
            r#"spec.ports[2].targetPort: Invalid value: "UP-": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#,
            r#"spec.ports[2].targetPort: Invalid value: "UP-": must contain at least one letter (a-z)"#,
            r#"spec.ports[2].targetPort: Invalid value: "UP-": must not begin or end with a hyphen"#,
            r#"spec.ports[2]: Duplicate value: {"port":80,"protocol":"TCP"}"#,
        ],
    );
    check(
        json!({"ports": [{"port": 80, "nodePort": 30080}]}),
        &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    );
    check(
        json!({"type": "NodePort", "clusterIP": "None", "ports": [{"port": 80}]}),
        &[r#"spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services"#],
    );
    check(
        json!({"type": "NodePort", "ports": [
            {"port": 80, "name": "a", "nodePort": 30080}, {"port": 81, "name": "b", "nodePort": 30080}]}),
        &["spec.ports[1].nodePort: Duplicate value: 30080"],
    );
    check(
        json!({"type": "ExternalName", "clusterIP": "10.0.0.1"}),
        &[
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
            "spec.externalName: Required value",
        ],
    );
    check(
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}, "ports": [{"port": 80}]}),
        &[
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400",
        ],
    );
    check(
        json!({"externalIPs": ["169.254.0.1", "x"], "ports": [{"port": 80}]}),
        &[
            r#"spec.externalIPs[0]: Invalid value: "169.254.0.1": may not be in the link-local range (169.254.0.0/16, fe80::/10)"#,
            r#"spec.externalIPs[1]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        ],
    );
    check(
        json!({"loadBalancerSourceRanges": ["10.0.0.1/8"], "loadBalancerClass": "x.io/a", "ports": [{"port": 80}]}),
        &[
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
            r#"spec.LoadBalancerSourceRanges[0]: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#,
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ],
    );
    check(
        json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30000, "internalTrafficPolicy": "Near",
            "trafficDistribution": "Far", "ports": [{"port": 80}]}),
        &[
            r#"spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services"#,
            "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
            r#"spec.internalTrafficPolicy: Unsupported value: "Near": supported values: "Cluster", "Local""#,
            r#"spec.trafficDistribution: Unsupported value: "Far": supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#,
        ],
    );
}

#[test]
fn addresses_and_families_agree() {
    let with = |extra: Value| {
        let mut spec = json!({"ports": [{"port": 80}], "selector": {"a": "b"}});
        spec.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        spec
    };
    check(
        with(json!({"clusterIPs": ["10.0.0.5"]})),
        &[r#"spec.clusterIPs: Invalid value: ["10.0.0.5"]: must be empty when `clusterIP` is not specified"#],
    );
    check(
        with(json!({"clusterIP": "10.0.0.6", "clusterIPs": ["10.0.0.5"]})),
        &[r#"spec.clusterIPs: Invalid value: ["10.0.0.5"]: first value must match `clusterIP`"#],
    );
    check(
        with(json!({"clusterIP": "fd00::5"})),
        &[r#"spec.clusterIPs[0]: Invalid value: ["fd00::5"]: IPv6 is not configured on this cluster"#],
    );
    check(
        with(json!({"ipFamilyPolicy": "RequireDualStack"})),
        &[
            r#"spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services"#,
        ],
    );
    check(
        with(json!({"ipFamilies": ["IPv6"]})),
        &[r#"spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster"#],
    );
    let dual = World::with_ranges(DUAL);
    check_in(
        &dual,
        with(json!({"ipFamilies": ["IPv4", "IPv6"]})),
        &[
            r#"spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"#,
        ],
    );
    check_in(
        &dual,
        with(json!({"clusterIP": "10.0.0.5", "ipFamilies": ["IPv6"]})),
        &[
            r#"spec.clusterIPs[0]: Invalid value: "10.0.0.5": expected an IPv6 value as indicated by `ipFamilies[0]`"#,
        ],
    );
    check_in(
        &dual,
        with(json!({"ipFamilies": ["IPv4", "IPv4", "X"], "ipFamilyPolicy": "Any"})),
        &[
            r#"spec.ipFamilies[1]: Duplicate value: "IPv4""#,
            r#"spec.ipFamilies[2]: Unsupported value: "X": supported values: "IPv4", "IPv6""#,
            r#"spec.ipFamilyPolicy: Unsupported value: "Any": supported values: "PreferDualStack", "RequireDualStack", "SingleStack""#,
        ],
    );
}

#[test]
fn families_default_from_policy_addresses_and_cluster() {
    let families = |ranges: &[&str], spec: Value| {
        let object = stored(&World::with_ranges(ranges), spec);
        let spec = &object["spec"];
        (
            spec["ipFamilyPolicy"].clone(),
            spec["ipFamilies"].clone(),
            spec["clusterIPs"].clone(),
        )
    };
    let ports = json!([{"port": 80}]);
    assert_eq!(
        families(
            &DUAL[..1],
            json!({"ipFamilyPolicy": "PreferDualStack", "ports": ports})
        ),
        (json!("PreferDualStack"), json!(["IPv4"]), json!(["10.0.0.17"]))
    );
    assert_eq!(
        families(DUAL, json!({"ipFamilyPolicy": "PreferDualStack", "ports": ports})),
        (
            json!("PreferDualStack"),
            json!(["IPv4", "IPv6"]),
            json!(["10.0.0.17", "fd00::101"])
        )
    );
    assert_eq!(
        families(
            DUAL,
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"], "ports": ports})
        ),
        (
            json!("RequireDualStack"),
            json!(["IPv6", "IPv4"]),
            json!(["fd00::101", "10.0.0.17"])
        )
    );
    assert_eq!(
        families(DUAL, json!({"clusterIP": "fd00::9", "ports": ports})),
        (json!("SingleStack"), json!(["IPv6"]), json!(["fd00::9"]))
    );
    assert_eq!(
        families(&DUAL[..1], json!({"clusterIP": "None"})),
        (
            json!("RequireDualStack"),
            json!(["IPv4", "IPv6"]),
            json!(["None"])
        ),
        "endpoints of a headless Service without selector may have any family"
    );
    assert_eq!(
        families(&DUAL[..1], json!({"clusterIP": "None", "selector": {"a": "b"}})),
        (json!("SingleStack"), json!(["IPv4"]), json!(["None"]))
    );
}

#[test]
fn an_update_that_omits_allocated_values_keeps_them() {
    let world = World::with_ranges(DUAL);
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ipFamilyPolicy": "PreferDualStack",
        "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]});
    let old = stored(&world, spec.clone());
    assert_eq!(change(&world, service(spec), &old), Ok(old.clone()));
    let reordered = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"port": 81, "name": "b"}, {"port": 82, "name": "c"}]});
    let new = change(&world, service(reordered), &old).unwrap();
    assert_eq!(new["spec"]["clusterIPs"], old["spec"]["clusterIPs"]);
    assert_eq!(
        new["spec"]["ports"][0]["nodePort"],
        old["spec"]["ports"][1]["nodePort"]
    );
    assert_ne!(
        new["spec"]["ports"][1]["nodePort"],
        old["spec"]["ports"][0]["nodePort"]
    );
    assert_eq!(
        new["spec"]["healthCheckNodePort"],
        old["spec"]["healthCheckNodePort"]
    );
}

#[test]
fn addresses_and_families_do_not_change_once_set() {
    let world = World::with_ranges(DUAL);
    let single = stored(&world, json!({"ports": [{"port": 80}], "clusterIP": "10.0.0.5"}));
    let with = |base: &Value, changes: Value| {
        let mut new = base.clone();
        for (field, value) in changes.as_object().unwrap() {
            new["spec"][field] = value.clone();
        }
        change(&world, new, base)
    };
    assert_eq!(
        with(&single, json!({"clusterIP": "10.0.0.6"})),
        Err(vec![
            r#"spec.clusterIPs[0]: Invalid value: ["10.0.0.6"]: may not change once set"#.to_owned()
        ])
    );
    assert_eq!(
        with(&single, json!({"clusterIP": "None"})).unwrap_err()[0],
        r#"spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set"#
    );
    assert_eq!(
        with(&single, json!({"ipFamilies": ["IPv6"]})).unwrap_err()[0],
        r#"spec.ipFamilies[0]: Invalid value: ["IPv6"]: may not change once set"#
    );
    let both = with(&single, json!({"ipFamilyPolicy": "RequireDualStack"})).unwrap();
    assert_eq!(both["spec"]["clusterIPs"], json!(["10.0.0.5", "fd00::101"]));
    assert_eq!(
        with(&both, json!({"clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"]})).unwrap_err()[0],
        r#"spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be set to 'SingleStack' when releasing the secondary clusterIP"#
    );
    let back = with(&both, json!({"ipFamilyPolicy": "SingleStack"})).unwrap();
    assert_eq!(
        (&back["spec"]["clusterIPs"], &back["spec"]["ipFamilies"]),
        (&json!(["10.0.0.5"]), &json!(["IPv4"]))
    );
}

#[test]
fn a_service_that_prefers_two_families_keeps_one_until_it_is_touched() {
    let old = stored(
        &World::default(),
        json!({"ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack"}),
    );
    let later = World::with_ranges(DUAL);
    assert_eq!(change(&later, old.clone(), &old), Ok(old));
}

#[test]
fn fields_that_went_with_the_old_type_go_with_it() {
    let world = World::default();
    let old = stored(
        &world,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "loadBalancerClass": "x.io/a", "ports": [{"port": 80}]}),
    );
    let patched = |kind: &str, more: Value| {
        let mut new = old.clone();
        new["spec"]["type"] = json!(kind);
        new["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        change(&world, new, &old)
    };
    let plain = patched("ClusterIP", json!({})).unwrap();
    for field in [
        "healthCheckNodePort",
        "allocateLoadBalancerNodePorts",
        "loadBalancerClass",
        "externalTrafficPolicy",
    ] {
        assert_eq!(plain["spec"].get(field), None, "{field}");
    }
    assert_eq!(plain["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(plain["spec"]["clusterIP"], old["spec"]["clusterIP"]);
    let named = patched("ExternalName", json!({"externalName": "example.com"})).unwrap();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(named["spec"].get(field), None, "{field}");
    }
    let mut again = named.clone();
    again["spec"]["type"] = json!("ClusterIP");
    let again = change(&world, again, &named).unwrap();
    assert_eq!(again["spec"]["clusterIPs"], json!(["10.0.0.17"]));
    let changed = patched("ClusterIP", json!({"loadBalancerClass": "x.io/b"}));
    assert_eq!(
        changed.unwrap_err(),
        ["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"]
    );
}

#[test]
fn load_balancer_class_and_health_check_port_are_immutable() {
    let world = World::default();
    let old = stored(
        &world,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
    );
    let mut new = old.clone();
    new["spec"]["healthCheckNodePort"] = json!(30500);
    new["spec"]["loadBalancerClass"] = json!("x.io/a");
    assert_eq!(
        change(&world, new, &old).unwrap_err(),
        [
            r#"spec.loadBalancerClass: Invalid value: "x.io/a": may not change once set"#,
            "spec.healthCheckNodePort: Forbidden: field is immutable",
        ]
    );
}

#[test]
fn status_belongs_to_load_balancers_and_to_its_subresource() {
    let old = stored(
        &World::default(),
        json!({"type": "LoadBalancer", "ports": [{"port": 80}]}),
    );
    let report = |ingress: Value| {
        let mut new = old.clone();
        new["status"] = json!({"loadBalancer": {"ingress": ingress}});
        new["spec"]["type"] = json!("ClusterIP");
        updated(&ServiceStrategy, new, &old, Part::Status)
    };
    let (object, errors) =
        report(json!([{"ip": "192.0.2.1", "ipMode": "Proxy"}, {"hostname": "a.example.com"}]));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(object["spec"], old["spec"]);
    assert_eq!(
        report(json!([{"ip": "x", "ipMode": "Y"}, {"hostname": "192.0.2.1", "ipMode": "VIP"}])).1,
        [
            r#"status.loadBalancer.ingress[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            r#"status.loadBalancer.ingress[0].ipMode: Unsupported value: "Y": supported values: "Proxy", "VIP""#,
            "status.loadBalancer.ingress[1].ipMode: Forbidden: may not be specified when `ip` is not set",
            r#"status.loadBalancer.ingress[1].hostname: Invalid value: "192.0.2.1": must be a DNS name, not an IP address"#,
        ]
    );
    let mut main = object.clone();
    main["status"] = json!({});
    assert_eq!(
        updated(&ServiceStrategy, main, &object, Part::Main).0["status"],
        object["status"]
    );
}

#[test]
fn services_are_found_by_type_and_address_and_warned_about() {
    let object = created(
        &ServiceStrategy,
        service(json!({"clusterIP": "None", "sessionAffinity": "ClientIP"})),
    )
    .0;
    assert_eq!(
        ServiceStrategy.selectable(&object, "spec.clusterIP").as_deref(),
        Some("None")
    );
    assert_eq!(
        ServiceStrategy.selectable(&object, "spec.type").as_deref(),
        Some("ClusterIP")
    );
    assert_eq!(ServiceStrategy.selectable(&object, "spec.other"), None);
    assert_eq!(
        ServiceStrategy.warnings(&object),
        ["spec.SessionAffinity is ignored for headless services"]
    );
}
