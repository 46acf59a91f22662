//! Laws of definitions and their objects.

use super::schema::{Patterns, Schema};
use super::{check, conflict, define, definition, filled_in, remove, schema, served, shows_anew};
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
    assert!(shows_anew(&stored));
    let kind = define(&stored).unwrap().unwrap();
    assert!(!shows_anew(&stored));
    let newest = Kind::by_resource("rows.example", "v1", "widgets").unwrap();
    let older = Kind::by_type("rows.example/v1beta1", "Widget").unwrap();
    assert_eq!(kind, newest);
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
    assert_eq!(remove(&stored), Some(newest));
    assert_eq!(Kind::by_resource("rows.example", "v1", "widgets"), None);
    assert!(!served().iter().any(|kind| kind.group == "rows.example"));
}

#[test]
fn objects_are_shown_anew_when_their_version_or_a_default_changes_and_only_then() {
    let with = |version_name: &str, schema: Value| {
        accepted(definition(
            "anew.example",
            json!([version(version_name, true, schema)]),
        ))
    };
    define(&with("v1", widget())).unwrap();
    let mut schema = widget();
    schema["properties"]["spec"]["properties"]["color"]["enum"] = json!(["red", "green"]);
    assert!(!shows_anew(&with("v1", schema.clone())));
    assert!(shows_anew(&with("v2", schema.clone())));
    schema["properties"]["spec"]["properties"]["color"]["default"] = json!("green");
    assert!(shows_anew(&with("v1", schema.clone())));
    define(&with("v1", schema)).unwrap();
    let kind = Kind::by_resource("anew.example", "v1", "widgets").unwrap();
    let shown = |stored: Value| filled_in(kind, stored.to_string().as_bytes());
    assert_eq!(
        shown(json!({"spec": {"size": 1}})),
        Some(json!({"spec": {"size": 1, "color": "green"}}))
    );
    assert_eq!(shown(json!({"spec": {"color": "red"}})), None);
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
    let errors = check::validate(
        &Value::from(vec!["a"; 100]),
        &Schema::new(&explosive),
        &Patterns::default(),
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
        let schema = Schema::new(&schema);
        let mut once = object;
        schema::prune(&mut once, &schema, "", true, &mut Vec::new());
        schema::fill_in(&mut once, &schema);
        let mut twice = once.clone();
        let mut pruned = Vec::new();
        schema::prune(&mut twice, &schema, "", true, &mut pruned);
        schema::fill_in(&mut twice, &schema);
        prop_assert_eq!(&once, &twice);
        let _ = check::validate(&once, &schema, &Patterns::default());
    }
}

