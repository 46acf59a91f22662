//! Which roles exist before anybody has written one?
//!
//! Each role of this program gets the least it needs; the general roles carry upstream's names so
//! that existing bindings keep their meaning. At every start [`reconcile`] adds what is missing to
//! the stored objects and takes nothing away, unless an object opts out with the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "false"`.

use super::authn::{AUTHENTICATED, MASTERS, NODES, UNAUTHENTICATED};
use super::rbac::{self, Rule, covers};
use own::{controller_rules, dns_rules, sli_rules};
use pointsman_rules::measured::Measured;
use pointsman_rules::value::{self, at, list_at, str_at};
use serde_json::{Value, json};

const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const READ: &[&str] = &["get", "list", "watch"];
const LIST_WATCH: &[&str] = &["list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const APPS: &str = "apps";
const EVENTS: &str = "events.k8s.io";
const DISCOVERY: &str = "discovery.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// What a latency profile is rolled out by.
const PROFILE_MAPS: [&str; 4] = pointsman_protocol::settings::ALL;
const HEALTH: &[&str] = &["/livez", "/readyz", "/healthz", "/version", "/version/"];

/// Every default ClusterRole and ClusterRoleBinding, and the Role and RoleBinding for leader
/// election, as objects ready to be stored.
pub fn defaults() -> Vec<Value> {
    let mut objects = general_roles();
    objects.extend(user_roles());
    objects.extend([
        cluster_role("system:node", node_rules()),
        cluster_role("system:node-proxier", proxy_rules()),
        cluster_role("system:kubelet-api-admin", kubelet_client_rules()),
        cluster_role("system:pointsman-controllers", controller_rules()),
        cluster_role("system:pointsman-sli", sli_rules()),
        cluster_role("system:pointsman-dns", dns_rules()),
    ]);
    objects.extend([
        bind("cluster-admin", "cluster-admin", &[("Group", MASTERS)]),
        bind(
            "system:discovery",
            "system:discovery",
            &[("Group", AUTHENTICATED)],
        ),
        bind(
            "system:basic-user",
            "system:basic-user",
            &[("Group", AUTHENTICATED)],
        ),
        bind(
            "system:public-info-viewer",
            "system:public-info-viewer",
            &[("Group", AUTHENTICATED), ("Group", UNAUTHENTICATED)],
        ),
        bind(
            "system:monitoring",
            "system:monitoring",
            &[("Group", "system:monitoring")],
        ),
        bind("system:node", "system:node", &[("Group", NODES)]),
        bind(
            "system:node-proxier",
            "system:node-proxier",
            &[("User", "system:kube-proxy")],
        ),
        bind(
            "system:kubelet-api-admin",
            "system:kubelet-api-admin",
            &[("User", crate::node_client::USER)],
        ),
        bind(
            "system:pointsman-controllers",
            "system:pointsman-controllers",
            &[("User", "system:pointsman-controllers")],
        ),
        bind(
            "system:pointsman-sli",
            "system:pointsman-sli",
            &[("User", "system:pointsman-sli")],
        ),
        bind(
            "system:pointsman-dns",
            "system:pointsman-dns",
            &[("User", "system:pointsman-dns")],
        ),
    ]);
    objects.extend(leader_election());
    objects.extend(withdrawn_nodes());
    objects.extend(super::roles::of_programs());
    objects
}

fn general_roles() -> Vec<Value> {
    let discovery = [
        HEALTH,
        &["/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*"],
    ]
    .concat();
    let monitoring = [
        "/metrics",
        "/livez",
        "/readyz",
        "/healthz",
        "/livez/*",
        "/readyz/*",
        "/healthz/*",
    ];
    vec![
        cluster_role(
            "cluster-admin",
            vec![rule(&["*"], &["*"], &["*"]), paths(&["*"], &["*"])],
        ),
        cluster_role("system:discovery", vec![paths(&discovery, &["get"])]),
        cluster_role("system:public-info-viewer", vec![paths(HEALTH, &["get"])]),
        cluster_role("system:monitoring", vec![paths(&monitoring, &["get"])]),
        cluster_role(
            "system:basic-user",
            vec![
                rule(
                    &[AUTHORIZATION],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                rule(&[AUTHENTICATION], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        cluster_role("system:auth-delegator", delegation()),
    ]
}

/// The roles people bind in namespaces: `view` is part of `edit`, which is part of `admin`.
fn user_roles() -> Vec<Value> {
    let admin = vec![
        rule(&[AUTHORIZATION], &["localsubjectaccessreviews"], &["create"]),
        rule(
            &[rbac::GROUP],
            &["roles", "rolebindings"],
            &[READ, WRITE].concat(),
        ),
    ];
    vec![
        gathering("admin", None),
        gathering("edit", Some("admin")),
        gathering("view", Some("edit")),
        gathered("system:aggregate-to-admin", "admin", admin),
        gathered("system:aggregate-to-edit", "edit", edit_rules()),
        gathered("system:aggregate-to-view", "view", view_rules()),
        gathered(
            "system:aggregated-metrics-reader",
            "view",
            vec![rule(&[Measured::GROUP], &["nodes", "pods"], READ)],
        ),
    ]
}

fn view_rules() -> Vec<Value> {
    let workloads = [
        "controllerrevisions",
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "replicasets",
        "replicasets/scale",
        "replicasets/status",
        "statefulsets",
        "statefulsets/scale",
        "statefulsets/status",
    ];
    vec![
        rule(
            &[""],
            &[
                "configmaps",
                "endpoints",
                "events",
                "limitranges",
                "namespaces",
                "namespaces/status",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "pods",
                "pods/log",
                "pods/status",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "replicationcontrollers/status",
                "resourcequotas",
                "resourcequotas/status",
                "serviceaccounts",
                "services",
                "services/status",
            ],
            READ,
        ),
        rule(&[EVENTS], &["events"], READ),
        rule(&[DISCOVERY], &["endpointslices"], READ),
        rule(&[APPS], &workloads, READ),
        rule(
            &["autoscaling"],
            &["horizontalpodautoscalers", "horizontalpodautoscalers/status"],
            READ,
        ),
        rule(
            &["batch"],
            &["cronjobs", "cronjobs/status", "jobs", "jobs/status"],
            READ,
        ),
        rule(
            &["policy"],
            &["poddisruptionbudgets", "poddisruptionbudgets/status"],
            READ,
        ),
        rule(
            &["networking.k8s.io"],
            &["ingresses", "ingresses/status", "networkpolicies"],
            READ,
        ),
        rule(
            &["resource.k8s.io"],
            &[
                "resourceclaims",
                "resourceclaims/status",
                "resourceclaimtemplates",
            ],
            READ,
        ),
    ]
}

fn edit_rules() -> Vec<Value> {
    vec![
        rule(
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "pods",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
            ],
            WRITE,
        ),
        // Whoever may edit may also talk to what runs; whoever may only view may not.
        rule(
            &[""],
            &["pods/attach", "pods/exec", "pods/portforward"],
            &["create", "get"],
        ),
        rule(
            &[""],
            &["pods/proxy", "services/proxy"],
            &[&["get"], WRITE].concat(),
        ),
        // They may read Secrets too.
        rule(&[""], &["secrets"], READ),
        rule(&[""], &["serviceaccounts/token"], &["create"]),
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(&[""], &["serviceaccounts"], &["impersonate"]),
        rule(&[EVENTS], &["events"], WRITE),
        rule(
            &[APPS],
            &[
                "daemonsets",
                "deployments",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
            WRITE,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], WRITE),
        rule(&["batch"], &["cronjobs", "jobs"], WRITE),
        rule(&["policy"], &["poddisruptionbudgets"], WRITE),
        rule(&["networking.k8s.io"], &["ingresses", "networkpolicies"], WRITE),
        rule(
            &["resource.k8s.io"],
            &["resourceclaims", "resourceclaimtemplates"],
            WRITE,
        ),
        rule(&[COORDINATION], &["leases"], &[READ, WRITE].concat()),
    ]
}

/// What a node agent needs; [`super::node_restriction`] narrows it to the agent's own node.
fn node_rules() -> Vec<Value> {
    let mut rules = vec![
        rule(
            &[""],
            &["nodes"],
            &["create", "get", "list", "watch", "update", "patch"],
        ),
        rule(&[""], &["nodes/status"], &["update", "patch"]),
        rule(&[""], &["pods"], &["get", "list", "watch", "delete"]),
        rule(&[""], &["pods/status"], &["update", "patch"]),
        rule(&[""], &["services", "configmaps", "secrets"], READ),
        rule(
            &[""],
            &["persistentvolumeclaims", "persistentvolumes", "serviceaccounts"],
            &["get"],
        ),
        rule(&[""], &["serviceaccounts/token"], &["create"]),
        rule(&[DISCOVERY], &["endpointslices"], READ),
        rule(
            &[COORDINATION],
            &["leases"],
            &["get", "create", "update", "patch", "delete"],
        ),
        // What kubelets read about storage, runtimes and certificates, and what they say about their node.
        rule(&[""], &["persistentvolumes", "persistentvolumeclaims"], &["get"]),
        rule(&["storage.k8s.io"], &["volumeattachments"], &["get"]),
        rule(&["storage.k8s.io"], &["csidrivers"], READ),
        rule(
            &["storage.k8s.io"],
            &["csinodes"],
            &["create", "delete", "get", "patch", "update"],
        ),
        rule(&["node.k8s.io"], &["runtimeclasses"], READ),
        rule(&["resource.k8s.io"], &["resourceclaims"], &["get"]),
        rule(&["resource.k8s.io"], &["resourceslices"], &["deletecollection"]),
        rule(&["certificates.k8s.io"], &["clustertrustbundles"], READ),
        rule(
            &["certificates.k8s.io"],
            &["certificatesigningrequests", "podcertificaterequests"],
            &["create", "get", "list", "watch"],
        ),
        events(),
    ];
    // Who may ask the agent itself for logs and metrics, and who that is, is decided here.
    rules.extend(delegation());
    rules
}

/// What is needed to let the server say who may read a role's metrics.
fn delegation() -> Vec<Value> {
    vec![
        rule(&[AUTHENTICATION], &["tokenreviews"], &["create"]),
        rule(&[AUTHORIZATION], &["subjectaccessreviews"], &["create"]),
    ]
}

fn proxy_rules() -> Vec<Value> {
    let mut rules = vec![
        rule(&[""], &["services", "endpoints"], LIST_WATCH),
        rule(&[""], &["nodes"], READ),
        rule(&[DISCOVERY], &["endpointslices"], LIST_WATCH),
        rule(&["networking.k8s.io"], &["servicecidrs"], LIST_WATCH),
        events(),
    ];
    rules.extend(delegation());
    rules
}

/// What this server asks agents for; they ask back whether it may.
fn kubelet_client_rules() -> Vec<Value> {
    let parts = [
        "nodes/configz",
        "nodes/log",
        "nodes/metrics",
        "nodes/pods",
        "nodes/proxy",
        "nodes/stats",
    ];
    vec![
        rule(&[""], &parts, &["get"]),
        // To talk to programs in pods.
        rule(&[""], &["nodes/proxy"], &["create"]),
    ]
}

/// Leases, and the profile's settings, that controllers write in `kube-system`.
fn leader_election() -> Vec<Value> {
    let rules = json!([
        rule(&[COORDINATION], &["leases"], &["create", "update", "patch"]),
        // Creation cannot be limited by name.
        rule(&[""], &["configmaps"], &["create"]),
        {
            "apiGroups": [""], "resources": ["configmaps"], "verbs": ["update", "patch"],
            "resourceNames": PROFILE_MAPS,
        },
    ]);
    let name = "system:pointsman-controllers";
    in_kube_system(name, &rules, name)
}

/// The list of withdrawn nodes, for proxies that end connections to them and for the page that says who voted.
fn withdrawn_nodes() -> Vec<Value> {
    let rules = json!([{
        "apiGroups": [COORDINATION], "resources": ["leases"], "verbs": READ,
        "resourceNames": [pointsman_protocol::peers::LIST_LEASE],
    }]);
    let mut objects = in_kube_system("system:node-proxier", &rules, "system:kube-proxy");
    let sli = "system:pointsman-sli";
    objects.extend(in_kube_system(sli, &rules, sli));
    objects
}

fn in_kube_system(name: &str, rules: &Value, user: &str) -> Vec<Value> {
    let subjects = json!([{"apiGroup": rbac::GROUP, "kind": "User", "name": user}]);
    let role = json!({"apiGroup": rbac::GROUP, "kind": "Role", "name": name});
    let mut objects = vec![
        object("Role", name, json!({"rules": rules})),
        object(
            "RoleBinding",
            name,
            json!({"subjects": subjects, "roleRef": role}),
        ),
    ];
    for object in &mut objects {
        value::set(object, &["metadata", "namespace"], "kube-system");
    }
    objects
}

fn events() -> Value {
    rule(&["", EVENTS], &["events"], &["create", "patch", "update"])
}

pub(super) fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

pub(super) fn paths(urls: &[&str], verbs: &[&str]) -> Value {
    json!({"nonResourceURLs": urls, "verbs": verbs})
}

pub(super) fn object(kind: &str, name: &str, body: Value) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {AUTO_UPDATE: "true"},
        },
    });
    if let (Value::Object(object), Value::Object(body)) = (&mut object, body) {
        object.extend(body);
    }
    object
}

