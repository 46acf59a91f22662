//! The readings of Services and EndpointSlices, the whole ones and the proxy's in [`compact`], agree on every field
//! they share, whatever the API sends: what one of them reads or refuses, so does the other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pointsman_objects::endpoint_slice::AddressType;
use pointsman_objects::metadata::Metadata;
use pointsman_objects::port::Protocol;
use pointsman_objects::{EndpointSlice, Service, WriteTimes, compact};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Some of the fields, each with one of its values.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            proptest::option::of(value).prop_map(move |value| Some((name.to_owned(), value?)))
        })
        .collect();
    fields
        .prop_map(|fields| fields.into_iter().flatten().collect())
        .boxed()
}

fn one_of(values: &[Value]) -> BoxedStrategy<Value> {
    proptest::sample::select(values.to_vec()).boxed()
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let items = proptest::collection::vec(item, 0..4).prop_map(Value::from);
    prop_oneof![1 => Just(Value::Null), 9 => items].boxed()
}

fn pairs() -> BoxedStrategy<Value> {
    let key = proptest::sample::select(vec![
        "app",
        "kubernetes.io/service-name",
        "service.kubernetes.io/headless",
        "service.kubernetes.io/service-proxy-name",
        "endpoints.kubernetes.io/last-change-trigger-time",
        "pointsman.io/last-change-time",
    ]);
    let map = proptest::collection::btree_map(
        key.prop_map(str::to_owned),
        one_of(&[
            json!("web"),
            json!(""),
            json!("2026-11-15T19:00:00.25Z"),
            Value::Null,
        ]),
        0..4,
    );
    prop_oneof![1 => Just(Value::Null), 9 => map.prop_map(|map| json!(map))].boxed()
}

fn metadata() -> BoxedStrategy<Value> {
    object(vec![
        ("name", one_of(&[json!("web"), json!("")])),
        ("namespace", one_of(&[json!("default"), json!("")])),
        ("resourceVersion", one_of(&[json!("17"), json!("x"), json!("")])),
        ("labels", pairs()),
        ("annotations", pairs()),
        (
            "creationTimestamp",
            one_of(&[
                json!("2026-11-15T19:00:00Z"),
                json!("2026-11-15T20:00:00.5+01:00"),
                json!("yesterday"),
                Value::Null,
            ]),
        ),
        (
            "deletionTimestamp",
            one_of(&[json!("2026-11-15T19:00:00Z"), json!("yesterday"), Value::Null]),
        ),
        (
            "managedFields",
            list(one_of(&[
                json!({"manager": "a", "time": "2026-11-15T19:00:02Z", "fieldsV1": {"f:spec": {}}}),
                json!({"manager": "b"}),
            ])),
        ),
    ])
}

fn service() -> BoxedStrategy<Value> {
    let port = object(vec![
        ("name", one_of(&[json!("http"), json!(""), Value::Null])),
        (
            "protocol",
            one_of(&[
                json!("TCP"),
                json!("UDP"),
                json!("SCTP"),
                json!("X"),
                json!(""),
                Value::Null,
            ]),
        ),
        ("port", one_of(&[json!(80), json!(53)])),
        ("targetPort", one_of(&[json!(8080), json!("http"), Value::Null])),
        ("nodePort", one_of(&[json!(0), json!(30080), Value::Null])),
    ]);
    let spec = object(vec![
        (
            "type",
            one_of(&[
                json!("ClusterIP"),
                json!("NodePort"),
                json!("ExternalName"),
                json!(""),
                Value::Null,
            ]),
        ),
        (
            "clusterIP",
            one_of(&[json!("10.0.0.1"), json!("None"), json!(""), Value::Null]),
        ),
        ("ipFamilies", list(one_of(&[json!("IPv4"), json!("IPv6")]))),
        ("selector", pairs()),
        ("ports", list(port)),
    ]);
    object(vec![
        ("metadata", metadata()),
        ("spec", prop_oneof![1 => Just(Value::Null), 9 => spec].boxed()),
    ])
}

fn slice() -> BoxedStrategy<Value> {
    let condition = || one_of(&[json!(true), json!(false), Value::Null]);
    let conditions = object(vec![
        ("ready", condition()),
        ("serving", condition()),
        ("terminating", condition()),
    ]);
    let hint = || list(one_of(&[json!({"name": "a"}), json!({"name": "b"})]));
    let endpoint = object(vec![
        (
            "addresses",
            list(one_of(&[
                json!("10.1.0.2"),
                json!("10.1.0.1"),
                json!("fd00::1"),
                json!("x"),
            ])),
        ),
        (
            "conditions",
            prop_oneof![1 => Just(Value::Null), 9 => conditions].boxed(),
        ),
        ("nodeName", one_of(&[json!("n1"), Value::Null])),
        (
            "hints",
            prop_oneof![
                Just(Value::Null),
                object(vec![("forZones", hint()), ("forNodes", hint())])
            ]
            .boxed(),
        ),
    ]);
    let port = object(vec![
        ("name", one_of(&[json!("http"), json!(""), Value::Null])),
        (
            "protocol",
            one_of(&[json!("TCP"), json!("UDP"), json!("X"), Value::Null]),
        ),
        ("port", one_of(&[json!(8080), Value::Null])),
    ]);
    object(vec![
        ("metadata", metadata()),
        (
            "addressType",
            one_of(&[json!("IPv4"), json!("IPv6"), json!("FQDN")]),
        ),
        ("endpoints", list(endpoint)),
        ("ports", list(port)),
    ])
}

