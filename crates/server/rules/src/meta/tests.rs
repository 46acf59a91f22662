use super::*;
use serde_json::json;

fn rendered(errors: FieldErrors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Validates the metadata of a ConfigMap named `a` in `default`, with `extra` merged in.
fn check(extra: Value, expected: &[&str]) {
    let kind = &crate::kinds::CONFIG_MAP;
    let mut object = json!({"metadata": {"name": "a", "namespace": "default"}});
    for (field, value) in extra.as_object().unwrap() {
        object["metadata"][field] = value.clone();
    }
    let errors = rendered(validate_meta(&object, kind, NameRule::DnsSubdomain, "metadata"));
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(
            error.starts_with(expected),
            "{error:?} should start with {expected:?}"
        );
    }
}

#[test]
fn metadata_of_new_objects_is_checked_field_by_field() {
    check(json!({}), &[]);
    check(
        json!({"name": ""}),
        &["metadata.name: Required value: name or generateName is required"],
    );
    check(
        json!({"name": "A"}),
        &[r#"metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain"#],
    );
    check(
        json!({"namespace": null}),
        &["metadata.namespace: Required value"],
    );
    check(
        json!({"namespace": "a.b"}),
        &[r#"metadata.namespace: Invalid value: "a.b": must not contain dots"#],
    );
    check(json!({"generateName": "web-"}), &[]);
    check(
        json!({"generateName": "-"}),
        &["metadata.generateName: Invalid value"],
    );
    check(json!({"labels": {"a": "b", "c/d": ""}}), &[]);
    check(
        json!({"labels": {"-a": "b!"}}),
        &[
            r#"metadata.labels: Invalid value: "-a": name part"#,
            r#"metadata.labels: Invalid value: "b!": a valid label"#,
        ],
    );
    check(json!({"annotations": {"Example.COM/Mixed": "any text"}}), &[]);
    check(
        json!({"annotations": {"a b": ""}}),
        &["metadata.annotations: Invalid value"],
    );
    check(
        json!({"annotations": {"a": "x".repeat(ANNOTATIONS_MAX_BYTES)}}),
        &["metadata.annotations: Too long: may not be more than 262144 bytes"],
    );
    check(json!({"finalizers": ["example.com/a", "orphan"]}), &[]);
    check(
        json!({"finalizers": ["a b"]}),
        &["metadata.finalizers: Invalid value"],
    );
    check(
        json!({"finalizers": ["orphan", "foregroundDeletion"]}),
        &[
            "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion",
        ],
    );
    check(
        json!({"generation": -1}),
        &["metadata.generation: Invalid value: -1"],
    );
}

#[test]
fn a_cluster_scoped_object_has_no_namespace() {
    let kind = &crate::kinds::NODE;
    let object = json!({"metadata": {"name": "n", "namespace": "x"}});
    assert_eq!(
        rendered(validate_meta(&object, kind, NameRule::DnsSubdomain, "metadata")),
        ["metadata.namespace: Forbidden: not allowed on this type"]
    );
}

#[test]
fn owners_need_all_fields_and_one_controller_at_most() {
    let owner = |name: &str, controller: bool| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "u", "controller": controller});
    check(
        json!({"ownerReferences": [owner("a", true), owner("b", false)]}),
        &[],
    );
    let errors = ["metadata.ownerReferences: Invalid value: ["];
    check(
        json!({"ownerReferences": [owner("a", true), owner("b", true)]}),
        &errors,
    );
    check(
        json!({"ownerReferences": [{"apiVersion": "a/b/c", "kind": "X", "name": "", "uid": "u"}]}),
        &[
            "metadata.ownerReferences[0].name: Required value: must not be empty",
            r#"metadata.ownerReferences[0].apiVersion: Invalid value: "a/b/c": must be <group>/<version> or <version>"#,
        ],
    );
    check(
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}]}),
        &["metadata.ownerReferences[0]: Invalid value"],
    );
}

#[test]
fn identity_and_deletion_marks_never_change() {
    let old = json!({"metadata": {"name": "a", "namespace": "n", "uid": "1", "finalizers": ["x/y"],
        "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert!(validate_meta_update(&old, &old).is_empty());
    let mut new = old.clone();
    new["metadata"]["name"] = json!("b");
    new["metadata"]["finalizers"] = json!(["x/y", "z/new"]);
    assert_eq!(
        rendered(validate_meta_update(&new, &old)),
        [
            r#"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"z/new"}"#,
            r#"metadata.name: Invalid value: "b": field is immutable"#,
        ]
    );
    new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    new["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("deletionTimestamp");
    assert_eq!(
        rendered(validate_meta_update(&new, &old)),
        ["metadata.deletionTimestamp: Invalid value: null: field is immutable"]
    );
}
