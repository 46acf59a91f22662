//! What can be set about the role?

use std::net::SocketAddr;
use std::path::PathBuf;

use pointsman_api_client::Source;
use pointsman_guard::Settings;

/// Everything that `run` needs.
#[derive(Clone, Debug)]
pub struct Config {
    pub source: Source,
    /// Where questions come in, over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, such as `cluster.local`.
    pub domain: String,
    pub upstream: Upstream,
    /// Where health and metrics are served, if at all.
    pub metrics_listen: Option<SocketAddr>,
    /// Who may read metrics.
    pub guard: Settings,
}

/// Who answers what is not the cluster's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// The name servers of a file like `/etc/resolv.conf`, as it is at the time.
    File(PathBuf),
    /// These, the first that answers.
    Servers(Vec<SocketAddr>),
}
