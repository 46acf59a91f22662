use super::*;
use crate::schema;
use proptest::prelude::*;
use serde_json::json;

fn kind(group: &str, plural: &str) -> &'static Kind {
    Kind::by_resource(group, "v1", plural).unwrap()
}

fn patched(patch_type: PatchType, plural: &str, original: &Value, patch: &Value) -> Result<Value, ApiError> {
    let group = if plural == "deployments" { "apps" } else { "" };
    let shape = schema::of(kind(group, plural));
    apply(patch_type, patch.to_string().as_bytes(), original, shape).map(|decoded| decoded.object)
}

fn strategic(plural: &str, original: Value, patch: Value, expected: Value) {
    let result = patched(PatchType::Strategic, plural, &original, &patch);
    assert_eq!(result, Ok(expected), "{patch}");
}

fn strategic_refused(original: Value, patch: Value, part: &str) {
    let error = patched(PatchType::Strategic, "pods", &original, &patch).unwrap_err();
    assert_eq!(error.code(), 400);
    assert!(error.to_string().contains(part), "{error}");
}

fn containers(items: Value) -> Value {
    json!({"spec": {"containers": items}})
}

#[test]
fn containers_merge_by_name_and_new_ones_come_first() {
    strategic(
        "pods",
        containers(json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}])),
        containers(json!([{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"}])),
        containers(
            json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"}]),
        ),
    );
    strategic(
        "pods",
        containers(json!([{"name": "a"}])),
        containers(json!([{"name": "c"}])),
        containers(json!([{"name": "c"}, {"name": "a"}])),
    );
}

#[test]
fn list_items_are_deleted_and_lists_replaced_by_directive() {
    let two = || containers(json!([{"name": "a", "image": "a:1"}, {"name": "b"}]));
    strategic(
        "pods",
        two(),
        containers(json!([{"$patch": "delete", "name": "a"}])),
        containers(json!([{"name": "b"}])),
    );
    strategic(
        "pods",
        two(),
        containers(json!([{"$patch": "replace"}, {"name": "z"}])),
        containers(json!([{"name": "z"}])),
    );
    strategic(
        "pods",
        json!({"spec": {}}),
        containers(json!([{"$patch": "delete", "name": "a"}, {"name": "z", "image": null}])),
        containers(json!([{"name": "z"}])),
    );
}

#[test]
fn set_element_order_decides_the_order() {
    strategic(
        "pods",
        containers(json!([{"name": "a"}, {"name": "server"}, {"name": "b"}])),
        json!({"spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
            "containers": [{"name": "new"}, {"name": "a", "image": "a:2"}],
        }}),
        containers(
            json!([{"name": "server"}, {"name": "b"}, {"name": "new"}, {"name": "a", "image": "a:2"}]),
        ),
    );
    strategic(
        "pods",
        containers(json!([{"name": "a"}, {"name": "b"}])),
        json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
        containers(json!([{"name": "b"}, {"name": "a"}])),
    );
    strategic(
        "pods",
        json!({"metadata": {"finalizers": ["x/a", "x/b"]}}),
        json!({"metadata": {"$setElementOrder/finalizers": ["x/c", "x/a"], "finalizers": ["x/c"]}}),
        json!({"metadata": {"finalizers": ["x/c", "x/a", "x/b"]}}),
    );
}

#[test]
fn single_value_lists_unite_and_lose_what_is_deleted() {
    strategic(
        "pods",
        json!({"metadata": {"finalizers": ["x/a", "x/b"]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"], "finalizers": ["x/c", "x/b"]}}),
        json!({"metadata": {"finalizers": ["x/c", "x/b"]}}),
    );
}

#[test]
fn lists_without_merge_key_are_replaced() {
    strategic(
        "pods",
        json!({"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "a", "command": ["x", "y"]}]}}),
        json!({"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]}}),
        json!({"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]}}),
    );
}

#[test]
fn objects_are_replaced_or_emptied_by_directive_and_nulls_remove() {
    let original = || json!({"spec": {"nodeSelector": {"a": "1"}, "dnsPolicy": "Default", "securityContext": {"runAsUser": 1}}});
    strategic(
        "pods",
        original(),
        json!({"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}, "dnsPolicy": null, "hostname": null}}),
        json!({"spec": {"nodeSelector": {"b": "2"}, "securityContext": {"runAsUser": 1}}}),
    );
    strategic(
        "pods",
        original(),
        json!({"spec": {"nodeSelector": {"$patch": "merge", "b": "2"}, "securityContext": {"$patch": "delete"}}}),
        json!({"spec": {"nodeSelector": {"a": "1", "b": "2"}, "dnsPolicy": "Default", "securityContext": {}}}),
    );
}

#[test]
fn retain_keys_switches_between_members_that_exclude_one_another() {
    let deployment = |strategy: Value| json!({"spec": {"strategy": strategy}});
    strategic(
        "deployments",
        deployment(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}})),
        deployment(json!({"$retainKeys": ["type"], "type": "Recreate"})),
        deployment(json!({"type": "Recreate"})),
    );
    strategic(
        "pods",
        json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}, "emptyDir": null}]}}),
        json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
    );
}

#[test]
fn bad_directives_say_where_and_why() {
    let pod = || containers(json!([{"name": "a"}]));
    strategic_refused(
        pod(),
        json!({"spec": {"$patch": "explode"}}),
        "unknown $patch directive \"explode\"",
    );
    strategic_refused(
        pod(),
        containers(json!([{"image": "x"}])),
        "field \"spec.containers[0]\": the item lacks the merge key \"name\"",
    );
    strategic_refused(pod(), containers(json!(["a"])), "must be objects");
    strategic_refused(
        pod(),
        json!({"spec": {"$retainKeys": "a"}}),
        "$retainKeys must be a list",
    );
    strategic_refused(
        pod(),
        json!({"spec": {"$retainKeys": [], "dnsPolicy": "x"}}),
        "does not list",
    );
    strategic_refused(
        pod(),
        json!({"spec": {"$setElementOrder/containers": {}}}),
        "must be a list",
    );
    strategic_refused(
        pod(),
        json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [{"name": "b"}, {"name": "a"}]}}),
        "does not match $setElementOrder",
    );
    strategic_refused(
        json!({"metadata": {"finalizers": ["a"]}}),
        json!({"metadata": {"finalizers": [{}]}}),
        "must be single values",
    );
    strategic_refused(pod(), json!([]), "must be a JSON object");
}

