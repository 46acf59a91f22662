//! `pointsman controllers`.

use crate::duration;
use crate::metrics_access;
use crate::shutdown::run_until_signal;
use anyhow::bail;
use clap::Args;
use pointsman_api_client::Source;
use pointsman_api_client::lease::Terms;
use pointsman_controllers::nodes::{self, ranges::ClusterRange};
use pointsman_controllers::{Config, Leadership, Loop, Loops, run as run_loops};
use pointsman_latency_profile::rollout::Policy;
use pointsman_model::{Feature, FeatureGates};
use pointsman_node_health::Settings as HealthSettings;
use pointsman_slices::Settings;
use pointsman_slices::queue::Pace;
use pointsman_telemetry::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// Flags that kube-controller-manager also has keep its names and formats.
#[derive(Args)]
pub struct Flags {
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Loops to run: `*` for all, `name` to add one, `-name` to leave one out. There are endpointslice,
    /// endpoint, replicaset, deployment, daemonset, scheduler, podgc, nodeipam, nodelifecycle, tainteviction and
    /// latencyprofile.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    pub controllers: Loops,
    /// Contend for leadership before running loops, so that several replicas can stand by.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long a leader may stay silent before it is replaced.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    pub leader_elect_lease_duration: Duration,
    /// How long a leader tries to renew before it gives up.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub leader_elect_renew_deadline: Duration,
    /// Wait between attempts to acquire or renew leadership.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    pub leader_elect_retry_period: Duration,
    /// Namespace of the Lease.
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// Name of the Lease.
    #[arg(long, value_name = "NAME", default_value = "pointsman-controllers")]
    pub leader_elect_resource_name: String,
    /// Optional behaviours: EndpointSliceTerminatingCondition (on by default).
    #[arg(long, value_name = "A=true,B=false", default_value = "", value_parser = FeatureGates::parse)]
    pub feature_gates: FeatureGates,
    /// Namespace of the Leases in which nodes say whom they reach [default: kube-node-lease with the loop
    /// nodelifecycle, else none is read]; that of `pointsman proxy --peer-lease-namespace` where nodes have kubelets.
    #[arg(long, value_name = "NAMESPACE")]
    pub peer_lease_namespace: Option<String>,
    /// Most endpoints in one EndpointSlice, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_endpoints_per_slice: usize,
    /// How long a first change waits for more before slices are written. Changes that come during a write
    /// are merged anyway.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::parse)]
    pub endpointslice_updates_batch_period: Duration,
    /// Services whose slices are written at the same time, 1 to 50.
    #[arg(
        long,
        alias = "concurrent-endpoint-slice-syncs",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_service_endpoint_syncs: usize,
    /// Services whose Endpoints are written at the same time.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub concurrent_endpoint_syncs: usize,
    /// ReplicaSets handled at the same time; also Deployments and DaemonSets.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub concurrent_replicaset_syncs: usize,
    /// Finished pods kept before the oldest are removed; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 12_500)]
    pub terminated_pod_gc_threshold: usize,
    #[command(flatten)]
    pub node_health: NodeHealth,
    /// Give each node pod addresses out of --cluster-cidr.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allocate_node_cidrs: bool,
    /// Addresses of all pods: one range, or one of each IP family.
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "")]
    pub cluster_cidr: String,
    /// Prefix length of a node's range; by default 24 for IPv4 and 64 for IPv6. Not with two families.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 range.
    #[arg(long, value_name = "BITS", conflicts_with = "node_cidr_mask_size")]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 range.
    #[arg(long, value_name = "BITS", conflicts_with = "node_cidr_mask_size")]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// How long one step of a latency profile may take before its owner is degraded and Default is rolled
    /// out.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub latency_profile_step_timeout: Duration,
    /// Where /healthz, /readyz and /metrics are served; `off` serves nothing.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:10257")]
    pub metrics_listen: String,
    #[command(flatten)]
    pub metrics_access: metrics_access::MetricsAccess,
}

/// How patient the cluster is with its nodes. The ConfigMap `kube-system/pointsman-controllers` overrides
/// all of it while the loops run.
#[derive(Args)]
pub struct NodeHealth {
    /// How often heartbeats of nodes are looked at.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub node_monitor_period: Duration,
    /// How long a node may be silent before it is called unreachable; several of its report periods.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = duration::parse)]
    pub node_monitor_grace_period: Duration,
    /// How long a new node may take to report for the first time.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = duration::parse)]
    pub node_startup_grace_period: Duration,
    /// Nodes per second that are tainted for eviction in a zone where most are fine.
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    pub node_eviction_rate: f64,
    /// The same in a large zone with many nodes down; small ones stop.
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    pub secondary_node_eviction_rate: f64,
    /// A zone with more nodes than this is large.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub large_cluster_size_threshold: usize,
    /// Share of a zone's nodes, at least three, that must be down for it to be in trouble.
    #[arg(long, value_name = "SHARE", default_value_t = 0.55)]
    pub unhealthy_zone_threshold: f64,
    /// Silent nodes per second whose pods are marked not ready in a zone where most are fine.
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    pub node_marking_rate: f64,
    /// How many of them may be marked at once.
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub node_marking_burst: f64,
    /// The same rate in a zone in trouble, which may still serve although nobody hears of it.
    #[arg(long, value_name = "RATE", default_value_t = 0.5)]
    pub disrupted_node_marking_rate: f64,
}

