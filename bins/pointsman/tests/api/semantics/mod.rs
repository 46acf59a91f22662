//! Does every rule of the API hold, request by request?

mod access;
mod admission;
mod audit;
mod delete;
mod forms;
mod gates;
mod list;
mod service;
mod subresource;
mod watch;
mod write;

/// Paths that many tests use.
const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const NODES: &str = "/api/v1/nodes";