fn metadata_agree<K>(whole: &Metadata<K>, proxys: &compact::Metadata) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (&*whole.namespace, &*whole.name),
        (&*proxys.namespace, &*proxys.name)
    );
    prop_assert_eq!(&*whole.resource_version, &*proxys.resource_version);
    prop_assert_eq!(whole.created, proxys.created);
    for (all, kept) in [
        (&whole.labels, &proxys.labels),
        (&*whole.annotations, &proxys.annotations),
    ] {
        let all: BTreeMap<&str, &str> = all.iter().collect();
        for (key, value) in kept {
            prop_assert!(all.get(&**key).is_none_or(|other| other == value), "{}", key);
        }
    }
    for key in [
        "kubernetes.io/service-name",
        "service.kubernetes.io/service-proxy-name",
    ] {
        prop_assert_eq!(
            whole.labels.get(key),
            proxys.labels.get(key).map(String::as_str),
            "{}",
            key
        );
    }
    Ok(())
}

fn protocol(text: Option<&String>) -> Protocol {
    match text.map(String::as_str) {
        None | Some("" | "TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => Protocol::Other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn both_readings_of_a_service_agree(service in service()) {
        let whole: Service = serde_json::from_value(service.clone()).expect("the controllers read it");
        let times: WriteTimes = serde_json::from_value(service["metadata"].clone()).unwrap_or_default();
        let proxys: compact::Service = serde_json::from_value(service).expect("the proxy reads it");
        metadata_agree(&whole.metadata, &proxys.metadata)?;
        prop_assert_eq!(times.written(), proxys.metadata.written());
        prop_assert_eq!(whole.kind.as_deref().unwrap_or_default(), &*proxys.spec.kind);
        prop_assert_eq!(&*whole.cluster_ip, &*proxys.spec.cluster_ip);
        let ports: Vec<_> = whole.ports.iter().map(|port| (&*port.name, port.protocol)).collect();
        let of_proxy = proxys.spec.ports.iter().map(|port| (&*port.name, protocol(port.protocol.as_ref())));
        prop_assert_eq!(ports, of_proxy.collect::<Vec<_>>());
    }

    #[test]
    fn both_readings_of_a_slice_agree(slice in slice()) {
        let whole: EndpointSlice = serde_json::from_value(slice.clone()).expect("the controllers read it");
        let proxys: compact::EndpointSlice = serde_json::from_value(slice).expect("the proxy reads it");
        metadata_agree(&whole.metadata, &proxys.metadata)?;
        if whole.address_type != AddressType::Other && !proxys.address_type.is_empty() {
            prop_assert_eq!(whole.address_type.name(), &*proxys.address_type);
        }
        prop_assert_eq!(whole.endpoints.len(), proxys.endpoints.len());
        for (whole, proxys) in whole.endpoints.iter().zip(&proxys.endpoints) {
            let mut addresses: Vec<IpAddr> = proxys.addresses.iter().filter_map(|text| text.parse().ok()).collect();
            addresses.sort();
            prop_assert_eq!(&*whole.addresses, &*addresses);
            prop_assert_eq!(whole.conditions, proxys.conditions);
            prop_assert_eq!(whole.node_name.as_deref(), proxys.node_name.as_deref());
            prop_assert_eq!(whole.hints.is_some(), proxys.hints.is_some());
            if let (Some(whole), Some(proxys)) = (&whole.hints, &proxys.hints) {
                for (whole, proxys) in [(&whole.zones, &proxys.for_zones), (&whole.nodes, &proxys.for_nodes)] {
                    let (whole, proxys) = (whole.iter().map(|name| &**name), proxys.iter().map(|hint| &*hint.name));
                    prop_assert_eq!(whole.collect::<Vec<_>>(), proxys.collect::<Vec<_>>());
                }
            }
        }
        let ports = proxys.ports.iter().map(|port| {
            (port.name.as_deref().unwrap_or_default(), protocol(port.protocol.as_ref()), port.port)
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort();
        let of_whole = whole.ports.iter().map(|port| (&*port.name, port.protocol, port.port.map(i64::from)));
        prop_assert_eq!(of_whole.collect::<Vec<_>>(), ports);
    }
}
