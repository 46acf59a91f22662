//! What can be set?

use crate::loops::Loops;
use crate::nodes;
use pointsman_api_client::Source;
use pointsman_api_client::lease::Terms;
use pointsman_latency_profile::rollout::Policy;
use pointsman_slices::Settings;
use pointsman_slices::queue::Pace;
use std::net::SocketAddr;

/// Settings of a process that runs loops.
#[derive(Clone, Debug)]
pub struct Config {
    pub source: Source,
    pub loops: Loops,
    /// Contend for leadership; without it the loops run at once.
    pub leadership: Option<Leadership>,
    /// Where health and metrics are served.
    pub metrics_listen: Option<SocketAddr>,
    /// Who may read metrics.
    pub guard: pointsman_guard::Settings,
    /// How slices are made.
    pub slices: Settings,
    /// The namespace in which nodes' Leases say whom they reach, if endpoints on nodes that others do not reach are taken
    /// out of use.
    pub peer_leases: Option<String>,
    /// How changes of slices are merged and failures repeated.
    pub slice_pace: Pace,
    /// Services whose slices are written at the same time.
    pub slice_writers: usize,
    /// Services whose Endpoints are written at the same time.
    pub endpoint_writers: usize,
    /// ReplicaSets or Deployments handled at the same time, of each kind.
    pub workload_writers: usize,
    /// Finished pods that are kept; 0 keeps all.
    pub terminated_pod_threshold: usize,
    /// What nodes are given.
    pub nodes: nodes::Config,
    /// How latency profiles are rolled out.
    pub latency_profile: Policy,
}

/// How leadership is contended for.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity and times.
    pub terms: Terms,
}
