//! The two readings of a pod, [`Pod`] for the cluster and [`PodManifest`] for the node that runs it, agree on
//! every field they share, whatever the API sends.

use pointsman_objects::pod_manifest::{PodManifest, Verbatim};
use pointsman_objects::{Condition, Pod};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Fields with values of which some are absent, some `null` and some odd.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            proptest::option::of(value).prop_map(move |value| value.map(|value| (name, value)))
        })
        .collect();
    fields
        .prop_map(|fields| fields.into_iter().flatten().collect::<Vec<_>>())
        .prop_map(|fields| {
            fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        })
        .boxed()
}

fn one_of(values: &[Value]) -> BoxedStrategy<Value> {
    proptest::sample::select(values.to_vec()).boxed()
}

fn texts(words: &[&str]) -> BoxedStrategy<Value> {
    let words = words.iter().map(|word| json!(word)).chain([Value::Null]);
    one_of(&words.collect::<Vec<_>>())
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop_oneof![
        1 => Just(Value::Null),
        9 => proptest::collection::vec(item, 0..4).prop_map(Value::from),
    ]
    .boxed()
}

/// A map of labels or annotations.
fn pairs() -> BoxedStrategy<Value> {
    let key = proptest::sample::select(vec![
        "app",
        "pointsman.io/last-change-time",
        "pointsman.io/shutdown-gate",
        "controller.kubernetes.io/pod-deletion-cost",
        "example.com/large",
    ]);
    let map = proptest::collection::btree_map(key.prop_map(str::to_owned), "[a-z0-9:]{0,6}", 0..4);
    prop_oneof![1 => Just(Value::Null), 9 => map.prop_map(|map| json!(map))].boxed()
}

fn times() -> BoxedStrategy<Value> {
    texts(&["2026-11-15T19:00:00Z", "2026-11-15T20:00:01.5+01:00", "yesterday"])
}

fn metadata() -> BoxedStrategy<Value> {
    object(vec![
        ("name", one_of(&[json!("web-0"), json!("")])),
        ("namespace", one_of(&[json!("default"), json!("")])),
        ("uid", one_of(&[json!("u-1")])),
        ("resourceVersion", one_of(&[json!("17"), json!("x")])),
        ("generation", one_of(&[json!(3), Value::Null])),
        ("labels", pairs()),
        ("annotations", pairs()),
        ("deletionTimestamp", times()),
        (
            "deletionGracePeriodSeconds",
            one_of(&[json!(30), json!(-1), Value::Null]),
        ),
        (
            "ownerReferences",
            list(object(vec![
                ("uid", one_of(&[json!("o")])),
                ("controller", one_of(&[json!(true), Value::Null])),
            ])),
        ),
    ])
}

fn container() -> BoxedStrategy<Value> {
    object(vec![
        ("name", one_of(&[json!("a"), json!("b")])),
        ("image", texts(&["host"])),
        ("restartPolicy", texts(&["Always", "Never"])),
        (
            "ports",
            list(object(vec![
                ("name", texts(&["http", "dns", ""])),
                ("containerPort", one_of(&[json!(80), json!(70000)])),
                ("protocol", texts(&["TCP", "UDP"])),
            ])),
        ),
        (
            "env",
            list(object(vec![
                ("name", one_of(&[json!("A")])),
                ("value", texts(&["1"])),
            ])),
        ),
        (
            "readinessProbe",
            one_of(&[
                json!({"httpGet": {"port": "http"}, "periodSeconds": null}),
                json!({"tcpSocket": {"port": 80}}),
                Value::Null,
            ]),
        ),
        (
            "lifecycle",
            one_of(&[json!({"preStop": {"sleep": {"seconds": 1}}}), Value::Null]),
        ),
        (
            "resources",
            one_of(&[
                json!({"limits": {"cpu": "250m", "memory": 1000, "odd": true}, "requests": null}),
                Value::Null,
            ]),
        ),
    ])
}

fn spec() -> BoxedStrategy<Value> {
    object(vec![
        ("nodeName", texts(&["n1", ""])),
        ("hostname", texts(&["me", ""])),
        ("restartPolicy", texts(&["Never", "OnFailure"])),
        ("containers", list(container())),
        ("initContainers", list(container())),
        (
            "tolerations",
            list(object(vec![
                ("key", texts(&["k"])),
                ("operator", texts(&["Exists"])),
            ])),
        ),
        (
            "volumes",
            list(one_of(&[
                json!({"name": "v", "emptyDir": {}}),
                json!({"name": "v", "configMap": {"name": "c"}}),
                json!({"name": "v", "nfs": {"server": "s", "path": "/"}}),
            ])),
        ),
    ])
}

