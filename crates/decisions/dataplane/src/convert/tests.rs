//! Objects as API servers send them, and what becomes of them.

use pointsman_model::Conditions;
use pointsman_objects::names::{
    HEADLESS_LABEL, PROXY_NAME_LABEL, SERVICE_NAME_LABEL, TRIGGER_TIME_ANNOTATION, ZONE_LABEL,
};
use serde_json::json;

use super::*;

fn service_of(spec: serde_json::Value, status: serde_json::Value) -> ConvertedService {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "svc", "resourceVersion": "42", "managedFields": [{}]},
        "spec": spec,
        "status": status,
    });
    service(&serde_json::from_value(object).unwrap(), &mut Interner::default()).unwrap()
}

fn slice_of(object: serde_json::Value) -> ConvertedSlice {
    slice(&serde_json::from_value(object).unwrap(), &mut Interner::default()).unwrap()
}

fn dual_stack() -> serde_json::Value {
    json!({
        "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "web"}],
        "externalIPs": ["1.2.3.4", "2001:db8::1", "bad", ""],
        "loadBalancerSourceRanges": [" 10.1.0.0/16 ", "2001:db8::/32", "10.2.0.0/99"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
        "sessionAffinity": "ClientIP",
    })
}

#[test]
fn a_dual_stack_service_is_split_by_family_and_bad_fields_are_named() {
    let status = json!({"loadBalancer": {"ingress": [
        {"ip": "5.6.7.8"}, {"ip": "2001:db8::2", "ipMode": "VIP"}, {"ip": "9.9.9.9", "ipMode": "Proxy"},
        {"hostname": "lb.example"},
    ]}});
    let converted = service_of(dual_stack(), status);
    let (four, six) = (converted.v4.unwrap(), converted.v6.unwrap());
    assert_eq!(
        (four.cluster_ip.to_string(), six.cluster_ip.to_string()),
        ("10.0.0.1".into(), "fd00::1".into())
    );
    assert_eq!(format!("{:?}", four.external_ips()), "[1.2.3.4]");
    assert_eq!(format!("{:?}", six.external_ips()), "[2001:db8::1]");
    assert_eq!(format!("{:?}", four.load_balancer_vips()), "[5.6.7.8]");
    assert_eq!(format!("{:?}", six.load_balancer_vips()), "[2001:db8::2]");
    assert_eq!(format!("{:?}", four.source_ranges().unwrap()), "[10.1.0.0/16]");
    assert_eq!(format!("{:?}", six.source_ranges().unwrap()), "[2001:db8::/32]");
    assert_eq!(
        four.affinity.unwrap().timeout_seconds.get(),
        DEFAULT_AFFINITY_SECONDS
    );
    assert_eq!(four.health_check().unwrap().0.get(), 31_000);
    assert_eq!(converted.revision, Some(Revision(42)));
    let named: Vec<_> = converted
        .problems
        .iter()
        .map(|problem| (problem.field, problem.value.as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("spec.externalIPs", "bad"),
            ("spec.loadBalancerSourceRanges", "10.2.0.0/99")
        ]
    );
}

#[test]
fn the_order_of_families_decides_which_address_is_whose() {
    let mut spec = dual_stack();
    spec["clusterIP"] = json!("fd00::1");
    spec["clusterIPs"] = json!(["fd00::1", "10.0.0.1"]);
    spec["ipFamilies"] = json!(["IPv6", "IPv4"]);
    let converted = service_of(spec, json!({}));
    assert_eq!(converted.v4.unwrap().cluster_ip.to_string(), "10.0.0.1");
    assert_eq!(converted.v6.unwrap().cluster_ip.to_string(), "fd00::1");
}

#[test]
fn an_object_older_than_dual_stack_has_one_family() {
    for (ip, four, six) in [("10.0.0.1", true, false), ("fd00::1", false, true)] {
        let converted = service_of(json!({"clusterIP": ip, "ports": null}), json!({}));
        assert_eq!((converted.v4.is_some(), converted.v6.is_some()), (four, six));
    }
}

#[test]
fn services_that_are_none_of_our_business_have_no_half() {
    for spec in [
        json!({"clusterIP": "None", "ports": [{"port": 80}]}),
        json!({"clusterIP": ""}),
        json!({"type": "ExternalName", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}),
    ] {
        let converted = service_of(spec, json!({}));
        assert_eq!((converted.v4, converted.v6), (None, None));
    }
    let labelled = json!({
        "metadata": {"namespace": "ns", "name": "svc", "labels": {PROXY_NAME_LABEL: ""}},
        "spec": {"clusterIP": "10.0.0.1"},
    });
    let converted = service(
        &serde_json::from_value(labelled).unwrap(),
        &mut Interner::default(),
    )
    .unwrap();
    assert_eq!(converted.v4, None);
}

#[test]
fn policies_and_health_ports_count_only_where_they_can() {
    let local = |kind: &str, external: serde_json::Value, port: i64| {
        service_of(
            json!({"type": kind, "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Local",
                   "externalIPs": external, "healthCheckNodePort": port}),
            json!({}),
        )
    };
    let policy = |converted: &ConvertedService| converted.v4.as_ref().unwrap().external_policy;
    assert_eq!(policy(&local("ClusterIP", json!([]), 0)), TrafficPolicy::Cluster);
    assert_eq!(
        policy(&local("ClusterIP", json!(["1.2.3.4"]), 0)),
        TrafficPolicy::Local
    );
    assert_eq!(policy(&local("NodePort", json!([]), 0)), TrafficPolicy::Local);
    assert_eq!(
        local("NodePort", json!([]), 31_000).v4.unwrap().health_check(),
        None
    );
    let forgotten = local("LoadBalancer", json!([]), 0);
    assert_eq!(forgotten.problems[0].field, "spec.healthCheckNodePort");
}

#[test]
fn a_range_for_everybody_switches_ranges_off() {
    let mut spec = dual_stack();
    spec["loadBalancerSourceRanges"] = json!(["10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32"]);
    let converted = service_of(spec, json!({}));
    assert!(converted.v4.unwrap().source_ranges().is_none());
    assert_eq!(converted.v6.unwrap().source_ranges().unwrap().len(), 1);
}

#[test]
fn ranges_that_cannot_be_read_admit_nobody() {
    let ranges_of = |ranges: serde_json::Value| {
        let mut spec = dual_stack();
        spec["externalIPs"] = json!([]);
        spec["loadBalancerSourceRanges"] = ranges;
        let converted = service_of(spec, json!({}));
        let (four, six) = (converted.v4.unwrap(), converted.v6.unwrap());
        let number = (
            four.source_ranges().map(<[_]>::len),
            six.source_ranges().map(<[_]>::len),
        );
        let problems: Vec<String> = converted.problems.iter().map(ToString::to_string).collect();
        (number, problems)
    };
    let left_out =
        r#"Service ns/svc: spec.loadBalancerSourceRanges cannot be "10.2.0.0/99" and was left out"#;
    let nobody = |family: &str| {
        format!(
            "{left_out}; without a readable {family} range, its {family} load balancer addresses admit nobody"
        )
    };
    assert_eq!(
        ranges_of(json!(["10.2.0.0/99"])),
        ((Some(0), Some(0)), vec![nobody("IPv4"), nobody("IPv6")])
    );
    assert_eq!(
        ranges_of(json!(["10.2.0.0/99", "10.1.0.0/16"])),
        ((Some(1), Some(0)), vec![left_out.to_owned(), nobody("IPv6")])
    );
    assert_eq!(
        ranges_of(json!(["10.2.0.0/99", "0.0.0.0/0", "::/0"])),
        ((None, None), vec![left_out.to_owned()])
    );
    assert_eq!(ranges_of(json!(["10.1.0.0/16"])), ((Some(1), None), vec![]));
    assert_eq!(ranges_of(json!([""])), ((None, None), vec![]));
}

#[test]
fn ports_that_contradict_each_other_or_mean_nothing_are_left_out() {
    let converted = service_of(
        json!({"clusterIP": "10.0.0.1", "ports": [
            {"name": "a", "port": 80}, {"name": "b", "port": 80}, {"name": "a", "port": 81},
            {"name": "c", "port": 70000}, {"name": "d", "port": 82, "protocol": "ICMP"},
            {"name": "e", "port": 80, "protocol": "UDP", "nodePort": -1},
        ]}),
        json!({}),
    );
    let ports: Vec<String> = converted
        .v4
        .unwrap()
        .ports
        .iter()
        .map(|port| format!("{}/{}", port.name, port.protocol))
        .collect();
    assert_eq!(ports, ["a/tcp", "e/udp"]);
    assert_eq!(converted.problems.len(), 5);
}

#[test]
fn a_slice_keeps_first_addresses_and_fills_in_missing_conditions() {
    let converted = slice_of(json!({
        "metadata": {"namespace": "ns", "name": "s", "resourceVersion": "7",
            "labels": {SERVICE_NAME_LABEL: "svc"},
            "annotations": {TRIGGER_TIME_ANNOTATION: "2024-01-01T00:00:00Z"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}, {"name": "x", "port": null}, {"port": 81},
                  {"name": "zero", "port": 0}],
        "endpoints": [
            {"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": null, "nodeName": "n1"},
            {"addresses": []}, {"addresses": null}, {"addresses": ["nonsense"]}, {"addresses": ["fd00::1"]},
            {"addresses": ["010.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true},
             "hints": {"forZones": [{"name": "a"}], "forNodes": null}},
        ],
    }));
    let FamilySlice::V4(slice) = converted.slice else {
        panic!("not IPv4")
    };
    assert_eq!(slice.ports.len(), 1);
    assert_eq!(slice.endpoints.len(), 2);
    assert_eq!(slice.endpoints[0].conditions, Conditions::READY);
    assert_eq!(slice.endpoints[1].address.to_string(), "10.0.0.3");
    assert!(slice.endpoints[1].conditions.is_last_resort());
    assert_eq!(slice.endpoints[1].hints.as_ref().unwrap().zones.len(), 1);
    assert_eq!(converted.problems.len(), 2);
    assert_eq!(converted.trigger, Moment::parse("2024-01-01T00:00:00Z"));
}

#[test]
fn slices_of_host_names_headless_services_and_nobody_are_ignored() {
    let metadata = |labels| json!({"namespace": "ns", "name": "s", "labels": labels});
    for object in [
        json!({"metadata": metadata(json!({SERVICE_NAME_LABEL: "svc"})), "addressType": "FQDN"}),
        json!({"metadata": metadata(json!({})), "addressType": "IPv4"}),
        json!({"metadata": metadata(json!({SERVICE_NAME_LABEL: ""})), "addressType": "IPv4"}),
        json!({"metadata": metadata(json!({SERVICE_NAME_LABEL: "svc", HEADLESS_LABEL: ""})), "addressType": "IPv4"}),
    ] {
        assert!(matches!(slice_of(object).slice, FamilySlice::Ignored(_)));
    }
}

#[test]
fn a_go_encoded_empty_slice_with_nulls_is_read() {
    let converted = slice_of(json!({
        "metadata": {"namespace": "ns", "name": "s", "labels": {SERVICE_NAME_LABEL: "svc"}, "annotations": null},
        "addressType": "IPv6", "endpoints": null, "ports": null,
    }));
    assert!(matches!(converted.slice, FamilySlice::V6(slice) if slice.endpoints.is_empty()));
}

#[test]
fn an_endpoint_that_does_not_say_whether_it_serves_serves_if_it_is_ready() {
    let endpoint = |address: &str, conditions| json!({"addresses": [address], "conditions": conditions});
    let converted = slice_of(json!({
        "metadata": {"namespace": "ns", "name": "s", "labels": {SERVICE_NAME_LABEL: "svc"}},
        "addressType": "IPv4",
        "endpoints": [
            endpoint("10.0.0.1", json!({"ready": false, "terminating": true})),
            endpoint("10.0.0.2", json!({"ready": true, "terminating": true})),
            endpoint("10.0.0.3", json!({"ready": false, "serving": true, "terminating": true})),
            endpoint("10.0.0.4", json!({"serving": false})),
        ],
    }));
    let FamilySlice::V4(slice) = converted.slice else {
        panic!("not IPv4")
    };
    let serving: Vec<bool> = slice.endpoints.iter().map(|it| it.conditions.serving).collect();
    assert_eq!(serving, [false, true, true, false]);
    let last_resort: Vec<bool> = slice
        .endpoints
        .iter()
        .map(|it| it.conditions.is_last_resort())
        .collect();
    assert!(!last_resort[0] && last_resort[2], "{last_resort:?}");
}

#[test]
fn a_node_tells_zone_addresses_and_whether_it_is_going_away() {
    let node_of = |zone: &str, taint: &str, deletion: Option<&str>| {
        let object = json!({
            "metadata": {"name": "n1", "labels": {ZONE_LABEL: zone}, "deletionTimestamp": deletion},
            "spec": {"podCIDRs": ["10.0.1.0/24"], "taints": [{"key": taint, "effect": "NoSchedule"}]},
            "status": {"addresses": [
                {"type": "ExternalIP", "address": "1.2.3.4"}, {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "192.168.0.1"},
            ]},
        });
        node(&serde_json::from_value(object).unwrap())
    };
    let facts = node_of("a", "other", None);
    assert_eq!(facts.zone, Some("a".into()));
    assert_eq!(format!("{:?}", facts.addresses), "[192.168.0.1, 1.2.3.4]");
    assert_eq!(facts.pod_cidrs, ["10.0.1.0/24"]);
    assert!(facts.eligible);
    assert!(!node_of("a", "ToBeDeletedByClusterAutoscaler", None).eligible);
    let going = node_of("", "other", Some("2024-01-01T00:00:00Z"));
    assert_eq!((going.eligible, going.zone), (false, None));
}
