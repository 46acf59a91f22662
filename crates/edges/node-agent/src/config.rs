//! What can be configured at start?

use crate::gate::Gate;
use crate::node::{Frequency, Identity};
use pointsman_api_client::Source;
use pointsman_fabric::Prefix;
use pointsman_pod_lifecycle::resolver::ClusterDns;
use pointsman_probe_io::{Config as ProbeConfig, Reading};
use pointsman_runtime::AddressRange;
use pointsman_runtime::process::Abilities;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Everything that is fixed while the agent runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// How to reach the API server.
    pub source: Source,
    /// Who this node is.
    pub identity: Identity,
    /// Where the node's files live.
    pub root_dir: PathBuf,
    /// Where the agent's own server listens; nothing if absent.
    pub listen: Option<SocketAddr>,
    /// The authority of the server's clients, PEM.
    pub client_ca: Vec<u8>,
    /// The files of the server's certificate and key, PEM; one that nobody can check is made if absent.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// What the runtime can enforce, if limits beyond that are to be left out with a warning; otherwise they are
    /// refused.
    pub lenient: Option<Abilities>,
    /// The ranges of all pods; without them no routes are kept.
    pub cluster_ranges: Vec<Prefix>,
    /// Where pods ask about names.
    pub dns: ClusterDns,
    /// Which addresses pods may have; the Node's own ranges if empty.
    pub pod_ranges: Vec<AddressRange>,
    /// How often the node's status is computed and sent, unless the cluster's settings say otherwise.
    pub frequency: Frequency,
    /// Whether [`Config::frequency`] reports on its own period rather than on the update's.
    pub own_report_period: Option<Duration>,
    /// How long the node's Lease is good for.
    pub lease_duration: Duration,
    /// How often volumes look for changes of the ConfigMaps and Secrets they are made of.
    pub refresh: Duration,
    /// The shutdown gate, if there is one.
    pub gate: Option<Gate>,
    /// Whether the node asks others if they are there.
    pub asks_peers: bool,
    /// Whether routes to other nodes' pods are kept.
    pub routes: bool,
    /// How probes run.
    pub probes: ProbeConfig,
    /// How probes are read.
    pub reading: Reading,
    /// What `/configz` shows.
    pub shown: Value,
}

impl Config {
    pub(crate) fn host_ips(&self) -> &[IpAddr] {
        &self.identity.addresses
    }
}
