use super::*;
use crate::auth::User;
use crate::auth::authn::{AUTHENTICATED, MASTERS};
use proptest::prelude::*;
use serde_json::{Value, json};

fn role(kind: &str, namespace: &str, name: &str, rules: Value) -> Value {
    json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": rules})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let kind = if namespace.is_empty() {
        "ClusterRoleBinding"
    } else {
        "RoleBinding"
    };
    json!({
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": role.0, "name": role.1},
        "subjects": subjects,
    })
}

fn policy(objects: &[Value]) -> Policy {
    let mut policy = Policy::default();
    objects.iter().for_each(|object| policy.upsert(object));
    policy
}

fn get_pods() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
}

fn allowed(policy: &Policy, request: &Attributes<'_>) -> bool {
    policy.authorize(request) == Decision::Allow
}

#[test]
fn a_role_binding_counts_in_its_namespace_only_even_when_it_points_to_a_cluster_role() {
    let policy = policy(&[
        role("ClusterRole", "", "reader", get_pods()),
        binding(
            "a",
            "b",
            ("ClusterRole", "reader"),
            json!([{"kind": "User", "name": "alice"}]),
        ),
    ]);
    let alice = User::new("alice", &[AUTHENTICATED]);
    let get = Attributes::resource(&alice, "get", "", "pods").named("p");
    assert!(allowed(&policy, &get.in_namespace("a")));
    assert!(!allowed(&policy, &get.in_namespace("b")));
    assert!(!allowed(&policy, &get));
    assert_eq!(
        policy.explain(&get.in_namespace("a")).unwrap(),
        r#"RBAC: allowed by RoleBinding "b/a" of ClusterRole "reader" to User "alice""#
    );
    assert_eq!(policy.explain(&get), None);
}

#[test]
fn paths_are_granted_cluster_wide_only() {
    let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    let subjects = json!([{"kind": "Group", "name": "ops"}]);
    let mut policy = policy(&[
        role("ClusterRole", "", "m", rules),
        binding("a", "b", ("ClusterRole", "m"), subjects.clone()),
    ]);
    let user = User::new("alice", &["ops"]);
    let path = Attributes::path(&user, "get", "/metrics");
    assert!(!allowed(&policy, &path.in_namespace("a")));
    policy.upsert(&binding("", "b", ("ClusterRole", "m"), subjects));
    assert!(allowed(&policy, &path));
}

#[test]
fn masters_need_no_rule_and_missing_roles_are_reported() {
    let policy = policy(&[binding(
        "",
        "b",
        ("ClusterRole", "gone"),
        json!([{"kind": "Group", "name": "g"}]),
    )]);
    let master = User::new("root", &[MASTERS]);
    assert!(allowed(
        &policy,
        &Attributes::resource(&master, "delete", "x", "y")
    ));
    let user = User::new("alice", &["g"]);
    let reason = r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#.to_owned();
    assert_eq!(
        policy.authorize(&Attributes::resource(&user, "get", "", "pods")),
        Decision::NoOpinion { reason }
    );
}

#[test]
fn a_service_account_subject_defaults_to_the_binding_s_namespace() {
    let subjects = json!([{"kind": "ServiceAccount", "name": "robot"}]);
    let policy = policy(&[
        role("Role", "a", "r", get_pods()),
        binding("a", "b", ("Role", "r"), subjects),
    ]);
    for (name, expected) in [
        ("system:serviceaccount:a:robot", true),
        ("system:serviceaccount:b:robot", false),
    ] {
        let user = User::new(name, &[]);
        let get = Attributes::resource(&user, "get", "", "pods").in_namespace("a");
        assert_eq!(allowed(&policy, &get), expected, "{name}");
    }
}

#[test]
fn updates_and_removals_of_bindings_and_roles_take_effect() {
    let subjects = json!([{"kind": "User", "name": "alice"}]);
    let mut policy = policy(&[
        role("Role", "a", "r", get_pods()),
        binding("a", "b", ("Role", "r"), subjects.clone()),
    ]);
    let (alice, bob) = (User::new("alice", &[]), User::new("bob", &[]));
    let may = |policy: &Policy, user: &User| {
        allowed(
            policy,
            &Attributes::resource(user, "get", "", "pods").in_namespace("a"),
        )
    };
    assert!(may(&policy, &alice));
    policy.upsert(&binding(
        "a",
        "b",
        ("Role", "r"),
        json!([{"kind": "User", "name": "bob"}]),
    ));
    assert!(!may(&policy, &alice) && may(&policy, &bob));
    policy.remove("Role", "a", "r");
    assert!(!may(&policy, &bob));
    policy.upsert(&role("Role", "a", "r", get_pods()));
    assert!(may(&policy, &bob));
    policy.remove("RoleBinding", "a", "b");
    assert!(!may(&policy, &bob));
    policy.remove("RoleBinding", "a", "b");
}

fn labelled(name: &str, label: &str, rules: Value) -> Value {
    let mut role = role("ClusterRole", "", name, rules);
    role["metadata"]["labels"] = json!({"to": label});
    role
}