pub(super) fn cluster_role(name: &str, rules: Vec<Value>) -> Value {
    object("ClusterRole", name, json!({"rules": rules}))
}

/// A role that gathers the rules labelled for it, and is itself labelled for the wider role.
fn gathering(name: &str, wider: Option<&str>) -> Value {
    let selectors = json!([{"matchLabels": {aggregate_to(name): "true"}}]);
    let body = json!({"aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []});
    let mut role = object("ClusterRole", name, body);
    if let Some(wider) = wider {
        value::set(&mut role, &["metadata", "labels", &aggregate_to(wider)], "true");
    }
    role
}

fn gathered(name: &str, into: &str, rules: Vec<Value>) -> Value {
    let mut role = cluster_role(name, rules);
    value::set(&mut role, &["metadata", "labels", &aggregate_to(into)], "true");
    role
}

fn aggregate_to(name: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{name}")
}

fn bind(name: &str, role: &str, subjects: &[(&str, &str)]) -> Value {
    let subjects: Vec<Value> = subjects
        .iter()
        .map(|(kind, name)| json!({"apiGroup": rbac::GROUP, "kind": kind, "name": name}))
        .collect();
    let role = json!({"apiGroup": rbac::GROUP, "kind": "ClusterRole", "name": role});
    object(
        "ClusterRoleBinding",
        name,
        json!({"subjects": subjects, "roleRef": role}),
    )
}

/// The object to store so that `existing` grants at least what `wanted` does, or nothing if it does
/// already or opts out. A binding whose role differs gets the wanted role: its reference cannot be
/// changed through the API, so the caller writes it as a replacement.
pub fn reconcile(existing: Option<&Value>, wanted: &Value) -> Option<Value> {
    let Some(existing) = existing else {
        return Some(wanted.clone());
    };
    if str_at(existing, &["metadata", "annotations", AUTO_UPDATE]) == "false" {
        return None;
    }
    let mut result = existing.clone();
    for field in ["labels", "annotations"] {
        for (key, text) in value::map_at(wanted, &["metadata", field]).into_iter().flatten() {
            value::set_default(&mut result, &["metadata", field, key], text.clone());
        }
    }
    if str_at(wanted, &["kind"]).ends_with("Binding") {
        add_missing(&mut result, wanted, &["subjects"]);
        if at(existing, &["roleRef"]) != at(wanted, &["roleRef"]) {
            value::set(&mut result, &["roleRef"], wanted["roleRef"].clone());
        }
    } else {
        add_missing_rules(&mut result, wanted);
    }
    (result != *existing).then_some(result)
}

fn add_missing_rules(result: &mut Value, wanted: &Value) {
    if at(wanted, &["aggregationRule"]).is_some() {
        add_missing(result, wanted, &["aggregationRule", "clusterRoleSelectors"]);
        return;
    }
    value::remove(result, &["aggregationRule"]);
    let read =
        |role: &Value| -> Vec<Rule> { list_at(role, &["rules"]).iter().map(Rule::from_wire).collect() };
    let missing = covers(&read(result), &read(wanted));
    if !missing.is_empty() {
        let mut rules = list_at(result, &["rules"]).to_vec();
        rules.extend(missing.iter().map(Rule::to_wire));
        value::set(result, &["rules"], rules);
    }
}

fn add_missing(result: &mut Value, wanted: &Value, path: &[&str]) {
    let mut items = list_at(result, path).to_vec();
    let missing: Vec<Value> = list_at(wanted, path)
        .iter()
        .filter(|item| !items.contains(item))
        .cloned()
        .collect();
    if !missing.is_empty() {
        items.extend(missing);
        value::set(result, path, items);
    }
}

mod own;
#[cfg(test)]
mod tests;
