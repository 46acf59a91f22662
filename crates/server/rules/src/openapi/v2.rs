//! The one document of OpenAPI v2, for clients from before v3: made from the documents of v3.
//!
//! It says less: alternatives and `nullable` are unknown to v2, as upstream leaves them away.

use super::{build, hash};
use crate::discovery::group_versions;
use crate::document::Document;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::{Mutex, PoisonError};

const TITLE: &str = "Pointsman";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The body of `/openapi/v2`, made anew when definitions of custom resources have changed.
pub fn document() -> Document {
    static MADE: Mutex<Option<(Vec<String>, Document)>> = Mutex::new(None);
    let versions = group_versions();
    let now: Vec<String> = versions
        .iter()
        .map(|(group, version)| format!("{group}/{version} {}", hash(group, version)))
        .collect();
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    match made.as_ref() {
        Some((of, document)) if *of == now => document.clone(),
        _ => {
            let document = Document::new(&merged(&versions));
            *made = Some((now, document.clone()));
            document
        }
    }
}

/// The document in protobuf (gnostic's `openapi.v2.Document`) with its name alone: whoever finds no types in it, as kubectl
/// does for lists, leaves checks to the server.
pub fn without_types() -> Bytes {
    let text = |field: u8, text: &[u8]| [&[field << 3 | 2, text.len() as u8], text].concat();
    let info = [text(1, TITLE.as_bytes()), text(2, VERSION.as_bytes())].concat();
    [text(1, b"2.0"), text(2, &info)].concat().into()
}

fn merged(versions: &[(&str, &str)]) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for (group, version) in versions {
        let mut document = build(group, version);
        for (path, item) in taken(&mut document["paths"]) {
            paths.insert(path, path_item(item));
        }
        for (id, it) in taken(&mut document["components"]["schemas"]) {
            definitions.entry(id).or_insert_with(|| definition(it));
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": paths,
        "definitions": definitions,
    })
}

/// A type. One that takes any fields names none, as upstream's: kubectl would refuse all others.
fn definition(it: Value) -> Value {
    let kinds = "x-kubernetes-group-version-kind";
    match it["x-kubernetes-preserve-unknown-fields"] == true && it.get(kinds).is_some() {
        true => json!({"type": "object", kinds: it[kinds]}),
        false => schema(it),
    }
}

fn taken(value: &mut Value) -> Map<String, Value> {
    match value.take() {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn each(value: Value, change: fn(Value) -> Value) -> Value {
    match value {
        Value::Object(map) => map.into_iter().map(|(key, it)| (key, change(it))).collect(),
        Value::Array(list) => list.into_iter().map(change).collect(),
        other => other,
    }
}

/// A path's operations and the parameters that they share.
fn path_item(item: Value) -> Value {
    let Value::Object(item) = item else { return item };
    let convert = |(key, it): (String, Value)| match key.as_str() {
        "parameters" => (key, each(it, parameter)),
        _ => (key, operation(it)),
    };
    item.into_iter().map(convert).collect()
}

fn operation(mut operation: Value) -> Value {
    let mut request = taken(&mut operation["requestBody"]);
    let mut parameters = each(operation["parameters"].take(), parameter);
    let content = request.get_mut("content").map(taken).unwrap_or_default();
    let consumes: Vec<&String> = content.keys().collect();
    operation["consumes"] = if consumes.is_empty() {
        json!(["*/*"])
    } else {
        json!(consumes)
    };
    if let (Some(body), Some(list)) = (content.into_iter().next(), parameters.as_array_mut()) {
        let required = request.get("required").is_some_and(|it| it == true);
        let mut body = body.1;
        list.push(
            json!({"name": "body", "in": "body", "required": required, "schema": schema(body["schema"].take())}),
        );
    }
    operation["parameters"] = parameters;
    operation["produces"] = json!(["application/json"]);
    operation["responses"] = each(operation["responses"].take(), answer);
    if let Some(map) = operation.as_object_mut() {
        map.remove("requestBody");
    }
    operation
}

/// The type of a parameter stands beside its name.
fn parameter(mut parameter: Value) -> Value {
    let shape = taken(&mut parameter["schema"]);
    if let Some(map) = parameter.as_object_mut() {
        map.remove("schema");
        map.extend(shape);
    }
    parameter
}

fn answer(mut answer: Value) -> Value {
    let content = taken(&mut answer["content"]);
    let schema = content
        .into_iter()
        .next()
        .map(|(_, mut it)| schema(it["schema"].take()));
    match schema {
        Some(schema) => json!({"description": answer["description"].take(), "schema": schema}),
        None => json!({"description": answer["description"].take()}),
    }
}

fn schema(it: Value) -> Value {
    let Value::Object(map) = it else { return it };
    let convert = |(key, it): (String, Value)| match key.as_str() {
        "nullable" | "anyOf" | "oneOf" | "not" => None,
        "properties" | "allOf" => Some((key, each(it, schema))),
        "items" | "additionalProperties" => Some((key, schema(it))),
        "$ref" => {
            let place = it.as_str().unwrap_or_default();
            let place = place.replace("#/components/schemas/", "#/definitions/");
            Some((key, place.into()))
        }
        _ => Some((key, it)),
    };
    map.into_iter().filter_map(convert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_it_and_every_reference_leads_somewhere() {
        let text = String::from_utf8(document().body.to_vec()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let create = &read["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"];
        let body = create["parameters"].as_array().unwrap().last().unwrap();
        assert_eq!(body["schema"]["$ref"], "#/definitions/io.k8s.api.core.v1.Pod");
        assert_eq!(create["responses"]["201"]["schema"], body["schema"]);
        for word in ["#/components", "requestBody", "\"content\":{"] {
            assert!(!text.contains(word), "{word}");
        }
        for place in text.split("\"#/definitions/").skip(1) {
            let id = place.split('"').next().unwrap();
            assert!(read["definitions"].get(id).is_some(), "{id}");
        }
        assert_eq!(document(), document());
    }

    #[test]
    fn a_type_that_takes_any_fields_names_none() {
        let kinds = json!([{"group": "g", "version": "v1", "kind": "K"}]);
        let typed = |preserves: bool| {
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": preserves,
                   "properties": {"spec": {"type": "object"}}, "x-kubernetes-group-version-kind": kinds})
        };
        let bare = json!({"type": "object", "x-kubernetes-group-version-kind": kinds});
        assert_eq!(definition(typed(true)), bare);
        assert_eq!(definition(typed(false)), typed(false));
    }
}
