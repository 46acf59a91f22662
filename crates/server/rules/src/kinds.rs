//! Which kinds are served?
//!
//! A kind without behaviour of its own is one row in [`ALL`] and its type in a file of `schema/`. A kind
//! with rules or columns names its strategy and printer in its row. A kind that code refers to is a static,
//! so that a kind that is not served does not compile.

pub mod declared;

use crate::custom;
use crate::kind::Scope::{Cluster, Namespaced};
use crate::kind::Subresource::{
    Attach, Binding, Eviction, Exec, Finalize, Log, Portforward, Proxy, Scale, Status, Token,
};
use crate::kind::{Kind, Scope};
use crate::strategy::{
    config_map, config_node, daemon_set, deployment, endpoint_slice, endpoints, event, lease, namespace,
    node, pod, rbac, replica_set, secret, service,
};
use crate::table;
use std::sync::LazyLock;

/// Every built-in kind. Order matters where two kinds share a plural: the first one answers to it.
pub static ALL: LazyLock<Vec<&'static Kind>> =
    LazyLock::new(|| WITH_RULES.iter().chain(declared::ALL).copied().collect());

/// The kinds with rules of their own, or that code refers to.
static WITH_RULES: &[&Kind] = &[
    &CONFIG_MAP,
    &ENDPOINTS,
    &EVENT,
    &NAMESPACE,
    &NODE,
    &POD,
    &SECRET,
    &SERVICE,
    &SERVICE_ACCOUNT,
    &DAEMON_SET,
    &DEPLOYMENT,
    &REPLICA_SET,
    &LEASE,
    &ENDPOINT_SLICE,
    &EVENT_VIEW,
    &CLUSTER_ROLE,
    &CLUSTER_ROLE_BINDING,
    &ROLE,
    &ROLE_BINDING,
    &CUSTOM_RESOURCE_DEFINITION,
    &CONFIG_NODE,
];

const fn core(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain("", "v1", kind, plural, scope)
}

const fn apps(kind: &'static str, plural: &'static str) -> Kind {
    Kind::plain("apps", "v1", kind, plural, Namespaced)
}

/// The API group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

const fn rbac(kind: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind::plain(RBAC_GROUP, "v1", kind, plural, scope)
}

pub static CONFIG_MAP: Kind = Kind {
    short_names: &["cm"],
    strategy: &config_map::ConfigMapStrategy,
    printer: table::simple::CONFIG_MAP,
    ..core("ConfigMap", "configmaps", Namespaced)
};

pub static ENDPOINTS: Kind = Kind {
    short_names: &["ep"],
    strategy: &endpoints::EndpointsStrategy,
    printer: table::endpoints::PRINTER,
    ..core("Endpoints", "endpoints", Namespaced)
};

pub static EVENT: Kind = Kind {
    short_names: &["ev"],
    selectable: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    strategy: &event::EventStrategy::Core,
    printer: table::event::PRINTER,
    ..core("Event", "events", Namespaced)
};

pub static NAMESPACE: Kind = Kind {
    short_names: &["ns"],
    // Deleting all namespaces at once is not offered upstream either.
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &[Status, Finalize],
    delete_returns_object: true,
    selectable: &["status.phase"],
    strategy: &namespace::NamespaceStrategy,
    printer: table::simple::NAMESPACE,
    ..core("Namespace", "namespaces", Cluster)
};

pub static NODE: Kind = Kind {
    short_names: &["no"],
    subresources: &[Status, Proxy],
    selectable: &["spec.unschedulable"],
    strategy: &node::NodeStrategy,
    printer: table::node::PRINTER,
    ..core("Node", "nodes", Cluster)
};

pub static POD: Kind = Kind {
    short_names: &["po"],
    categories: &["all"],
    subresources: &[Status, Binding, Eviction, Log, Exec, Attach, Portforward, Proxy],
    delete_returns_object: true,
    selectable: &[
        "spec.nodeName",
        "spec.host",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ],
    strategy: &pod::PodStrategy,
    printer: table::pod::PRINTER,
    ..core("Pod", "pods", Namespaced)
};

pub static SECRET: Kind = Kind {
    selectable: &["type"],
    strategy: &secret::SecretStrategy,
    printer: table::simple::SECRET,
    ..core("Secret", "secrets", Namespaced)
};

pub static SERVICE: Kind = Kind {
    short_names: &["svc"],
    categories: &["all"],
    subresources: &[Status, Proxy],
    delete_returns_object: true,
    selectable: &["spec.clusterIP", "spec.type"],
    strategy: &service::ServiceStrategy,
    printer: table::service::PRINTER,
    ..core("Service", "services", Namespaced)
};