#[test]
fn the_status_patch_of_a_node_agent_merges_conditions_by_type() {
    strategic(
        "nodes",
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
        json!({"metadata": {"uid": "u"}, "status": {"$setElementOrder/conditions": [{"type": "DiskPressure"}, {"type": "Ready"}], "conditions": [{"type": "Ready", "status": "False"}]}}),
        json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "False"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
    );
}

#[test]
fn a_three_way_apply_patch_removes_adds_and_changes() {
    let live = json!({"metadata": {"name": "web", "annotations": {"deployment.kubernetes.io/revision": "1"}}, "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}}});
    let patch = json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "spec": {"replicas": null, "template": {"spec": {"$setElementOrder/containers": [{"name": "c"}], "containers": [{"name": "c", "image": "i:2", "$setElementOrder/env": [{"name": "A"}, {"name": "C"}], "env": [{"name": "C", "value": "3"}, {"$patch": "delete", "name": "B"}]}]}}}});
    let expected = json!({"metadata": {"name": "web", "annotations": {"deployment.kubernetes.io/revision": "1", "kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2", "env": [{"name": "A", "value": "1"}, {"name": "C", "value": "3"}], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}}});
    strategic("deployments", live, patch, expected);
}

#[test]
fn unknown_fields_merge_and_only_new_ones_are_reported() {
    let original = json!({"spec": {"future": {"a": [1], "b": 1}}});
    let patch = br#"{"spec":{"future":{"a":[2],"b":null,"c":{"d":null}},"other":1}}"#;
    let decoded = apply(
        PatchType::Strategic,
        patch,
        &original,
        schema::of(kind("", "pods")),
    )
    .unwrap();
    assert_eq!(
        decoded.object,
        json!({"spec": {"future": {"a": [2], "c": {}}, "other": 1}})
    );
    assert_eq!(
        decoded.strict,
        vec![decode::StrictError::Unknown("spec.other".into())]
    );
}

#[test]
fn merge_patches_follow_the_examples_of_the_rfc() {
    let cases = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (
            json!({"a": {"b": "c"}}),
            json!({"a": {"b": "d", "c": null}}),
            json!({"a": {"b": "d"}}),
        ),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (
            json!({}),
            json!({"a": {"bb": {"ccc": null}}}),
            json!({"a": {"bb": {}}}),
        ),
    ];
    for (original, patch, expected) in cases {
        assert_eq!(merge::merged(original, patch.clone()), expected, "{patch}");
    }
}

