//! What can be configured at start?

use crate::audit::LogSettings;
use crate::auth::accounts::AccountSettings;
use pointsman_model::FeatureGates;
use pointsman_rules::admission::plugins::Plugins;
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_rules::strategy::ClusterSettings;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Which store to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The embedded one, in the data directory.
    Embedded,
    Etcd {
        endpoints: Vec<String>,
        /// What all keys start with, so that several clusters can share an etcd.
        prefix: String,
        /// Authority of the servers' certificates.
        ca_file: Option<PathBuf>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
    },
}

/// Everything that is fixed while the server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where keys, kubeconfigs and the embedded store live.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Further addresses to listen on; port 0 means the port of `listen`.
    pub also_listen: Vec<SocketAddr>,
    /// The address that pods reach the server at, if any.
    pub advertise: Option<IpAddr>,
    /// Where objects live.
    pub store: StoreChoice,
    /// Which optional behaviours are on.
    pub gates: FeatureGates,
    /// Which optional admission is on.
    pub plugins: Plugins,
    /// Ranges for Services.
    pub cluster: ClusterSettings,
    pub tolerations: TolerationSeconds,
    /// `token,user,uid,"group1,group2"` lines.
    pub token_file: Option<PathBuf>,
    /// Tokens of service accounts.
    pub accounts: AccountSettings,
    /// Whether namespaces get the authority of the serving certificate, for their pods.
    pub publish_root_ca: bool,
    /// Whether requests without a credential reach authorization.
    pub anonymous: bool,
    /// Extra names in the serving certificate.
    pub extra_sans: Vec<String>,
    /// A serving certificate and key to use instead of generated ones.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// Another authority whose client certificates are believed.
    pub client_ca_file: Option<PathBuf>,
    /// Whose certificates node agents show; the cluster's own authority if absent.
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// At most so many reads at once.
    pub max_requests_inflight: usize,
    /// At most so many writes at once.
    pub max_mutating_requests_inflight: usize,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// How much history the store keeps.
    pub compaction_interval: Duration,
    /// Where requests are recorded, if they are.
    pub audit: Option<LogSettings>,
}
