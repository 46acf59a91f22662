//! Does a node agent stay within its own node?
//!
//! Roles cannot say "the Node of your own name" or "pods bound to you", so these checks run after
//! authorization, on the objects themselves. They apply to members of `system:nodes` only:
//!
//! - Node and nodes/status: writes to its own, without touching taints, owners or labels it may not
//!   choose. The ranges of its pods are not its choice either, at no time: its neighbours route by
//!   them. Reads of all nodes stay allowed.
//! - Lease: its own, in `kube-node-lease`.
//! - Pod: reads, status writes, evictions and deletes of pods bound to it. A list or watch must be
//!   pinned to the node by the field selector `spec.nodeName`.
//! - Secret, ConfigMap, ServiceAccount and PersistentVolumeClaim: reads of those that its pods name
//!   ([`super::node_graph`]), one at a time; PersistentVolumes of such claims; the settings of agents.
//! - ResourceClaim: likewise. VolumeAttachment: reads of those to it. CSINode: its own. ResourceSlice: writes of its own.
//! - PodCertificateRequest: those of its own pods; a list or watch pinned as for pods.
//! - Tokens: of the accounts of its pods, bound to the pod.
//! - Everything else is left to authorization; the node's role allows creating and patching
//!   events, and reading services and endpointslices.

use super::User;
use super::authn::NODES;
use pointsman_protocol::settings;
use pointsman_rules::value::{at, list_at, map_at, str_at};
use pointsman_rules::{Kind, kinds};
use serde_json::Value;
use std::collections::BTreeSet;

/// The namespace of node heartbeats.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// One request about a resource, with the objects it concerns.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub user: &'a User,
    /// The verb, as authorization names it.
    pub verb: &'a str,
    /// The kind the request is about.
    pub kind: &'static Kind,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The namespace; empty for cluster kinds.
    pub namespace: &'a str,
    /// The object's name; for a create, the name in the body.
    pub name: &'a str,
    /// The stored object, for get, update, patch, delete and subresources.
    pub old: Option<&'a Value>,
    /// The object as it would be stored, for create, update and patch.
    pub new: Option<&'a Value>,
    /// The node that a list or watch is pinned to by `spec.nodeName`.
    pub field_selector_node: Option<&'a str>,
    /// Whether a pod of the node names the object.
    pub related: bool,
}

/// Whether the restriction lets the request pass; the error says why not.
pub fn check(request: &Request<'_>) -> Result<(), String> {
    if !request.user.in_group(NODES) {
        return Ok(());
    }
    let Some(node) = request.user.node_name() else {
        return Err(format!(
            "could not determine node from user {:?}",
            request.user.name
        ));
    };
    match request.kind {
        kind if kind == &kinds::NODE => check_node(node, request),
        kind if kind == &kinds::POD => check_pod(node, request),
        kind if kind == &kinds::LEASE => check_lease(node, request),
        kind if is_named_by_pods(kind) => check_named(node, request),
        kind => check_others(node, kind, request),
    }
}

/// Whether an object says that it is about the node.
fn is_about(node: &str, object: Option<&Value>) -> bool {
    object.is_some_and(|object| str_at(object, &["spec", "nodeName"]) == node)
}

/// What kubelets read and write about storage, devices and certificates.
fn check_others(node: &str, kind: &Kind, request: &Request<'_>) -> Result<(), String> {
    let reads = matches!(request.verb, "get" | "list" | "watch");
    let (old, new) = (request.old, request.new);
    let own = match (kind.group, kind.plural, request.verb) {
        ("storage.k8s.io", "csinodes", _) => request.name == node,
        ("storage.k8s.io", "volumeattachments", "get") => is_about(node, old),
        ("storage.k8s.io", "volumeattachments", _) => false,
        ("resource.k8s.io", "resourceslices", _) if !reads => [old, new]
            .into_iter()
            .flatten()
            .all(|slice| is_about(node, Some(slice))),
        ("certificates.k8s.io", "podcertificaterequests", verb) => match verb {
            "create" => is_about(node, new) && request.related,
            "get" => is_about(node, old),
            "list" | "watch" => request.field_selector_node == Some(node),
            _ => false,
        },
        _ => return Ok(()),
    };
    if own {
        return Ok(());
    }
    let (verb, plural) = (request.verb, kind.plural);
    Err(format!("node {node:?} can only {verb} {plural} of its own"))
}

