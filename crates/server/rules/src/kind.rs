//! Which kinds are served, under which names, with which verbs?
//!
//! One table, read by routing, discovery, OpenAPI, authorization and the store's key layout. A new
//! kind is one entry here, one schema file and one strategy.

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `/namespaces/<ns>/<plural>/<name>`.
    Namespaced,
    /// `/<plural>/<name>`.
    Cluster,
}

/// One served kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version within the group.
    pub version: &'static str,
    /// The `kind` field.
    pub kind: &'static str,
    /// The resource name in URLs.
    pub plural: &'static str,
    /// The resource name for one object, as kubectl accepts it.
    pub singular: &'static str,
    /// Abbreviations that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Groupings such as `all`.
    pub categories: &'static [&'static str],
    /// Namespaced or cluster-wide.
    pub scope: Scope,
    /// Subresources that are served.
    pub subresources: &'static [Subresource],
    /// Whether DELETE answers with the object instead of a Success Status.
    pub delete_returns_object: bool,
    /// Whether the kind follows the rules of custom resources (no strategic merge patch, PUT needs
    /// a resourceVersion).
    pub custom: bool,
    /// The group whose stored objects this kind shows, if they are stored under another one
    /// (`events.k8s.io` shows core events).
    pub stored_as: Option<&'static str>,
}

/// A served subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The status half of an object.
    Status,
    /// `autoscaling/v1` Scale over `spec.replicas`.
    Scale,
    /// Assigns a pod to a node, once.
    Binding,
    /// Deletes a pod if its disruption budgets allow it.
    Eviction,
    /// Empties a namespace's `spec.finalizers`.
    Finalize,
    /// The node agent's log stream.
    Log,
}

impl Subresource {
    /// The last path element.
    pub fn name(self) -> &'static str {
        match self {
            Status => "status",
            Scale => "scale",
            Binding => "binding",
            Eviction => "eviction",
            Finalize => "finalize",
            Log => "log",
        }
    }
}

impl Kind {
    /// The `apiVersion` field: `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The name in messages: `pods`, `deployments.apps`.
    pub fn qualified_plural(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub fn namespaced(&self) -> bool {
        self.scope == Namespaced
    }

    /// The group under which the store keeps objects of this kind.
    pub fn storage_group(&self) -> &'static str {
        self.stored_as.unwrap_or(self.group)
    }

    /// Finds a kind by its place in a URL.
    pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        KINDS
            .iter()
            .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
    }

    /// Finds a kind by its `apiVersion` and `kind`.
    pub fn by_type(api_version: &str, kind: &str) -> Option<&'static Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        KINDS
            .iter()
            .find(|known| known.group == group && known.version == version && known.kind == kind)
    }

    /// The position in [`KINDS`], a dense number for tables by kind.
    pub fn index(&'static self) -> usize {
        KINDS
            .iter()
            .position(|known| std::ptr::eq(known, self))
            .expect("kinds exist only in KINDS")
    }
}

const fn core(kind: &'static str, plural: &'static str, singular: &'static str, scope: Scope) -> Kind {
    Kind {
        group: "",
        version: "v1",
        kind,
        plural,
        singular,
        short_names: &[],
        categories: &[],
        scope,
        subresources: &[],
        delete_returns_object: false,
        custom: false,
        stored_as: None,
    }
}

const fn in_group(group: &'static str, kind: Kind) -> Kind {
    Kind { group, ..kind }
}

use Scope::{Cluster, Namespaced};
use Subresource::{Binding, Eviction, Finalize, Log, Scale, Status};

/// Every served kind. Order matters where two kinds share a plural: the first one answers to it.
pub static KINDS: &[Kind] = &[
    Kind {
        short_names: &["cm"],
        ..core("ConfigMap", "configmaps", "configmap", Namespaced)
    },
    Kind {
        short_names: &["ep"],
        ..core("Endpoints", "endpoints", "endpoints", Namespaced)
    },
    Kind {
        short_names: &["ev"],
        ..core("Event", "events", "event", Namespaced)
    },
    Kind {
        short_names: &["ns"],
        subresources: &[Status, Finalize],
        delete_returns_object: true,
        ..core("Namespace", "namespaces", "namespace", Cluster)
    },
    Kind {
        short_names: &["no"],
        subresources: &[Status],
        ..core("Node", "nodes", "node", Cluster)
    },
    Kind {
        short_names: &["po"],
        categories: &["all"],
        subresources: &[Status, Binding, Eviction, Log],
        delete_returns_object: true,
        ..core("Pod", "pods", "pod", Namespaced)
    },
    Kind {
        short_names: &["svc"],
        categories: &["all"],
        subresources: &[Status],
        delete_returns_object: true,
        ..core("Service", "services", "service", Namespaced)
    },
    Kind {
        short_names: &["sa"],
        delete_returns_object: true,
        ..core("ServiceAccount", "serviceaccounts", "serviceaccount", Namespaced)
    },
    Kind {
        short_names: &["ds"],
        categories: &["all"],
        subresources: &[Status],
        ..in_group("apps", core("DaemonSet", "daemonsets", "daemonset", Namespaced))
    },
    Kind {
        short_names: &["deploy"],
        categories: &["all"],
        subresources: &[Status, Scale],
        ..in_group(
            "apps",
            core("Deployment", "deployments", "deployment", Namespaced),
        )
    },
    Kind {
        short_names: &["rs"],
        categories: &["all"],
        subresources: &[Status, Scale],
        ..in_group(
            "apps",
            core("ReplicaSet", "replicasets", "replicaset", Namespaced),
        )
    },
    in_group(
        "coordination.k8s.io",
        core("Lease", "leases", "lease", Namespaced),
    ),
    in_group(
        "discovery.k8s.io",
        core("EndpointSlice", "endpointslices", "endpointslice", Namespaced),
    ),
    Kind {
        short_names: &["ev"],
        stored_as: Some(""),
        ..in_group("events.k8s.io", core("Event", "events", "event", Namespaced))
    },
    in_group(
        "rbac.authorization.k8s.io",
        core("ClusterRole", "clusterroles", "clusterrole", Cluster),
    ),
    in_group(
        "rbac.authorization.k8s.io",
        core(
            "ClusterRoleBinding",
            "clusterrolebindings",
            "clusterrolebinding",
            Cluster,
        ),
    ),
    in_group(
        "rbac.authorization.k8s.io",
        core("Role", "roles", "role", Namespaced),
    ),
    in_group(
        "rbac.authorization.k8s.io",
        core("RoleBinding", "rolebindings", "rolebinding", Namespaced),
    ),
    Kind {
        subresources: &[Status],
        custom: true,
        ..in_group("config.openshift.io", core("Node", "nodes", "node", Cluster))
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_per_group_and_the_core_node_comes_first() {
        for (at, kind) in KINDS.iter().enumerate() {
            assert!(
                !KINDS[..at]
                    .iter()
                    .any(|other| other.group == kind.group && other.plural == kind.plural)
            );
        }
        let node = KINDS.iter().find(|kind| kind.plural == "nodes").unwrap();
        assert_eq!(node.group, "");
        assert_eq!(
            Kind::by_type("config.openshift.io/v1", "Node")
                .unwrap()
                .qualified_plural(),
            "nodes.config.openshift.io"
        );
    }
}