pub static SERVICE_ACCOUNT: Kind = Kind {
    short_names: &["sa"],
    subresources: &[Token],
    delete_returns_object: true,
    ..core("ServiceAccount", "serviceaccounts", Namespaced)
};

pub static DAEMON_SET: Kind = Kind {
    short_names: &["ds"],
    categories: &["all"],
    subresources: &[Status],
    strategy: &daemon_set::DaemonSetStrategy,
    printer: table::workload::DAEMON_SET,
    ..apps("DaemonSet", "daemonsets")
};

pub static DEPLOYMENT: Kind = Kind {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[Status, Scale],
    strategy: &deployment::DeploymentStrategy,
    printer: table::workload::DEPLOYMENT,
    ..apps("Deployment", "deployments")
};

pub static REPLICA_SET: Kind = Kind {
    short_names: &["rs"],
    categories: &["all"],
    subresources: &[Status, Scale],
    strategy: &replica_set::ReplicaSetStrategy,
    printer: table::workload::REPLICA_SET,
    ..apps("ReplicaSet", "replicasets")
};

pub static LEASE: Kind = Kind {
    strategy: &lease::LeaseStrategy,
    printer: table::simple::LEASE,
    ..Kind::plain("coordination.k8s.io", "v1", "Lease", "leases", Namespaced)
};

pub static ENDPOINT_SLICE: Kind = Kind {
    strategy: &endpoint_slice::EndpointSliceStrategy,
    printer: table::endpoint_slice::PRINTER,
    ..Kind::plain(
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        Namespaced,
    )
};

/// Core events in the newer spelling.
pub static EVENT_VIEW: Kind = Kind {
    short_names: &["ev"],
    stored_as: Some(&EVENT),
    selectable: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ],
    strategy: &event::EventStrategy::Events,
    printer: table::event::PRINTER,
    ..Kind::plain("events.k8s.io", "v1", "Event", "events", Namespaced)
};

pub static CLUSTER_ROLE: Kind = Kind {
    strategy: &rbac::RoleStrategy::Cluster,
    printer: table::rbac::ROLE,
    ..rbac("ClusterRole", "clusterroles", Cluster)
};

pub static CLUSTER_ROLE_BINDING: Kind = Kind {
    strategy: &rbac::BindingStrategy::Cluster,
    printer: table::rbac::BINDING,
    ..rbac("ClusterRoleBinding", "clusterrolebindings", Cluster)
};

pub static ROLE: Kind = Kind {
    strategy: &rbac::RoleStrategy::Namespaced,
    printer: table::rbac::ROLE,
    ..rbac("Role", "roles", Namespaced)
};

pub static ROLE_BINDING: Kind = Kind {
    strategy: &rbac::BindingStrategy::Namespaced,
    printer: table::rbac::BINDING,
    ..rbac("RoleBinding", "rolebindings", Namespaced)
};

pub static CUSTOM_RESOURCE_DEFINITION: Kind = Kind {
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    subresources: &[Status],
    strategy: &custom::DefinitionStrategy,
    printer: table::declared::printer(&[
        table::declared::NAME,
        table::declared::column("Created At", ".metadata.creationTimestamp", "string", 0),
    ]),
    delete_returns_object: true,
    ..Kind::plain(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Cluster,
    )
};

/// The latency profile of the cluster's nodes.
pub static CONFIG_NODE: Kind = Kind {
    subresources: &[Status],
    custom: true,
    strategy: &config_node::ConfigNodeStrategy,
    printer: table::simple::CONFIG_NODE,
    ..Kind::plain("config.openshift.io", "v1", "Node", "nodes", Cluster)
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn names_are_unique_per_group_and_the_core_node_comes_first() {
        for (at, kind) in ALL.iter().enumerate() {
            let before = &ALL[..at];
            assert!(
                !before
                    .iter()
                    .any(|other| other.group == kind.group && other.plural == kind.plural)
            );
            assert_eq!(kind.index(), at);
            for field in kind.selectable {
                let read = kind.strategy.selectable(&Value::Null, field);
                assert!(read.is_some(), "{kind:?} {field}");
            }
            assert_eq!(
                Kind::by_resource(kind.group, kind.version, kind.plural),
                Some(*kind)
            );
        }
        let node = ALL.iter().find(|kind| kind.plural == "nodes").unwrap();
        assert_eq!(*node, &NODE);
        assert_eq!(
            Kind::by_type("config.openshift.io/v1", "Node"),
            Some(&CONFIG_NODE)
        );
        assert_eq!(CONFIG_NODE.qualified_plural(), "nodes.config.openshift.io");
    }
}