fn status() -> BoxedStrategy<Value> {
    object(vec![
        (
            "phase",
            texts(&["Pending", "Running", "Succeeded", "Failed", "Unknown", "", "Odd"]),
        ),
        ("podIP", texts(&["10.0.0.5", ""])),
        (
            "podIPs",
            list(object(vec![(
                "ip",
                one_of(&[json!("10.0.0.5"), json!("fd00::5"), json!("odd")]),
            )])),
        ),
        (
            "conditions",
            list(object(vec![
                (
                    "type",
                    one_of(&[json!("Ready"), json!("PodScheduled"), json!("example.com/gate")]),
                ),
                ("status", texts(&["True", "False", "Unknown", "Odd"])),
                ("lastTransitionTime", times()),
                ("reason", texts(&["Because"])),
            ])),
        ),
        (
            "containerStatuses",
            list(object(vec![
                ("name", one_of(&[json!("a")])),
                ("restartCount", one_of(&[json!(0), json!(7), Value::Null])),
                (
                    "state",
                    one_of(&[
                        json!({"running": {"startedAt": "2026-11-15T19:00:00Z"}}),
                        json!({"terminated": {"exitCode": 1, "signal": null}}),
                        Value::Null,
                    ]),
                ),
            ])),
        ),
    ])
}

/// Every field that both readings have.
fn check(text: &str) -> Result<(), TestCaseError> {
    let pod: Pod = serde_json::from_str(text).expect("read by the cluster");
    let manifest: Verbatim<PodManifest> = serde_json::from_str(text).expect("read by the node");
    prop_assert_eq!(manifest.text.get(), text);
    let manifest = manifest.object.expect("understood by the node");
    let (left, right) = (&pod.metadata, &manifest.metadata);
    prop_assert_eq!(
        (&left.name, &left.namespace, &left.uid),
        (&right.name, &right.namespace, &right.uid)
    );
    prop_assert_eq!(
        (left.revision(), left.generation),
        (right.revision(), right.generation)
    );
    prop_assert_eq!(&left.labels, &right.labels);
    for (name, value) in left.annotations.iter() {
        prop_assert_eq!(right.annotations.get(name), Some(value));
    }
    prop_assert_eq!(
        (left.deletion, left.deletion_requested(), left.controller()),
        (right.deletion, right.deletion_requested(), right.controller())
    );
    let spec = &manifest.spec;
    prop_assert_eq!(pod.node_name.as_deref().unwrap_or_default(), &spec.node_name);
    prop_assert_eq!(pod.hostname.as_deref().unwrap_or_default(), &spec.hostname);
    let ports = spec
        .containers
        .iter()
        .chain(manifest.sidecars())
        .flat_map(|container| &container.ports);
    let named: Vec<(&str, i64)> = ports
        .filter(|port| !port.name.is_empty())
        .map(|port| (port.name.as_str(), port.container_port))
        .collect();
    let compact: Vec<(&str, i64)> = pod
        .common
        .named_ports
        .iter()
        .map(|port| (&*port.name, port.port.into()))
        .collect();
    prop_assert_eq!(compact, named);
    let status = &manifest.status;
    prop_assert_eq!(pod.phase, status.phase);
    for (kind, compact) in [
        ("Ready", pod.ready_condition),
        ("PodScheduled", pod.scheduled_condition),
    ] {
        let full = status.condition(kind).map(|condition| Condition {
            status: condition.status,
            changed: condition.last_transition_time.map(Into::into),
        });
        prop_assert_eq!(compact, full, "{}", kind);
    }
    let restarts = status
        .container_statuses
        .iter()
        .map(|container| container.restart_count);
    prop_assert_eq!(pod.restarts, restarts.max().unwrap_or(0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn both_readings_of_a_pod_agree(pod in object(vec![("metadata", metadata()), ("spec", spec()), ("status", status())])) {
        check(&pod.to_string())?;
    }
}

#[test]
fn a_pod_that_cannot_be_read_is_still_there() {
    let text = r#"{"metadata": {"name": "web-0"}, "spec": {"containers": 7}}"#;
    let read: Verbatim<PodManifest> = serde_json::from_str(text).expect("JSON");
    assert_eq!(read.text.get(), text);
    assert!(
        read.object
            .is_err_and(|error| error.contains("expected a sequence"))
    );
}