#[test]
fn json_patches_apply_in_order() {
    let result = patched(
        PatchType::Json,
        "pods",
        &json!({"metadata": {"labels": {"a/b": "1"}}}),
        &json!([
            {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
            {"op": "copy", "from": "/metadata/labels/a~1b", "path": "/metadata/labels/c"},
            {"op": "remove", "path": "/metadata/labels/a~1b"},
            {"op": "add", "path": "/spec", "value": {"containers": []}},
            {"op": "add", "path": "/spec/containers/-", "value": {"name": "x"}},
        ]),
    );
    assert_eq!(
        result,
        Ok(json!({"metadata": {"labels": {"c": "1"}}, "spec": {"containers": [{"name": "x"}]}}))
    );
}

#[test]
fn json_patch_refusals_have_the_right_code() {
    let pod = json!({"metadata": {"name": "p"}});
    let code = |patch: Value| patched(PatchType::Json, "pods", &pod, &patch).unwrap_err().code();
    assert_eq!(
        code(json!([{"op": "test", "path": "/metadata/name", "value": "q"}])),
        422
    );
    assert_eq!(code(json!([{"op": "remove", "path": "/spec"}])), 422);
    assert_eq!(code(json!([{"op": "add", "path": "/a/b/c", "value": 1}])), 422);
    assert_eq!(code(json!([{"op": "dance", "path": "/spec"}])), 400);
    assert_eq!(code(json!([{"op": "add", "path": "no-slash", "value": 1}])), 400);
    assert_eq!(code(json!({"op": "remove"})), 400);
    assert_eq!(code(json!([{"op": "replace", "path": "", "value": "text"}])), 422);
    let many = vec![json!({"op": "test", "path": "/metadata/name", "value": "p"}); 10_001];
    assert_eq!(code(Value::Array(many)), 413);
    let error = patched(
        PatchType::Json,
        "pods",
        &pod,
        &json!([{"op": "test", "path": "/metadata/name", "value": "q"}]),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Pod "p" is invalid: patch: Invalid value: "/metadata/name": operation 0 (test) failed: value did not match"#
    );
}

#[test]
fn json_patches_cannot_blow_an_object_up() {
    let pod = json!({"metadata": {"name": "p"}});
    let deep = (0..98).fold(json!([]), |inner, _| json!([inner]));
    let nesting =
        json!([{"op": "add", "path": "/x", "value": []}, {"op": "add", "path": "/x/-", "value": deep}]);
    assert_eq!(
        patched(PatchType::Json, "pods", &pod, &nesting)
            .unwrap_err()
            .code(),
        400
    );
    let mut doubling = vec![json!({"op": "add", "path": "/x", "value": {"a": "0123456789"}})];
    for _ in 0..40 {
        doubling.push(json!({"op": "copy", "from": "/x", "path": "/y"}));
        doubling.push(json!({"op": "copy", "from": "/x", "path": "/z"}));
        doubling.push(json!({"op": "add", "path": "/x", "value": {}}));
        doubling.push(json!({"op": "move", "from": "/y", "path": "/x/a"}));
        doubling.push(json!({"op": "move", "from": "/z", "path": "/x/b"}));
    }
    let error = patched(PatchType::Json, "pods", &pod, &Value::Array(doubling)).unwrap_err();
    assert_eq!(error.code(), 413, "{error}");
}

#[test]
fn a_patch_that_shifts_a_long_list_again_and_again_is_refused() {
    let shifting = |items: usize, operations: usize| {
        let pod = json!({"metadata": {"name": "p"}, "x": vec![0; items]});
        let patch = vec![json!({"op": "add", "path": "/x/0", "value": 0}); operations];
        patched(PatchType::Json, "pods", &pod, &Value::Array(patch)).map(drop)
    };
    assert_eq!(shifting(1_000, 1_000), Ok(()));
    assert_eq!(shifting(100_000, 1_000).unwrap_err().code(), 413);
    let pod = json!({"metadata": {"name": "p"}, "x": vec![0; 100_000]});
    let to_and_fro = vec![json!({"op": "move", "from": "/x/0", "path": "/x/-"}); 1_000];
    let error = patched(PatchType::Json, "pods", &pod, &Value::Array(to_and_fro)).unwrap_err();
    assert_eq!(error.code(), 413, "{error}");
}

#[test]
fn empty_values_that_are_copied_are_weighed_by_their_memory() {
    let pod = json!({"metadata": {"name": "p"}});
    let mut doubling = vec![json!({"op": "add", "path": "/x", "value": [[], []]})];
    for _ in 0..17 {
        doubling.push(json!({"op": "copy", "from": "/x", "path": "/x/-"}));
    }
    let error = patched(PatchType::Json, "pods", &pod, &Value::Array(doubling)).unwrap_err();
    assert_eq!(error.code(), 413, "{error}");
}

#[test]
fn a_strategic_patch_that_names_an_item_again_and_again_is_refused() {
    let env = |count: usize| {
        let variable = |at: usize| json!({"name": format!("v{at}")});
        (0..count).map(variable).collect::<Vec<_>>()
    };
    let pod = containers(json!([{"name": "a", "env": env(5_000)}]));
    let naming = |times: usize| {
        let patch = vec![json!({"name": "a", "env": [{"name": "v1", "value": "1"}]}); times];
        patched(PatchType::Strategic, "pods", &pod, &containers(patch.into())).map(drop)
    };
    assert_eq!(naming(3), Ok(()));
    assert_eq!(naming(5_000).unwrap_err().code(), 413);
}

#[test]
fn a_patch_to_a_wrong_type_is_invalid() {
    let error = patched(
        PatchType::Merge,
        "deployments",
        &json!({"metadata": {"name": "web"}}),
        &json!({"spec": {"replicas": "many"}}),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Deployment.apps "web" is invalid: spec.replicas: Invalid value: "string \"many\"": expected int32"#
    );
    assert_eq!(error.code(), 422);
}

#[test]
fn content_types_choose_the_language() {
    let (pods, custom) = (kind("", "pods"), kind("config.openshift.io", "nodes"));
    for patch_type in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
        assert_eq!(
            PatchType::from_content_type(patch_type.media_type(), pods),
            Ok(patch_type)
        );
    }
    let refused = |text, kind| PatchType::from_content_type(text, kind).unwrap_err();
    assert_eq!(
        refused("application/apply-patch+yaml", pods).to_string(),
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json \
         (this server does not support server-side apply)"
    );
    let error = refused("application/strategic-merge-patch+json", custom);
    assert_eq!(error.code(), 415);
    assert!(!error.to_string().contains("strategic"), "{error}");
    assert_eq!(refused("application/json", pods).code(), 415);
}

