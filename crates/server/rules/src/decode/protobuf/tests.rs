use super::*;
use crate::decode::memory::{MAP, VALUE};
use crate::decode::{BodyFormat, MAX_MEMORY, decode};
use crate::schema;
use proptest::prelude::*;
use serde_json::json;

/// Objects written by Go; see `testdata/README.md`.
const GOLDEN: &str = include_str!("../../../testdata/protobuf.txt");

struct Golden {
    name: String,
    shape: &'static ObjectType,
    body: Vec<u8>,
    json: &'static str,
}

fn golden() -> Vec<Golden> {
    GOLDEN.lines().map(golden_line).collect()
}

fn golden_line(line: &'static str) -> Golden {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().unwrap();
    let (api_version, kind, hex, json) = (word(), word(), word(), word());
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let shape = match kind {
        "DeleteOptions" => schema::delete_options(),
        _ => schema::named(group, version, kind).unwrap(),
    };
    let body = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    Golden {
        name: format!("{api_version} {kind}"),
        shape,
        body,
        json,
    }
}

fn named(group: &str, kind: &str) -> &'static ObjectType {
    schema::named(group, "v1", kind).unwrap()
}

/// Writes protobuf without knowing the reader's code.
#[derive(Clone, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn int(self, number: u64, value: i64) -> Self {
        self.varint(number << 3).varint(value.cast_unsigned())
    }

    fn bytes(self, number: u64, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        let mut written = self.varint(number << 3 | 2).varint(value.len() as u64);
        written.0.extend_from_slice(value);
        written
    }

    fn message(self, number: u64, inner: Writer) -> Self {
        self.bytes(number, inner.0)
    }

    fn body(self, api_version: &str, kind: &str) -> Vec<u8> {
        let type_meta = new().bytes(1, api_version).bytes(2, kind);
        let envelope = new()
            .message(1, type_meta)
            .message(2, self)
            .bytes(3, "")
            .bytes(4, "");
        [MAGIC, &envelope.0].concat()
    }

    fn pod(self) -> Result<Decoded, ApiError> {
        decode(&self.body("v1", "Pod"), BodyFormat::Protobuf, named("", "Pod"))
    }
}

fn new() -> Writer {
    Writer::default()
}

fn pod_error(writer: Writer) -> String {
    let error = writer.pod().unwrap_err();
    assert_eq!(error.code(), 400);
    error.to_string()
}

#[test]
fn bodies_of_go_clients_decode_to_what_their_json_decodes_to() {
    for golden in golden() {
        let protobuf = decode(&golden.body, BodyFormat::Protobuf, golden.shape).unwrap();
        let json = decode(golden.json.as_bytes(), BodyFormat::Json, golden.shape).unwrap();
        assert_eq!(protobuf, json, "{}", golden.name);
        assert!(protobuf.strict.is_empty(), "{}", golden.name);
    }
}

#[test]
fn a_schema_in_a_definition_decodes_to_what_its_json_would_be() {
    let raw = |json: &str| new().bytes(1, json);
    let double = |value: f64| value.to_bits().to_le_bytes();
    let mut number = new()
        .bytes(5, "number")
        .message(8, raw("5"))
        .message(20, raw("5"));
    number = number.message(20, raw("7")).varint(9 << 3 | 1);
    number.0.extend_from_slice(&double(9.5));
    let text = new()
        .bytes(5, "string")
        .int(14, 0)
        .int(37, 1)
        .message(44, new().bytes(1, "self"));
    let list = new()
        .bytes(5, "array")
        .message(24, new().message(1, text.clone()));
    let entry = |key: &str, value: Writer| new().bytes(1, key).message(2, value);
    let closed = new().int(1, 0);
    let schema = new()
        .bytes(5, "object")
        .message(29, entry("n", number))
        .message(29, entry("list", list))
        .message(29, entry("any", new().int(38, 1).message(30, new().int(1, 1))))
        .message(
            29,
            entry("free", new().message(30, new().int(1, 0).message(2, text))),
        )
        .message(30, closed);
    let version = new().bytes(1, "v1").message(4, new().message(1, schema));
    let body = new().message(2, new().message(7, version));
    let body = body.body("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let shape = named("apiextensions.k8s.io", "CustomResourceDefinition");
    let decoded = decode(&body, BodyFormat::Protobuf, shape).unwrap();
    assert!(decoded.strict.is_empty(), "{:?}", decoded.strict);
    let text = json!({"type": "string", "minLength": 0, "nullable": true, "x-kubernetes-validations": [{"rule": "self"}]});
    assert_eq!(
        decoded.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
        json!({"type": "object", "additionalProperties": false, "properties": {
            "n": {"type": "number", "default": 5, "enum": [5, 7], "maximum": 9.5},
            "list": {"type": "array", "items": text},
            "any": {"x-kubernetes-preserve-unknown-fields": true, "additionalProperties": true},
            "free": {"additionalProperties": text},
        }})
    );
}

#[test]
fn zeros_that_someone_set_survive_and_unset_fields_stay_away() {
    let find = |name: &str| {
        let golden = golden().into_iter().find(|golden| golden.name == name).unwrap();
        decode(&golden.body, BodyFormat::Protobuf, golden.shape)
            .unwrap()
            .object
    };
    let deployment = find("apps/v1 Deployment");
    assert_eq!(deployment["spec"]["replicas"], json!(0));
    assert_eq!(deployment["spec"].get("paused"), None);
    assert_eq!(deployment["spec"]["strategy"], json!({}));
    assert_eq!(deployment["metadata"].get("creationTimestamp"), None);
    let pod = find("v1 Pod");
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], json!(0));
    assert_eq!(pod["spec"]["shareProcessNamespace"], json!(false));
    assert_eq!(pod["spec"].get("hostNetwork"), None);
    assert_eq!(pod["spec"].get("nodeName"), None);
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "v", "emptyDir": {}}]));
    let slice = find("discovery.k8s.io/v1 EndpointSlice");
    assert_eq!(slice["ports"][0]["name"], json!(""));
    assert_eq!(
        slice["endpoints"][1]["conditions"],
        json!({"ready": false, "serving": false, "terminating": true})
    );
    let options = find("v1 DeleteOptions");
    assert_eq!(options["gracePeriodSeconds"], json!(0));
    let eviction = find("policy/v1 Eviction");
    assert_eq!(eviction["deleteOptions"], json!({"gracePeriodSeconds": 0}));
}

