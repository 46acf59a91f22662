//! Laws of definitions and their objects.

use super::{conflict, define, definition, remove, schema, served};
use crate::kind::Kind;
use crate::strategy::Part;
use crate::strategy::testing::{created, updated};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A definition as it is stored, with its names accepted.
fn definition(group: &str, versions: Value) -> Value {
    json!({
        "metadata": {"name": format!("widgets.{group}"), "uid": "u"},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": versions,
        },
    })
}

fn version(name: &str, storage: bool, schema: Value) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema},
           "subresources": {"status": {}}})
}

fn widget() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1, "description": "How large."},
            "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
            "code": {"type": "string", "pattern": "^[a-z]+$"},
        }},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }})
}

/// The definition with what the server adds when it is created.
fn accepted(definition: Value) -> Value {
    let (stored, errors) = created(crate::kinds::CUSTOM_RESOURCE_DEFINITION.strategy, definition);
    assert_eq!(errors, Vec::<String>::new());
    stored
}

#[test]
fn a_definition_becomes_rows_and_its_removal_takes_them_away() {
    let old = version("v1beta1", false, widget());
    let stored = accepted(definition(
        "rows.example",
        json!([old, version("v1", true, widget())]),
    ));
    let outcome = define(&stored).unwrap().unwrap();
    let newest = Kind::by_resource("rows.example", "v1", "widgets").unwrap();
    let older = Kind::by_type("rows.example/v1beta1", "Widget").unwrap();
    assert_eq!((outcome.stored, outcome.restored), (newest, false));
    assert_eq!(older.stored(), newest);
    assert_eq!(Kind::by_store_key("rows.example", "widgets"), Some(newest));
    assert_eq!(newest.index(), older.index());
    // The same definition makes the same rows.
    define(&stored).unwrap();
    assert_eq!(Kind::by_resource("rows.example", "v1", "widgets"), Some(newest));
    let other = definition("rows.example", json!([version("v1", true, widget())]));
    assert!(conflict(&other).is_none(), "it is the same definition");
    let mut other = other;
    other["metadata"]["name"] = json!("gadgets.rows.example");
    other["spec"]["names"]["plural"] = json!("gadgets");
    assert_eq!(conflict(&other).unwrap().field, "spec.names.kind");
    assert!(remove(&stored).unwrap().restored);
    assert_eq!(Kind::by_resource("rows.example", "v1", "widgets"), None);
    assert!(!served().iter().any(|kind| kind.group == "rows.example"));
}