/// Whether nodes may read objects of the kind because their pods name them.
pub fn is_named_by_pods(kind: &Kind) -> bool {
    let plurals = [
        "secrets",
        "configmaps",
        "serviceaccounts",
        "persistentvolumeclaims",
        "persistentvolumes",
    ];
    let claims = ("resource.k8s.io", "resourceclaims");
    kind.group.is_empty() && plurals.contains(&kind.plural) || (kind.group, kind.plural) == claims
}

fn check_named(node: &str, request: &Request<'_>) -> Result<(), String> {
    let is_settings = request.kind == &kinds::CONFIG_MAP
        && (request.namespace, request.name) == (settings::NAMESPACE, settings::NODE);
    match request.verb {
        "get" | "list" | "watch" if request.related || is_settings => Ok(()),
        _ => Err(format!(
            "no relationship found between node {node:?} and this object"
        )),
    }
}

/// Whether a node may have the token that it asks for; `pod` is the one it is to be bound to. It is for whom a volume of
/// the pod asks one, or the `drivers` of its volumes; `own` is whom tokens are for that name nobody.
pub fn check_token(
    user: &User,
    asked: &Value,
    pod: Option<&Value>,
    own: &[String],
    drivers: &[Value],
) -> Result<(), String> {
    if !applies(user) {
        return Ok(());
    }
    let pod = pod.ok_or("node requested token not bound to a pod")?;
    if str_at(asked, &["spec", "boundObjectRef", "uid"]).is_empty() {
        return Err("node requested token with a pod binding without a uid".into());
    }
    if user.node_name() != Some(str_at(pod, &["spec", "nodeName"])) {
        return Err("node requested token bound to a pod scheduled on a different node".into());
    }
    let volumes = list_at(pod, &["spec", "volumes"]).iter();
    let sources = volumes.flat_map(|volume| list_at(volume, &["projected", "sources"]));
    let tokens: Vec<&Value> = sources
        .filter_map(|source| at(source, &["serviceAccountToken"]))
        .chain(
            drivers
                .iter()
                .flat_map(|driver| list_at(driver, &["spec", "tokenRequests"])),
        )
        .collect();
    for audience in list_at(asked, &["spec", "audiences"])
        .iter()
        .filter_map(Value::as_str)
    {
        let is_asked_for = tokens.iter().any(|token| match str_at(token, &["audience"]) {
            "" => own.iter().any(|own| own == audience),
            named => named == audience,
        });
        if !is_asked_for {
            return Err(format!("audience {audience:?} not found in pod spec volume"));
        }
    }
    Ok(())
}

/// Whether the caller must be checked at all, so that others cost nothing.
pub fn applies(user: &User) -> bool {
    user.in_group(NODES)
}

