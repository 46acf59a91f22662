use super::*;
use crate::strategy::testing::{World, created, updated};
use serde_json::json;

fn slice(endpoint: Value) -> Value {
    json!({"addressType": "IPv4", "endpoints": [endpoint], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})
}

fn check(object: Value, expected: &[&str]) {
    let errors = created(&EndpointSliceStrategy, object).1;
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(
            error.starts_with(expected),
            "{error:?} should start with {expected:?}"
        );
    }
}

#[test]
fn ports_get_a_name_and_a_protocol() {
    let (stored, errors) = created(
        &EndpointSliceStrategy,
        json!({"addressType": "IPv4", "ports": [{"port": 80}]}),
    );
    assert!(errors.is_empty());
    assert_eq!(
        stored["ports"],
        json!([{"port": 80, "name": "", "protocol": "TCP"}])
    );
}

#[test]
fn the_address_type_is_known_and_never_changes() {
    check(json!({}), &["addressType: Required value"]);
    check(
        json!({"addressType": "IPX"}),
        &[r#"addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6""#],
    );
    let old = json!({"addressType": "IPv4"});
    assert_eq!(
        updated(
            &EndpointSliceStrategy,
            json!({"addressType": "IPv6"}),
            &old,
            Part::Main
        )
        .1,
        [r#"addressType: Invalid value: "IPv6": field is immutable"#]
    );
}

#[test]
fn addresses_fit_the_address_type() {
    let of_type =
        |kind: &str, address: &str| json!({"addressType": kind, "endpoints": [{"addresses": [address]}]});
    check(of_type("IPv4", "10.0.0.1"), &[]);
    check(of_type("IPv6", "2001:db8::1"), &[]);
    check(of_type("FQDN", "web.example.com"), &[]);
    let path = "endpoints[0].addresses";
    check(
        of_type("IPv4", "2001:db8::1"),
        &[&format!(
            r#"{path}: Invalid value: "2001:db8::1": must be an IPv4 address"#
        )],
    );
    check(
        of_type("IPv6", "10.0.0.1"),
        &[&format!(
            r#"{path}: Invalid value: "10.0.0.1": must be an IPv6 address"#
        )],
    );
    check(
        of_type("IPv6", "2001:DB8::1"),
        &[&format!(
            r#"{path}[0]: Invalid value: "2001:DB8::1": must be in canonical form ("2001:db8::1")"#
        )],
    );
    check(
        of_type("IPv4", "010.0.0.1"),
        &[&format!(
            r#"{path}[0]: Invalid value: "010.0.0.1": must be a valid IP address"#
        )],
    );
    check(
        of_type("IPv4", "127.0.0.1"),
        &[&format!(
            r#"{path}[0]: Invalid value: "127.0.0.1": may not be in the loopback range"#
        )],
    );
    check(
        of_type("FQDN", "localhost"),
        &[&format!(
            r#"{path}[0]: Invalid value: "localhost": should be a domain"#
        )],
    );
    check(
        slice(json!({})),
        &[&format!(
            "{path}: Required value: must contain at least 1 address"
        )],
    );
    let many: Vec<String> = (0..101).map(|n| format!("10.0.1.{n}")).collect();
    check(
        slice(json!({"addresses": many})),
        &[&format!("{path}: Too many: 101: must have at most 100 items")],
    );
}

#[test]
fn sizes_are_limited() {
    let endpoints = vec![json!({"addresses": ["10.0.0.1"]}); 1001];
    check(
        json!({"addressType": "IPv4", "endpoints": endpoints[..1000]}),
        &[],
    );
    check(
        json!({"addressType": "IPv4", "endpoints": endpoints}),
        &["endpoints: Too many: 1001: must have at most 1000 items"],
    );
    let ports: Vec<Value> = (0..20_001)
        .map(|n| json!({"name": format!("p{n}"), "port": 1}))
        .collect();
    check(
        json!({"addressType": "IPv4", "ports": ports}),
        &["ports: Too many: 20001: must have at most 20000 items"],
    );
}

#[test]
fn ports_and_endpoint_fields_are_checked() {
    check(
        json!({"addressType": "IPv4", "ports": [
            {"name": "a", "port": 0}, {"name": "a", "protocol": "X"}, {"name": "UP", "appProtocol": "b c"}]}),
        &[
            "ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            r#"ports[1].name: Duplicate value: "a""#,
            r#"ports[1].protocol: Unsupported value: "X""#,
            r#"ports[2].name: Invalid value: "UP""#,
            r#"ports[2].appProtocol: Invalid value: "b c""#,
        ],
    );
    let zones = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    check(
        slice(
            json!({"addresses": ["10.0.0.1"], "nodeName": "n1", "zone": "z", "hints": {"forZones": zones(&["a", "b"])}}),
        ),
        &[],
    );
    check(
        slice(
            json!({"addresses": ["10.0.0.1"], "nodeName": "N1", "hostname": "a.b",
            "hints": {"forZones": zones(&["a", "a"]), "forNodes": zones(&["1", "2", "3", "4", "5", "6", "7", "8", "9"])}}),
        ),
        &[
            r#"endpoints[0].nodeName: Invalid value: "N1""#,
            r#"endpoints[0].hostname: Invalid value: "a.b": must not contain dots"#,
            r#"endpoints[0].hints.forZones[1].name: Duplicate value: "a""#,
            "endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items",
        ],
    );
}

#[test]
fn with_the_gate_off_new_objects_lose_serving_and_terminating() {
    let conditions = json!({"ready": true, "serving": true, "terminating": false});
    let sent = slice(json!({"addresses": ["10.0.0.1"], "conditions": conditions}));
    let off = World::with_gate(Feature::EndpointSliceTerminatingCondition, false);
    let on = World::with_gate(Feature::EndpointSliceTerminatingCondition, true);
    let conditions_of = |stored: &Value| stored["endpoints"][0]["conditions"].clone();

    let without = off.created(&EndpointSliceStrategy, sent.clone()).0;
    assert_eq!(conditions_of(&without), json!({"ready": true}));
    let with = on.created(&EndpointSliceStrategy, sent.clone()).0;
    assert_eq!(conditions_of(&with), conditions);

    let updated = |world: &World, old: &Value| {
        conditions_of(
            &world
                .updated(&EndpointSliceStrategy, sent.clone(), old, Part::Main)
                .0,
        )
    };
    assert_eq!(updated(&off, &without), json!({"ready": true}), "still dropped");
    assert_eq!(
        updated(&off, &with),
        conditions,
        "the stored object already uses them"
    );
    assert_eq!(updated(&on, &without), conditions, "the gate is on again");
    for field in ["serving", "terminating"] {
        let old = slice(json!({"addresses": ["10.0.0.1"], "conditions": {field: false}}));
        assert_eq!(updated(&off, &old), conditions, "{field} alone counts as use");
    }
}

#[test]
fn generation_follows_content_and_labels_but_not_other_metadata() {
    let old = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}, "addressType": "IPv4"});
    let bumps = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        EndpointSliceStrategy.bumps_generation(&new, &old)
    };
    assert!(!bumps(|_| {}));
    assert!(!bumps(|new| new["metadata"]["annotations"] = json!({"x": "y"})));
    assert!(bumps(|new| new["metadata"]["labels"] = json!({})));
    assert!(
        !bumps(|new| new["endpoints"] = json!([])),
        "as typed clients write an absent list"
    );
    assert!(bumps(
        |new| new["endpoints"] = json!([{"addresses": ["10.0.0.1"]}])
    ));
    assert_eq!(EndpointSliceStrategy.first_generation(), Some(1));
}

