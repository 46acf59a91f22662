//! Bodies of requests, in JSON and YAML, on their way to the store.
//!
//! The first byte chooses the kind and the format, the rest is the body.

use jiff::Timestamp;
use pointsman_model::FeatureGates;
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_rules::decode::{self, BodyFormat, FieldValidation};
use pointsman_rules::kind::Kind;
use pointsman_rules::strategy::{ClusterSettings, Context, IpRange, Part};
use pointsman_rules::{kinds, meta, schema};
use serde_json::Value;
use std::net::Ipv4Addr;

pub(crate) fn run(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else {
        return;
    };
    let kind = kinds::ALL[usize::from(choice / 2) % kinds::ALL.len()];
    let format = if choice % 2 == 0 {
        BodyFormat::Json
    } else {
        BodyFormat::Yaml
    };
    let shape = schema::of(kind);
    let Ok(decoded) = decode::decode(body, format, shape) else {
        return;
    };
    assert_settled(&decoded.object, kind);
    let strict = decoded.strict.is_empty();
    let (object, warnings) = FieldValidation::Warn
        .apply(decoded, kind)
        .expect("warnings refuse nothing");
    assert_eq!(warnings.is_empty(), strict);
    store(object, kind);
}

/// A decoded object is what decoding makes of it, so that a client that sends back what it got changes nothing.
pub(crate) fn assert_settled(object: &Value, kind: &Kind) {
    let text = serde_json::to_vec(object).expect("values are JSON");
    let again = decode::decode(&text, BodyFormat::Json, schema::of(kind))
        .unwrap_or_else(|error| panic!("what was decoded is refused: {error:?}\n{object}"));
    assert_eq!(&again.object, object, "reading an object again changes it");
}

/// Runs an object through all rules of its kind; none of them may panic on what has passed the schema.
fn store(mut object: Value, kind: &Kind) {
    if !object.is_object() {
        return;
    }
    let gates = FeatureGates::default();
    let cluster = ClusterSettings {
        service_ranges: vec![IpRange {
            network: Ipv4Addr::new(10, 0, 0, 0).into(),
            prefix: 16,
        }],
        node_ports: (30000, 32767),
    };
    let context = Context {
        now: Timestamp::UNIX_EPOCH,
        gates: &gates,
        cluster: &cluster,
    };
    let rules = kind.strategy;
    rules.default(&mut object, &context);
    let mut again = object.clone();
    rules.default(&mut again, &context);
    assert_eq!(again, object, "filling in defaults twice is not the same as once");
    rules.admit(&mut object, TolerationSeconds::default());
    rules.prepare_create(&mut object, &context);
    let mut errors = meta::validate_meta(&object, kind, rules.name_rule(), "metadata");
    errors.extend(rules.validate_create(&object, &context));
    for error in &errors {
        let _ = error.to_string();
    }
    let _ = rules.warnings(&object);
    for field in kind.selectable {
        let _ = rules.selectable(&object, field);
    }
    let _ = rules.grace(&object, Some(i64::MAX));
    let cells = kind.printer.cells(&object, context.now);
    assert_eq!(
        cells.len(),
        kind.printer.columns.len(),
        "one cell for each column"
    );
    for part in [Part::Main, Part::Status] {
        let mut new = object.clone();
        rules.prepare_update(&mut new, &object, part, &context);
        let changed = meta::validate_meta_update(&new, &object);
        let refused = rules.validate_update(&new, &object, part, &context);
        if errors.is_empty() && part == Part::Main {
            assert!(
                changed.is_empty() && refused.is_empty(),
                "{changed:?} {refused:?}\n{object}"
            );
            assert!(
                !rules.bumps_generation(&new, &object),
                "nothing changed\n{object}"
            );
        }
    }
}