fn check_node(node: &str, request: &Request<'_>) -> Result<(), String> {
    match request.verb {
        "get" | "list" | "watch" => return Ok(()),
        "create" | "update" | "patch" | "delete" if request.name == node => {}
        "create" | "update" | "patch" | "delete" => {
            return Err(format!(
                "node {node:?} is not allowed to modify node {:?}",
                request.name
            ));
        }
        verb => return Err(format!("node {node:?} is not allowed to {verb} nodes")),
    }
    let Some(new) = request.new else { return Ok(()) };
    for path in [["spec", "podCIDR"], ["spec", "podCIDRs"]] {
        let before = request.old.and_then(|old| normal(old, &path));
        if before != normal(new, &path) {
            let what = if before.is_none() { "set" } else { "modify" };
            return Err(format!("node {node:?} is not allowed to {what} podCIDRs"));
        }
    }
    let forbidden = forbidden_labels(request.old, new);
    let listed = forbidden.into_iter().collect::<Vec<_>>().join(", ");
    match request.old {
        None if listed.is_empty() => Ok(()),
        None => Err(format!(
            "node {node:?} is not allowed to set the following labels: {listed}"
        )),
        Some(_) if !listed.is_empty() => Err(format!("is not allowed to modify labels: {listed}")),
        Some(old) => {
            for (path, what) in [
                (&["spec", "taints"], "taints"),
                (&["metadata", "ownerReferences"], "ownerReferences"),
            ] {
                if normal(old, path) != normal(new, path) {
                    return Err(format!("node {node:?} is not allowed to modify {what}"));
                }
            }
            Ok(())
        }
    }
}

/// The list or text at `path`; an empty one is the same as none.
fn normal<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    at(object, path).filter(|value| match value {
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    })
}

fn check_lease(node: &str, request: &Request<'_>) -> Result<(), String> {
    if request.namespace != LEASE_NAMESPACE {
        return Err(format!(
            "can only access leases in the {LEASE_NAMESPACE:?} system namespace"
        ));
    }
    // A list or watch is pinned by the name its field selector gives.
    if request.name != node {
        return Err("can only access node lease with the same name as the requesting node".into());
    }
    Ok(())
}

fn check_pod(node: &str, request: &Request<'_>) -> Result<(), String> {
    let bound = request
        .old
        .is_some_and(|pod| str_at(pod, &["spec", "nodeName"]) == node);
    let own = |what: &str| {
        let refusal = || format!("node {node:?} can only {what} pods with spec.nodeName set to itself");
        if bound { Ok(()) } else { Err(refusal()) }
    };
    match (request.verb, request.subresource) {
        ("list" | "watch", "") if request.field_selector_node == Some(node) => Ok(()),
        ("list" | "watch", "") => Err(format!(
            "node {node:?} can only list or watch pods with field selector spec.nodeName={node}"
        )),
        ("get", _) => own("read"),
        ("delete", "") => own("delete"),
        ("create", "eviction") => own("evict"),
        ("update" | "patch", "status") => {
            own("update status of")?;
            let labels =
                |pod: Option<&Value>| pod.and_then(|pod| map_at(pod, &["metadata", "labels"])).cloned();
            if request.new.is_some()
                && labels(request.old).unwrap_or_default() != labels(request.new).unwrap_or_default()
            {
                return Err(format!("node {node:?} cannot update labels through pod status"));
            }
            Ok(())
        }
        (verb, "") => Err(format!("node {node:?} is not allowed to {verb} pods")),
        (_, other) => Err(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        )),
    }
}

/// Labels that the write changes although a node may not choose them, in order.
fn forbidden_labels(old: Option<&Value>, new: &Value) -> BTreeSet<String> {
    let path = ["metadata", "labels"];
    let (old, new) = (old.and_then(|old| map_at(old, &path)), map_at(new, &path));
    let keys = old.into_iter().chain(new).flat_map(|labels| labels.keys());
    let changed = keys.filter(|key| {
        old.and_then(|labels| labels.get(key.as_str())) != new.and_then(|labels| labels.get(key.as_str()))
    });
    changed.filter(|key| is_forbidden_label(key)).cloned().collect()
}

fn is_forbidden_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    let within = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|head| head.is_empty() || head.ends_with('.'))
    };
    if within(RESTRICTED) {
        return true;
    }
    // Under the project's own domains, a node chooses only what describes itself.
    let reserved = within("kubernetes.io") || within("k8s.io");
    let describes =
        OWN_LABELS.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io");
    reserved && !describes
}

/// What upstream lets a kubelet set under the reserved domains.
const OWN_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

#[cfg(test)]
mod tests;