#[test]
fn the_beta_topology_gives_way_to_the_node_name() {
    let topology = json!({HOSTNAME_LABEL: "n1"});
    let endpoint = json!({"addresses": ["10.0.0.1"], "deprecatedTopology": topology});
    let stored = created(&EndpointSliceStrategy, slice(endpoint.clone())).0;
    assert_eq!(stored["endpoints"][0], json!({"addresses": ["10.0.0.1"]}));
    let old = slice(endpoint.clone());
    let mut new = old.clone();
    assert_eq!(
        updated(&EndpointSliceStrategy, new.clone(), &old, Part::Main).0,
        old,
        "nothing changed"
    );
    new["endpoints"][0]["addresses"] = json!(["10.0.0.2"]);
    let stored = updated(&EndpointSliceStrategy, new, &old, Part::Main).0;
    assert_eq!(
        stored["endpoints"][0],
        json!({"addresses": ["10.0.0.2"], "nodeName": "n1"})
    );
}

#[test]
fn an_ip_address_is_named_after_the_one_spelling_of_it() {
    let kind = crate::Kind::by_type("networking.k8s.io/v1", "IPAddress").unwrap();
    for (name, why) in [
        ("10.96.0.1", ""),
        ("fd00::1", ""),
        ("FD00::1", "canonical"),
        ("fd00::01", "canonical"),
        ("010.96.0.1", "valid IP"),
        ("web", "valid IP"),
    ] {
        let object = json!({"metadata": {"name": name}});
        assert_eq!(
            crate::meta::validate_meta(&object, kind, kind.strategy.name_rule(), "metadata"),
            []
        );
        let mut errors = Vec::new();
        validate_ip_address(&object, &mut errors);
        assert_eq!(errors.is_empty(), why.is_empty(), "{name}: {errors:?}");
        assert!(
            errors.iter().all(|error| error.to_string().contains(why)),
            "{errors:?}"
        );
    }
}