#[test]
fn objects_are_pruned_filled_in_and_checked() {
    define(&accepted(definition(
        "checked.example",
        json!([version("v1", true, widget())]),
    )))
    .unwrap();
    let kind = Kind::by_resource("checked.example", "v1", "widgets").unwrap();
    let mut object =
        json!({"metadata": {"name": "a"}, "spec": {"size": 2, "x": 1}, "y": {}, "status": {"z": 1}});
    let pruned: Vec<String> = kind
        .strategy
        .prune(&mut object)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(pruned, ["unknown field \"y\"", "unknown field \"spec.x\""]);
    let (stored, errors) = created(kind.strategy, object);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(
        stored,
        json!({"metadata": {"name": "a"}, "spec": {"size": 2, "color": "red"}})
    );
    let wrong = json!({"spec": {"size": 0, "color": "green", "code": "A"}});
    assert_eq!(
        created(kind.strategy, wrong).1,
        [
            "spec.code: Invalid value: \"A\": spec.code in body should match '^[a-z]+$'",
            "spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ]
    );
    assert_eq!(
        created(kind.strategy, json!({"spec": {}})).1,
        ["spec.size: Required value"]
    );
    let status = json!({"spec": {"size": 9}, "status": {"ready": true}});
    let (after, _) = updated(kind.strategy, status, &stored, Part::Status);
    assert_eq!(after["spec"], stored["spec"]);
    assert_eq!(after["status"], json!({"ready": true}));
    assert!(
        kind.strategy
            .bumps_generation(&json!({"spec": {"size": 3}}), &stored)
    );
}

#[test]
fn unsound_definitions_are_refused_with_the_field() {
    let refused = |definition: &Value| -> Vec<String> {
        definition::validate(definition)
            .iter()
            .map(|error| error.field.clone())
            .collect()
    };
    let sound = accepted(definition(
        "sound.example",
        json!([version("v1", true, widget())]),
    ));
    assert_eq!(refused(&sound), Vec::<String>::new());
    let with = |path: &str, value: Value| {
        let mut changed = sound.clone();
        *changed.pointer_mut(path).unwrap() = value;
        refused(&changed)
    };
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    let place = "spec.versions[0].schema.openAPIV3Schema";
    assert_eq!(with("/spec/versions/0/storage", json!(false)), ["spec.versions"]);
    assert_eq!(
        with(schema, json!({"type": "object", "properties": {"a": {}}})),
        [format!("{place}.properties[a].type")]
    );
    assert_eq!(
        with(schema, json!({"type": "object", "$ref": "#"})),
        [format!("{place}.$ref")]
    );
    let pattern =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a{1000}){1000}"}}});
    assert_eq!(with(schema, pattern), [format!("{place}.properties[a].pattern")]);
    let default = json!({"type": "object", "properties": {"a": {"type": "string", "default": 1}}});
    assert_eq!(with(schema, default), [format!("{place}.properties[a].default")]);
    let mut hook = sound.clone();
    hook["spec"]["conversion"] = json!({"strategy": "Webhook"});
    assert_eq!(refused(&hook), ["spec.conversion.strategy"]);
    let mut deep = json!({"type": "object"});
    for _ in 0..70 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(with(schema, deep)[0].starts_with(place));
    let wide: serde_json::Map<String, Value> = (0..60_000)
        .map(|at| (at.to_string(), json!({"type": "string"})))
        .collect();
    assert_eq!(
        with(schema, json!({"type": "object", "properties": wide})),
        [place]
    );
}

#[test]
fn alternatives_within_alternatives_cost_a_bounded_number_of_steps() {
    let never = json!({"type": "string", "enum": ["never"]});
    let explosive = json!({"type": "array", "items": {"anyOf": vec![never; 20_000]}});
    let started = std::time::Instant::now();
    let errors = schema::validate(
        &Value::from(vec!["a"; 100]),
        &explosive,
        &schema::Patterns::default(),
    );
    assert!(
        errors
            .iter()
            .any(|error| error.to_string().contains("takes too long"))
    );
    assert!(started.elapsed().as_secs() < 20);
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string", "default": "d", "minLength": 1})),
        Just(json!({"type": "integer", "maximum": 3})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"x-kubernetes-int-or-string": true, "nullable": true})),
        Just(json!({"type": 7, "enum": {}, "required": "a", "properties": []})),
        Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let fields = prop::collection::btree_map("[ab]", inner.clone(), 0..3);
        prop_oneof![
            fields.prop_map(|fields| json!({"type": "object", "properties": fields, "required": ["a"]})),
            inner
                .clone()
                .prop_map(|items| json!({"type": "array", "items": items, "x-kubernetes-list-type": "set"})),
            inner
                .clone()
                .prop_map(|values| json!({"type": "object", "additionalProperties": values})),
            prop::collection::vec(inner, 0..3)
                .prop_map(|parts| json!({"anyOf": parts, "not": {"type": "array"}})),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!(2)),
        Just(json!("")),
        Just(json!(true))
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::btree_map("[abc]", inner.clone(), 0..3).prop_map(|fields| json!(fields)),
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

proptest! {
    #[test]
    fn no_schema_panics_and_what_was_pruned_and_filled_in_stays_so(schema in any_schema(), object in any_object()) {
        let _ = definition::validate(&definition("any.example", json!([version("v1", true, schema.clone())])));
        let mut once = object;
        schema::prune(&mut once, &schema, "", true, &mut Vec::new());
        schema::fill_in(&mut once, &schema);
        let mut twice = once.clone();
        let mut pruned = Vec::new();
        schema::prune(&mut twice, &schema, "", true, &mut pruned);
        schema::fill_in(&mut twice, &schema);
        prop_assert_eq!(&once, &twice);
        let _ = schema::validate(&once, &schema, &schema::Patterns::default());
    }
}