#[test]
fn all_fields_but_our_own_have_numbers() {
    let type_meta = ["apiVersion", "kind"];
    for shape in schema::schema().types() {
        if shape.id.starts_with("io.openshift.") || shape.open {
            continue;
        }
        for field in shape.fields() {
            let in_the_envelope = shape.served_as.is_some() && type_meta.contains(&field.name);
            let json_only = in_the_envelope || field.name.ends_with("Milliseconds");
            assert_eq!(field.protobuf.is_none(), json_only, "{}.{}", shape.id, field.name);
        }
    }
}

#[test]
fn negative_numbers_are_ten_bytes_and_packed_lists_are_read() {
    let groups = new().varint(7).varint(u64::MAX);
    let security = new().int(2, -1).bytes(4, groups.0).int(4, 9);
    let pod = new().message(2, new().int(4, -1).message(14, security)).pod();
    let spec = &pod.unwrap().object["spec"];
    assert_eq!(spec["terminationGracePeriodSeconds"], json!(-1));
    assert_eq!(
        spec["securityContext"],
        json!({"runAsUser": -1, "supplementalGroups": [7, -1, 9]})
    );
    let range = new().message(
        2,
        new().message(2, new().bytes(1, "c").message(6, new().int(3, 1 << 40))),
    );
    assert!(pod_error(range).contains("expected int32, got number 1099511627776"));
}

#[test]
fn unknown_numbers_are_reported_unless_they_hold_nothing() {
    let metadata = new().bytes(1, "p").bytes(900, "").int(901, 0);
    let container = new().bytes(1, "c").bytes(900, "x");
    let decoded = new()
        .message(1, metadata)
        .message(2, new().int(99, 1).message(2, container))
        .int(77, 5)
        .pod()
        .unwrap();
    assert_eq!(
        decoded.strict.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "unknown field number 99 in spec",
            "unknown field number 900 in spec.containers[0]",
            "unknown field number 77",
        ]
    );
    assert_eq!(
        decoded.object,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    );
}

#[test]
fn of_a_field_sent_twice_the_last_counts() {
    let decoded = new()
        .message(1, new().bytes(1, "a").bytes(1, "b").bytes(3, "n").bytes(3, ""))
        .pod();
    let decoded = decoded.unwrap();
    assert_eq!(decoded.object["metadata"], json!({"name": "b"}));
    assert_eq!(
        decoded.strict,
        [
            StrictError::Duplicate("metadata.name".into()),
            StrictError::Duplicate("metadata.namespace".into())
        ]
    );
}

#[test]
fn an_object_of_another_kind_is_refused() {
    let refused = |api_version: &str, kind: &str, shape| {
        let body = new().body(api_version, kind);
        decode(&body, BodyFormat::Protobuf, shape).map_err(|error| error.to_string())
    };
    assert_eq!(
        refused("v1", "Service", named("", "Pod")).unwrap_err(),
        "Service in version \"v1\" cannot be handled as a Pod in version \"v1\""
    );
    assert!(refused("events.k8s.io/v1", "Event", named("", "Event")).is_err());
    assert!(refused("apps/v1", "DeleteOptions", schema::delete_options()).is_ok());
    assert!(refused("apps/v1", "Deployment", schema::delete_options()).is_err());
    assert_eq!(refused("", "", named("", "Pod")).unwrap().object, json!({}));
}