impl NodeHealth {
    fn settings(&self) -> anyhow::Result<HealthSettings> {
        let settings = HealthSettings {
            monitor_period: self.node_monitor_period,
            grace_period: self.node_monitor_grace_period,
            startup_grace_period: self.node_startup_grace_period,
            eviction_rate: self.node_eviction_rate,
            secondary_eviction_rate: self.secondary_node_eviction_rate,
            large_zone_threshold: self.large_cluster_size_threshold,
            unhealthy_threshold: self.unhealthy_zone_threshold,
            marking_rate: self.node_marking_rate,
            marking_burst: self.node_marking_burst,
            disrupted_marking_rate: self.disrupted_node_marking_rate,
        };
        settings.validate()?;
        Ok(settings)
    }
}

/// Runs the loops until a signal stops them.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    run_until_signal(|stopping| run_until(flags, stopping)).await
}

/// Runs the loops until `stopping` turns true.
pub async fn run_until(flags: Flags, stopping: watch::Receiver<bool>) -> anyhow::Result<()> {
    Ok(run_loops(config(flags)?, Registry::new(), stopping).await?)
}

fn config(flags: Flags) -> anyhow::Result<Config> {
    if !(1..=1000).contains(&flags.max_endpoints_per_slice) {
        bail!("--max-endpoints-per-slice must be between 1 and 1000");
    }
    if !(1..=50).contains(&flags.concurrent_service_endpoint_syncs) {
        bail!("--concurrent-service-endpoint-syncs must be between 1 and 50");
    }
    let ranges = node_ranges(&flags)?;
    let health = flags.node_health.settings()?;
    let leadership = flags.leader_elect.then(|| Leadership {
        namespace: flags.leader_elect_resource_namespace,
        name: flags.leader_elect_resource_name,
        terms: Terms {
            identity: identity(),
            lease: flags.leader_elect_lease_duration,
            renew_deadline: flags.leader_elect_renew_deadline,
            retry: flags.leader_elect_retry_period,
        },
    });
    let metrics_listen: Option<SocketAddr> = match flags.metrics_listen.as_str() {
        "off" => None,
        text => Some(
            text.parse()
                .map_err(|_| anyhow::anyhow!("--metrics-listen {text:?} is neither ADDR:PORT nor `off`"))?,
        ),
    };
    // Who leaves nodes to another controller has kubelets, whose Leases say nothing of others.
    let judges_nodes = flags.controllers.runs(Loop::NodeLifecycle);
    let peer_leases = flags
        .peer_lease_namespace
        .or_else(|| judges_nodes.then(|| "kube-node-lease".to_owned()))
        .filter(|namespace| !namespace.is_empty() && flags.feature_gates.enabled(Feature::PeerReachability));
    Ok(Config {
        source: Source::from_flag(flags.kubeconfig),
        loops: flags.controllers,
        leadership,
        metrics_listen,
        guard: flags.metrics_access.settings()?,
        slices: Settings {
            max_endpoints_per_slice: flags.max_endpoints_per_slice,
            terminating_condition: flags
                .feature_gates
                .enabled(Feature::EndpointSliceTerminatingCondition),
        },
        peer_leases,
        slice_pace: Pace {
            batch_period: flags.endpointslice_updates_batch_period,
            ..Pace::default()
        },
        slice_writers: flags.concurrent_service_endpoint_syncs,
        endpoint_writers: flags.concurrent_endpoint_syncs,
        workload_writers: flags.concurrent_replicaset_syncs,
        terminated_pod_threshold: flags.terminated_pod_gc_threshold,
        nodes: nodes::Config { ranges, health },
        latency_profile: Policy {
            step_timeout: flags.latency_profile_step_timeout,
            ..Policy::default()
        },
    })
}

/// The ranges that nodes' pod addresses are cut from; none when nodes get theirs elsewhere.
fn node_ranges(flags: &Flags) -> anyhow::Result<Vec<ClusterRange>> {
    if !flags.allocate_node_cidrs {
        return Ok(Vec::new());
    }
    if flags.cluster_cidr.is_empty() {
        bail!("--allocate-node-cidrs needs --cluster-cidr");
    }
    if flags.node_cidr_mask_size.is_some() && flags.cluster_cidr.contains(',') {
        bail!("with two families, --node-cidr-mask-size-ipv4 and -ipv6 say the size");
    }
    let size = |of_family: Option<u8>, default| of_family.or(flags.node_cidr_mask_size).unwrap_or(default);
    let four = size(flags.node_cidr_mask_size_ipv4, 24);
    let six = size(flags.node_cidr_mask_size_ipv6, 64);
    Ok(ClusterRange::parse_list(&flags.cluster_cidr, four, six)?)
}

/// Unique for each process: the host's name, and chance.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{:016x}", host.trim(), fastrand::u64(..))
}