fn aggregating(name: &str, label: &str, from: &str) -> Value {
    let mut role = labelled(name, label, json!([]));
    role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": from}}]});
    role
}

#[test]
fn aggregating_roles_gather_through_one_another_and_survive_cycles() {
    let mut policy = policy(&[
        aggregating("admin", "view", "admin"),
        aggregating("edit", "admin", "edit"),
        aggregating("view", "edit", "view"),
        binding(
            "",
            "b",
            ("ClusterRole", "admin"),
            json!([{"kind": "User", "name": "alice"}]),
        ),
    ]);
    let alice = User::new("alice", &[]);
    let get = Attributes::resource(&alice, "get", "", "pods");
    assert!(!allowed(&policy, &get));
    policy.upsert(&labelled("pods", "view", get_pods()));
    assert!(allowed(&policy, &get));
    assert_eq!(
        policy.aggregated_rules("admin").unwrap(),
        *get_pods().as_array().unwrap()
    );
    assert_eq!(policy.aggregated_rules("pods"), None);
    assert_eq!(
        policy.aggregated_roles().collect::<Vec<_>>(),
        ["admin", "edit", "view"]
    );
    policy.remove("ClusterRole", "", "pods");
    assert!(!allowed(&policy, &get));
}

#[test]
fn a_writer_grants_only_what_they_hold_unless_they_may_escalate_or_bind() {
    let rbac = json!([
        {"apiGroups": [GROUP], "resources": ["roles"], "verbs": ["escalate"], "resourceNames": ["special"]},
        {"apiGroups": [GROUP], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["big"]},
        {"apiGroups": [""], "resources": ["pods", "*/status"], "verbs": ["get", "list"]},
    ]);
    let policy = policy(&[
        role("Role", "a", "own", rbac),
        role(
            "ClusterRole",
            "",
            "big",
            json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        ),
        role("ClusterRole", "", "small", get_pods()),
        role(
            "ClusterRole",
            "",
            "secrets",
            json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]),
        ),
        binding(
            "a",
            "b",
            ("Role", "own"),
            json!([{"kind": "User", "name": "alice"}]),
        ),
    ]);
    let alice = User::new("alice", &["dev"]);
    let write_role = |name: &str, rules: Value| {
        policy.check_role_write(&alice, "a", &role("Role", "a", name, rules), None)
    };
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]);
    assert_eq!(write_role("r", get_pods()), Ok(()));
    assert_eq!(
        write_role(
            "r",
            json!([{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get"]}])
        ),
        Ok(())
    );
    assert_eq!(write_role("special", secrets.clone()), Ok(()));
    let refused = write_role("r", secrets.clone()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "user \"alice\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
    );
    let bind = |role: &str| {
        let new = binding("a", "n", ("ClusterRole", role), json!([]));
        policy.check_binding_write(&alice, "a", &new, None)
    };
    assert_eq!(bind("big"), Ok(()));
    assert_eq!(bind("small"), Ok(()));
    assert!(matches!(bind("secrets"), Err(Escalation::NotHeld(_))));
    assert!(matches!(bind("nowhere"), Err(Escalation::RoleNotFound(_))));
    // Removing a finalizer grants nothing.
    let mut old = role("Role", "a", "r", secrets.clone());
    old["metadata"]["finalizers"] = json!(["x/y"]);
    assert_eq!(
        policy.check_role_write(&alice, "a", &role("Role", "a", "r", secrets), Some(&old)),
        Ok(())
    );
    assert!(
        policy
            .check_role_write(&alice, "", &aggregating("x", "y", "z"), None)
            .is_err()
    );
    let root = User::new("root", &[MASTERS]);
    assert_eq!(
        policy.check_role_write(&root, "", &aggregating("x", "y", "z"), None),
        Ok(())
    );
}

/// Walks every binding for every question; the index must agree with it.
fn naive(objects: &[Value], request: &Attributes<'_>) -> bool {
    let find_rules = |kind: &str, namespace: &str, name: &str| {
        let found = objects.iter().rev().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"] == name
                && object["metadata"]["namespace"] == namespace
        });
        found.map(|role| {
            role["rules"]
                .as_array()
                .unwrap()
                .iter()
                .map(Rule::from_wire)
                .collect::<Vec<_>>()
        })
    };
    if request.user.is_master() {
        return true;
    }
    objects.iter().enumerate().any(|(at, object)| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap();
        let applies = match object["kind"].as_str().unwrap() {
            "ClusterRoleBinding" => true,
            "RoleBinding" => request.path.is_none() && namespace == request.namespace,
            _ => false,
        };
        let replaced = objects[at + 1..].iter().any(|later| {
            later["kind"] == object["kind"]
                && later["metadata"]["name"] == object["metadata"]["name"]
                && later["metadata"]["namespace"] == object["metadata"]["namespace"]
        });
        let names_user = |subject: &Value| match subject["kind"].as_str().unwrap() {
            "User" => subject["name"] == request.user.name.as_str(),
            _ => request
                .user
                .groups
                .iter()
                .any(|group| subject["name"] == group.as_str()),
        };
        if !applies || replaced || !object["subjects"].as_array().unwrap().iter().any(names_user) {
            return false;
        }
        let kind = object["roleRef"]["kind"].as_str().unwrap();
        let role_namespace = if kind == "Role" { namespace } else { "" };
        let rules = find_rules(kind, role_namespace, object["roleRef"]["name"].as_str().unwrap());
        rules.unwrap_or_default().iter().any(|rule| rule.allows(request))
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    let pick = |list: &'static [&'static str]| prop::sample::select(list);
    let picks = move |list: &'static [&'static str]| prop::collection::vec(prop::sample::select(list), 0..3);
    let rule = (
        picks(&["", "apps", "*"]),
        picks(&["pods", "pods/status", "*/status", "*"]),
        picks(&["x", "y"]),
        picks(&["/healthz", "/api*", "*"]),
        picks(&["get", "list", "create", "*"]),
    )
        .prop_map(|(groups, resources, names, urls, verbs)| {
            json!({"apiGroups": groups, "resources": resources, "resourceNames": names,
                "nonResourceURLs": urls, "verbs": verbs})
        });
    let role_object = (
        any::<bool>(),
        pick(&["a", "b"]),
        pick(&["r", "s"]),
        prop::collection::vec(rule, 0..3),
    )
        .prop_map(|(cluster, namespace, name, rules)| {
            if cluster {
                role("ClusterRole", "", name, rules.into())
            } else {
                role("Role", namespace, name, rules.into())
            }
        });
    let subject = (
        pick(&["User", "Group"]),
        pick(&["alice", "bob", "dev", "system:masters"]),
    )
        .prop_map(|(kind, name)| json!({"kind": kind, "name": name}));
    let binding_object = (
        pick(&["", "a", "b"]),
        pick(&["b1", "b2", "b3"]),
        pick(&["Role", "ClusterRole"]),
        pick(&["r", "s", "gone"]),
        prop::collection::vec(subject, 0..3),
    )
        .prop_map(|(namespace, name, kind, role, subjects)| {
            let kind = if namespace.is_empty() { "ClusterRole" } else { kind };
            binding(namespace, name, (kind, role), subjects.into())
        });
    prop_oneof![role_object, binding_object]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_index_agrees_with_a_walk_over_all_objects(
        objects in prop::collection::vec(any_object(), 0..12),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        user in prop::sample::select(vec![("alice", vec!["dev"]), ("bob", vec![]), ("eve", vec!["system:masters"])]),
        verb in prop::sample::select(vec!["get", "list", "create"]),
        target in prop::sample::select(vec!["pods", "pods/status", "services", "/healthz", "/apis"]),
        namespace in prop::sample::select(vec!["", "a", "b"]),
        name in prop::sample::select(vec!["", "x", "z"]),
    ) {
        let mut policy = policy(&objects);
        let mut remaining = objects.clone();
        for at in removed {
            if objects.is_empty() { break }
            let gone = &objects[at.index(objects.len())];
            let text = |field: &str| gone["metadata"][field].as_str().unwrap();
            policy.remove(gone["kind"].as_str().unwrap(), text("namespace"), text("name"));
            remaining.retain(|object| object["kind"] != gone["kind"] || object["metadata"] != gone["metadata"]);
        }
        let user = User::new(user.0, &user.1);
        let request = if target.starts_with('/') {
            Attributes::path(&user, verb, target)
        } else {
            let (resource, subresource) = target.split_once('/').unwrap_or((target, ""));
            Attributes::resource(&user, verb, "", resource).subresource(subresource).named(name)
        }
        .in_namespace(namespace);
        prop_assert_eq!(allowed(&policy, &request), naive(&remaining, &request));
        if !user.is_master() {
            prop_assert_eq!(policy.explain(&request).is_some(), allowed(&policy, &request));
        }
    }

    #[test]
    fn rules_cover_themselves_and_what_is_covered_is_allowed(
        held in prop::collection::vec(any_object(), 1..4),
        granted in any_object(),
    ) {
        let rules = |object: &Value| -> Vec<Rule> {
            object["rules"].as_array().into_iter().flatten().map(Rule::from_wire).collect()
        };
        let held: Vec<Rule> = held.iter().flat_map(rules).collect();
        let granted = rules(&granted);
        prop_assert!(covers(&held, &held).is_empty());
        if covers(&held, &granted).is_empty() {
            let user = User::default();
            for verb in ["get", "list", "create"] {
                for sub in ["", "status"] {
                    for name in ["x", "z"] {
                        let request = Attributes::resource(&user, verb, "apps", "pods").subresource(sub).named(name);
                        let by = |rules: &[Rule]| rules.iter().any(|rule| rule.allows(&request));
                        prop_assert!(!by(&granted) || by(&held));
                    }
                }
            }
        }
    }
}