/// Any JSON, with a bias for names and directives that mean something.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "containers",
        "name",
        "finalizers",
        "labels",
        "volumes",
        "env",
        "ports",
        "containerPort",
        "strategy",
        "conditions",
        "type",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0i64..4).prop_map(Value::from),
        prop::sample::select(vec!["a", "b", "delete", "replace", "merge", "name"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A pod as clients write them: keys are unique, nothing is null.
fn arbitrary_pod() -> impl Strategy<Value = Value> {
    let env = prop::collection::btree_map("[A-C]", "[0-9]", 0..3);
    let container = (
        env,
        prop::option::of("[a-z]:[0-9]"),
        prop::collection::vec("[a-z]", 0..3),
    );
    let containers = prop::collection::btree_map("[a-f]", container, 0..5);
    let finalizers = prop::collection::btree_set("[a-d]", 0..4);
    let labels = prop::collection::btree_map("[a-c]", "[x-z]", 0..3);
    (containers, finalizers, labels, any::<bool>()).prop_map(|(containers, finalizers, labels, reversed)| {
        let mut containers: Vec<Value> = containers
            .into_iter()
            .map(|(name, (env, image, command))| {
                let env: Vec<Value> = env
                    .into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                let mut container = json!({"name": name, "env": env, "command": command});
                if let Some(image) = image {
                    container["image"] = image.into();
                }
                container
            })
            .collect();
        if reversed {
            containers.reverse();
        }
        json!({"metadata": {"labels": labels, "finalizers": finalizers}, "spec": {"containers": containers}})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_patch_panics(original in arbitrary_json(), patch in arbitrary_json()) {
        for patch_type in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
            let _ = patched(patch_type, "pods", &original, &patch);
            let _ = patched(patch_type, "deployments", &original, &patch);
        }
    }

    #[test]
    fn no_directive_reaches_the_object(original in arbitrary_pod(), patch in arbitrary_json()) {
        if let Ok(result) = patched(PatchType::Strategic, "pods", &original, &patch) {
            prop_assert!(!result.to_string().contains("\"$"), "{}", result);
        }
    }

    #[test]
    fn patching_with_itself_changes_nothing(pod in arbitrary_pod()) {
        for patch_type in [PatchType::Merge, PatchType::Strategic] {
            prop_assert_eq!(patched(patch_type, "pods", &pod, &pod), Ok(pod.clone()));
        }
    }

    #[test]
    fn patching_twice_is_patching_once(original in arbitrary_pod(), patch in arbitrary_pod()) {
        for patch_type in [PatchType::Merge, PatchType::Strategic] {
            let once = patched(patch_type, "pods", &original, &patch).unwrap();
            let twice = patched(patch_type, "pods", &once, &patch).unwrap();
            prop_assert_eq!(&once, &twice);
        }
    }

    #[test]
    fn merge_patches_win_where_they_speak(original in arbitrary_json(), patch in arbitrary_json()) {
        let once = merge::merged(original, patch.clone());
        prop_assert_eq!(merge::merged(once.clone(), patch.clone()), once.clone());
        if !patch.is_object() {
            prop_assert_eq!(once, patch);
        }
    }
}