#[test]
fn defaults_patterns_lists_and_rows_are_bounded() {
    // Ten items with defaults of ten items each, and so on: 10^7 values.
    let mut inner = json!({"type": "object", "properties": {"x": {"type": "string", "default": "y"}}});
    for _ in 0..7 {
        let items = vec![json!({}); 10];
        inner = json!({"type": "object", "properties": {"l": {"type": "array", "default": items, "items": inner}}});
    }
    let mut grows = json!({});
    assert!(!schema::fill_in(&mut grows, &Schema::new(&inner)));
    define(&accepted(definition(
        "grows.example",
        json!([version("v1", true, inner)]),
    )))
    .unwrap();
    let kind = Kind::by_resource("grows.example", "v1", "widgets").unwrap();
    let (_, errors) = created(kind.strategy, json!({"metadata": {"name": "a"}}));
    assert!(errors[0].contains("make it too large"), "{errors:?}");
    let old = json!({"metadata": {"name": "a"}});
    for part in [Part::Main, Part::Status] {
        let (_, errors) = updated(kind.strategy, old.clone(), &old, part);
        assert!(
            errors.iter().any(|error| error.contains("make it too large")),
            "{part:?}: {errors:?}"
        );
    }
    let faults = |definition: Value| -> Vec<String> {
        created(crate::kinds::CUSTOM_RESOURCE_DEFINITION.strategy, definition).1
    };
    let patterned = |name: &str, storage: bool| {
        let properties: serde_json::Map<String, Value> = (0..60)
            .map(|n| (format!("p{n}"), json!({"type": "string", "pattern": format!("{n}[a-z]{{1,900}}[b-y]{{1,900}}[c-x]{{1,900}}[d-w]{{1,900}}")})))
            .collect();
        version(name, storage, json!({"type": "object", "properties": properties}))
    };
    let all: Vec<Value> = (0..20)
        .map(|n| patterned(&format!("v{}", n + 1), n == 0))
        .collect();
    let found = faults(definition("patterns.example", json!(all)));
    assert!(
        found.iter().any(|fault| fault.contains("too many patterns")),
        "{found:?}"
    );
    let mut wide = definition("wide.example", json!([version("v1", true, widget())]));
    let columns = vec![json!({"name": "a", "type": "string", "jsonPath": ".spec.color"}); 65];
    wide["spec"]["versions"][0]["additionalPrinterColumns"] = json!(columns);
    assert!(
        faults(wide.clone())
            .iter()
            .any(|fault| fault.contains("Too many"))
    );
    wide["spec"]["versions"][0]["additionalPrinterColumns"] = json!([columns[0].clone()]);
    assert_eq!(faults(wide.clone()), Vec::<String>::new());
    wide["spec"]["versions"][0]["additionalPrinterColumns"][0]["description"] = json!("x".repeat(1025));
    assert!(faults(wide).iter().any(|fault| fault.contains("Too long")));
    let allowed: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let choice = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string", "enum": allowed}}}});
    let choice = Schema::new(&choice);
    let errors = check::validate(&json!({"l": vec!["9999"; 1000]}), &choice, &Default::default());
    assert!(
        errors
            .iter()
            .any(|error| error.to_string().contains("takes too long"))
    );
    let errors = check::validate(&json!({"l": ["no"]}), &choice, &Default::default());
    assert!(errors[0].to_string().len() < 2000);
    let keyed = json!({"type": "object", "properties": {"l": {
        "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": allowed,
    }}});
    let errors = check::validate(
        &json!({"l": vec![json!({}); 200]}),
        &Schema::new(&keyed),
        &Default::default(),
    );
    assert_eq!(errors.len(), 1, "no key is compared");
    assert!(errors[0].to_string().contains("takes too long"), "{errors:?}");
}

#[test]
fn a_definition_that_goes_keeps_its_spec_and_a_status_is_not_the_writers_to_choose() {
    let strategy = crate::kinds::CUSTOM_RESOURCE_DEFINITION.strategy;
    let mut named = definition(
        "status.example",
        json!([version("v1", true, widget()), version("v2", false, widget())]),
    );
    named["spec"]["names"]["singular"] = json!("onewidget");
    let stored = accepted(named);
    define(&stored).unwrap();
    assert_eq!(
        Kind::by_resource("status.example", "v1", "widgets")
            .unwrap()
            .singular(),
        "onewidget"
    );
    let mut new = stored.clone();
    let forged = json!({"type": "NamesAccepted", "status": "True", "reason": "Mine"});
    let theirs = json!({"type": "Reviewed", "status": "True"});
    new["status"] =
        json!({"storedVersions": ["v2"], "conditions": [forged, theirs], "acceptedNames": {"kind": "Other"}});
    let (written, errors) = updated(strategy, new.clone(), &stored, Part::Status);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(
        written["status"]["storedVersions"],
        json!(["v2", "v1"]),
        "the storage version is among them"
    );
    let mut conditions = stored["status"]["conditions"].as_array().unwrap().clone();
    conditions.push(theirs);
    assert_eq!(written["status"]["conditions"], json!(conditions));
    assert_eq!(
        written["status"]["acceptedNames"],
        stored["status"]["acceptedNames"]
    );
    let (kept, _) = updated(strategy, written.clone(), &written, Part::Main);
    assert_eq!(kept["status"]["conditions"], json!(conditions));
    new["status"]["storedVersions"] = json!(["v9"]);
    assert!(!updated(strategy, new, &stored, Part::Status).1.is_empty());
    let mut going = stored.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut new = going.clone();
    new["spec"]["group"] = json!("other.example");
    let (written, errors) = updated(strategy, new, &going, Part::Main);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(written["spec"], stored["spec"]);
    let kind = Kind::by_resource("status.example", "v1", "widgets").unwrap();
    assert!(!kind.defined.unwrap().get().terminating);
    define(&written).unwrap();
    assert!(
        kind.defined.unwrap().get().terminating,
        "its spec is the same, but it is in force"
    );
}
