use super::*;
use crate::auth::pki::Identity;
use crate::auth::{Attributes, Decision, Policy, User};
use pointsman_rules::Kind;

fn policy() -> Policy {
    let mut policy = Policy::default();
    defaults().iter().for_each(|object| policy.upsert(object));
    policy
}

fn user(identity: &Identity) -> User {
    let mut user = User {
        name: identity.name.clone(),
        groups: identity.groups.clone(),
        ..User::default()
    };
    user.add_group(AUTHENTICATED);
    user
}

fn may(user: &User, verb: &str, what: &str) -> bool {
    let policy = policy();
    let request = if what.starts_with('/') {
        Attributes::path(user, verb, what)
    } else {
        let (what, name) = what.split_once('#').unwrap_or((what, "x"));
        let (resource, namespace) = what.split_once('@').unwrap_or((what, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let group = if group == "config" {
            "config.openshift.io"
        } else {
            group
        };
        let group = if group == "discovery" { DISCOVERY } else { group };
        let group = if group == "coordination" {
            COORDINATION
        } else {
            group
        };
        let group = if group == "authorization" {
            AUTHORIZATION
        } else {
            group
        };
        Attributes::resource(user, verb, group, resource)
            .subresource(subresource)
            .in_namespace(namespace)
            .named(name)
    };
    policy.authorize(&request) == Decision::Allow
}

fn check(user: &User, allowed: &[(&str, &str)], refused: &[(&str, &str)]) {
    for (verb, what) in allowed {
        assert!(may(user, verb, what), "{} may {verb} {what}", user.name);
    }
    for (verb, what) in refused {
        assert!(!may(user, verb, what), "{} may not {verb} {what}", user.name);
    }
}

#[test]
fn strangers_see_health_and_version_only() {
    check(
        &User::anonymous(),
        &[
            ("get", "/healthz"),
            ("get", "/livez"),
            ("get", "/readyz"),
            ("get", "/version"),
        ],
        &[
            ("get", "/metrics"),
            ("get", "/api"),
            ("get", "/readyz/etcd"),
            ("list", "namespaces"),
            ("post", "/healthz"),
        ],
    );
    let somebody = User::new("alice", &[AUTHENTICATED]);
    check(
        &somebody,
        &[
            ("get", "/apis/apps/v1"),
            ("get", "/openapi/v3"),
            ("create", "selfsubjectaccessreviews.authorization"),
        ],
        &[
            ("get", "/metrics"),
            ("list", "pods@default"),
            ("create", "subjectaccessreviews.authorization"),
        ],
    );
}

#[test]
fn each_role_has_what_it_needs_and_not_more() {
    check(
        &user(&Identity::node("n1")),
        &[
            ("create", "nodes"),
            ("patch", "nodes/status"),
            ("patch", "pods/status@x"),
            ("delete", "pods@x"),
            ("watch", "pods"),
            ("update", "leases.coordination@kube-node-lease"),
            ("create", "events@x"),
            ("get", "configmaps@x"),
            ("create", "subjectaccessreviews.authorization"),
            ("create", "tokenreviews.authentication.k8s.io"),
        ],
        &[
            ("create", "pods@x"),
            ("update", "pods@x"),
            ("delete", "nodes"),
            ("create", "pods/binding@x"),
            ("update", "services@x"),
            ("update", "configmaps@x"),
            ("get", "/metrics"),
            ("delete", "namespaces"),
        ],
    );
    check(
        &user(&Identity::proxy()),
        &[
            ("list", "services"),
            ("watch", "endpointslices.discovery"),
            ("get", "nodes"),
            ("patch", "events@x"),
        ],
        &[
            ("list", "pods"),
            ("patch", "nodes/status"),
            ("update", "services@x"),
            ("list", "configmaps@x"),
        ],
    );
    check(
        &user(&Identity::controllers()),
        &[
            ("create", "endpointslices.discovery@x"),
            ("create", "pods@x"),
            ("delete", "pods@x"),
            ("create", "pods/binding@x"),
            ("patch", "nodes"),
            ("update", "deployments/status.apps@x"),
            ("create", "replicasets.apps@x"),
            ("update", "leases.coordination@kube-system"),
            ("create", "leases.coordination@kube-system"),
            ("watch", "leases.coordination@kube-node-lease"),
            ("get", "leases.coordination@kube-node-lease"),
            ("patch", "nodes/status"),
            ("patch", "pods/status@x"),
            ("patch", "configmaps@kube-system#pointsman-latency-profile"),
            ("patch", "configmaps@kube-system#pointsman-node"),
            ("create", "configmaps@kube-system"),
            ("patch", "nodes/status.config"),
            ("watch", "nodes.config"),
        ],
        &[
            ("update", "leases.coordination@kube-node-lease"),
            ("patch", "configmaps@x"),
            ("patch", "configmaps@kube-system"),
            ("delete", "configmaps@kube-system"),
            ("update", "services@x"),
            ("delete", "nodes"),
            ("delete", "namespaces"),
            ("create", "clusterroles.rbac.authorization.k8s.io"),
            ("delete", "deployments.apps@x"),
        ],
    );
    check(
        &user(&Identity::sli()),
        &[
            ("list", "services"),
            ("watch", "pods"),
            ("get", "nodes/metrics"),
            ("get", "/metrics"),
            ("create", "events@x"),
        ],
        &[
            ("patch", "pods/status@x"),
            ("get", "configmaps@x"),
            ("update", "nodes"),
            ("delete", "events@x"),
        ],
    );
    check(
        &user(&Identity::dns()),
        &[("list", "services"), ("watch", "endpointslices.discovery")],
        &[
            ("list", "pods"),
            ("update", "services@x"),
            ("get", "configmaps@x"),
            ("get", "/metrics"),
        ],
    );
}

#[test]
fn view_is_part_of_edit_and_edit_of_admin() {
    let mut policy = policy();
    for role in ["view", "edit", "admin"] {
        let subjects = json!([{"kind": "User", "name": role}]);
        policy.upsert(
            &json!({"kind": "RoleBinding", "metadata": {"name": role, "namespace": "x"},
            "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects}),
        );
    }
    let may = |name: &str, verb: &str, group: &str, resource: &str| {
        let user = User::new(name, &[]);
        policy.authorize(&Attributes::resource(&user, verb, group, resource).in_namespace("x"))
            == Decision::Allow
    };
    for name in ["view", "edit", "admin"] {
        assert!(may(name, "list", "", "pods"), "{name}");
    }
    assert!(
        !may("view", "create", "", "pods")
            && may("edit", "create", "", "pods")
            && may("admin", "create", "", "pods")
    );
    assert!(
        !may("edit", "create", rbac::GROUP, "rolebindings")
            && may("admin", "create", rbac::GROUP, "rolebindings")
    );
}

#[test]
fn defaults_are_well_formed_and_distinct() {
    let mut seen = std::collections::BTreeSet::new();
    for object in defaults() {
        let kind = Kind::by_type(str_at(&object, &["apiVersion"]), str_at(&object, &["kind"])).unwrap();
        let namespace = str_at(&object, &["metadata", "namespace"]);
        assert_eq!(kind.namespaced(), !namespace.is_empty());
        let name = str_at(&object, &["metadata", "name"]);
        assert!(
            seen.insert((kind.kind, namespace.to_owned(), name.to_owned())),
            "{kind:?} {name}"
        );
        assert_eq!(reconcile(Some(&object), &object), None);
        assert_eq!(reconcile(None, &object).as_ref(), Some(&object));
    }
}

#[test]
fn reconciling_adds_what_is_missing_and_keeps_what_was_added() {
    let wanted = cluster_role("r", vec![rule(&[""], &["pods"], &["get", "list"])]);
    let mut existing = cluster_role(
        "r",
        vec![
            rule(&[""], &["pods"], &["get"]),
            rule(&[""], &["secrets"], &["get"]),
        ],
    );
    value::set(&mut existing, &["metadata", "labels", "mine"], "yes");
    let result = reconcile(Some(&existing), &wanted).unwrap();
    assert_eq!(result["rules"].as_array().unwrap().len(), 3);
    assert_eq!(result["rules"][2], rule(&[""], &["pods"], &["list"]));
    assert_eq!(result["metadata"]["labels"]["mine"], "yes");
    assert_eq!(reconcile(Some(&result), &wanted), None);
    // Wider rules cover narrower ones.
    let wide = cluster_role("r", vec![rule(&["*"], &["*"], &["*"])]);
    assert_eq!(reconcile(Some(&wide), &wanted), None);
    value::set(&mut existing, &["metadata", "annotations", AUTO_UPDATE], "false");
    assert_eq!(reconcile(Some(&existing), &wanted), None);
}

#[test]
fn reconciling_a_binding_adds_subjects_and_restores_the_role() {
    let wanted = bind("b", "r", &[("Group", "g")]);
    let existing = bind("b", "other", &[("User", "alice")]);
    let result = reconcile(Some(&existing), &wanted).unwrap();
    assert_eq!(result["subjects"].as_array().unwrap().len(), 2);
    assert_eq!(result["roleRef"]["name"], "r");
    // An aggregating role keeps the rules that were gathered into it.
    let mut role = gathering("admin", None);
    role["rules"] = json!([rule(&[""], &["pods"], &["get"])]);
    assert_eq!(reconcile(Some(&role), &gathering("admin", None)), None);
}

#[test]
fn the_server_itself_may_ask_agents_and_nothing_else() {
    let identity = crate::node_client::identity();
    assert_eq!(identity.groups, [] as [&str; 0]);
    check(
        &user(&identity),
        &[
            ("get", "nodes/proxy"),
            // Streams to their pods.
            ("create", "nodes/proxy"),
            ("get", "nodes/log"),
            ("get", "nodes/metrics"),
        ],
        &[
            ("delete", "nodes/proxy"),
            ("get", "nodes"),
            ("list", "nodes"),
            ("get", "secrets@default"),
            ("get", "pods@default"),
            ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
            ("get", "/metrics"),
        ],
    );
}

#[test]
fn no_role_of_this_program_has_a_wildcard_and_only_nodes_may_read_secrets() {
    let own = |name: &str| {
        matches!(name, "system:node" | "system:node-proxier") || name.starts_with("system:pointsman-")
    };
    let mut checked = 0;
    for role in defaults() {
        if !own(str_at(&role, &["metadata", "name"])) || str_at(&role, &["kind"]).ends_with("Binding") {
            continue;
        }
        let rules = at(&role, &["rules"]).expect("a role has rules").to_string();
        // Those of its pods, which the restriction of nodes sees to.
        let of_nodes = str_at(&role, &["metadata", "name"]) == "system:node";
        assert!(
            !rules.contains('*') && rules.contains("secrets") == of_nodes,
            "{role:#}"
        );
        checked += 1;
    }
    assert_eq!(checked, 8);
}