#[test]
fn malformed_bodies_are_refused_with_the_place() {
    let envelope = |rest: &[u8]| [MAGIC, rest].concat();
    for (body, part) in [
        (b"".to_vec(), "at byte 0: it does not start with"),
        (b"{}".to_vec(), "at byte 0: it does not start with"),
        (envelope(&[0x0a]), "at byte 5: a number is cut off"),
        (
            envelope(&[0x12, 0x05, 1]),
            "at byte 6: a length of 5 is more than the 1 bytes",
        ),
        (
            envelope(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
            "a length of 18446744073709551615",
        ),
        (envelope(&[0xff; 12]), "at byte 4: a number is too long"),
        (envelope(&[0x00]), "at byte 4: 0 is not a field number"),
        (envelope(&[0x13]), "at byte 4: 3 is not a wire type in use"),
        (
            envelope(&[0x10, 0x00]),
            "at byte 4: field 2 should hold a message",
        ),
        (envelope(&new().bytes(3, "gzip").0), "it is compressed"),
        (
            envelope(&new().bytes(4, "application/json").0),
            "the envelope holds another format",
        ),
        (
            envelope(&new().message(2, new().int(1, 1)).0),
            "field 1 should hold",
        ),
    ] {
        let error = decode(&body, BodyFormat::Protobuf, named("", "Pod")).unwrap_err();
        assert_eq!(error.code(), 400);
        let message = error.to_string();
        assert!(
            message.starts_with("the body of the request is not valid protobuf: ") && message.contains(part),
            "{message}"
        );
    }
    assert!(pod_error(new().message(1, new().bytes(1, [0xff]))).contains("text is not UTF-8"));
    let late = new().message(8, new().int(1, i64::MAX));
    assert!(pod_error(new().message(1, late)).contains("a time is out of range"));
}

#[test]
fn embedded_json_is_checked_for_depth() {
    let entry = |raw: &str| new().message(1, new().message(17, new().message(7, new().bytes(1, raw))));
    let decoded = entry(r#"{"f:a":{}}"#).pod().unwrap();
    assert_eq!(
        decoded.object["metadata"]["managedFields"],
        json!([{"fieldsV1": {"f:a": {}}}])
    );
    let deep = format!("{}{}", "[".repeat(98), "]".repeat(98));
    assert!(pod_error(entry(&deep)).contains("nested deeper than 100 levels"));
    assert!(pod_error(entry("{")).contains("it should be JSON"));
    let empty = entry("").pod().unwrap();
    assert_eq!(empty.object["metadata"]["managedFields"], json!([{}]));
}

#[test]
fn a_body_that_would_need_much_memory_is_refused() {
    let mut containers = new();
    for _ in 0..=MAX_MEMORY / (VALUE + MAP) {
        containers = containers.bytes(2, "");
    }
    let error = new().message(2, containers).pod().map(drop).unwrap_err();
    assert_eq!(error.code(), 413);
    assert!(error.to_string().contains("more than 16 MiB"), "{error}");
}

#[test]
fn values_of_embedded_json_are_weighed_with_the_others() {
    let json = format!("[{}0]", "0,".repeat(MAX_MEMORY / VALUE / 2));
    let fields = || new().message(17, new().message(7, new().bytes(1, &json)));
    assert!(new().message(1, fields()).pod().is_ok());
    let twice = [fields().0, fields().0].concat();
    let error = new().message(1, Writer(twice)).pod().map(drop).unwrap_err();
    assert_eq!(error.code(), 413, "{error}");
}

#[test]
fn protobuf_needs_a_kind_to_be_read() {
    let error = crate::decode::read(&new().body("v1", "Pod"), BodyFormat::Protobuf).unwrap_err();
    assert_eq!(error.code(), 415);
}

#[test]
fn every_beginning_of_a_body_is_read_or_refused() {
    for golden in golden() {
        for end in 0..golden.body.len() {
            let _ = decode(&golden.body[..end], BodyFormat::Protobuf, golden.shape);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_are_read_or_refused(
        rest in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
    ) {
        let types = schema::schema().types();
        let shape = &types[at.index(types.len())];
        let _ = decode(&rest, BodyFormat::Protobuf, shape);
        let _ = decode(&Writer(rest).body("", ""), BodyFormat::Protobuf, shape);
    }

    #[test]
    fn what_is_left_of_a_damaged_body_is_refused_or_a_proper_object(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let lines: Vec<&'static str> = GOLDEN.lines().collect();
        let Golden { shape, mut body, .. } = golden_line(lines[which.index(lines.len())]);
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(decoded) = decode(&body, BodyFormat::Protobuf, shape) {
            let text = decoded.object.to_string();
            let again = decode(text.as_bytes(), BodyFormat::Json, shape).unwrap();
            prop_assert_eq!(again.object, decoded.object);
        }
    }
}
