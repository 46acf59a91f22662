//! When are two pod templates the same, and what does a pod made from one look like?

use serde_json::{Map, Value, json};

use crate::meta::OwnerReference;

/// Label that tells the pods of a Deployment's revisions apart.
pub const HASH_LABEL: &str = "pod-template-hash";

/// Characters that cannot form words, as Kubernetes uses for generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether two templates differ in nothing but the hash label.
pub fn same(a: &Value, b: &Value) -> bool {
    without_hash(a) == without_hash(b)
}

/// A short name for a template; `collisions` gives another one when it is taken.
pub fn hash(template: &Value, collisions: i64) -> String {
    // FNV-1a over the text: object keys are ordered, so equal templates have equal text.
    let text = without_hash(template).to_string();
    let collisions = if collisions == 0 {
        String::new()
    } else {
        collisions.to_string()
    };
    let mut hash: u32 = 0x811c_9dc5;
    for byte in text.bytes().chain(collisions.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash.to_string()
        .bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

/// The template with the hash label set to `hash`.
pub fn with_hash(template: &Value, hash: &str) -> Value {
    with_label(template, HASH_LABEL, hash)
}

/// The template with one more label.
pub fn with_label(template: &Value, key: &str, value: &str) -> Value {
    let mut template = template.clone();
    let metadata = object(&mut template, "metadata");
    object_in(metadata, "labels").insert(key.into(), value.into());
    template
}

/// The pod to create from a template: the server completes the name.
pub fn pod(template: &Value, namespace: &str, base: &str, owner: &OwnerReference) -> Value {
    let empty = Value::Null;
    let metadata = template.get("metadata").unwrap_or(&empty);
    let mut pod_metadata = json!({
        "namespace": namespace,
        "generateName": format!("{base}-"),
        "ownerReferences": [owner],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = metadata.get(field).filter(|value| !value.is_null()) {
            pod_metadata[field] = value.clone();
        }
    }
    let spec = template.get("spec").cloned().unwrap_or_else(|| json!({}));
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec })
}

fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template
        .pointer_mut("/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.remove(HASH_LABEL);
        if labels.is_empty() {
            object(&mut template, "metadata").remove("labels");
        }
    }
    // The API server writes an unset creation time as null in one place and leaves it out in another.
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| !value.is_null());
    }
    template
}

fn object<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    object_in(value.as_object_mut().expect("made one above"), field)
}

fn object_in<'a>(parent: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let child = parent.entry(field).or_insert_with(|| json!({}));
    if !child.is_object() {
        *child = json!({});
    }
    child.as_object_mut().expect("made one above")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_label_does_not_make_a_difference() {
        let template =
            json!({ "metadata": { "labels": { "app": "web" }, "creationTimestamp": null }, "spec": {} });
        let hashed = with_hash(&template, "abc");
        assert_eq!(hashed["metadata"]["labels"][HASH_LABEL], "abc");
        assert!(same(&template, &hashed));
        assert_eq!(hash(&template, 0), hash(&hashed, 0));
        assert_ne!(hash(&template, 0), hash(&template, 1));
        assert!(!same(
            &template,
            &json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "x": 1 } })
        ));
        assert!(same(
            &json!({ "spec": {}, "metadata": {} }),
            &with_hash(&json!({ "spec": {} }), "x")
        ));
    }

    #[test]
    fn odd_templates_are_no_reason_to_panic() {
        for odd in [
            json!(null),
            json!([]),
            json!({ "metadata": 3 }),
            json!({ "metadata": { "labels": [] } }),
        ] {
            assert_eq!(with_hash(&odd, "h")["metadata"]["labels"][HASH_LABEL], "h");
            assert!(!hash(&odd, 0).is_empty());
        }
    }
}
