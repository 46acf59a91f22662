//! `pointsman up`, `down`, `status` and `exec`: a cluster on this machine.

use crate::output::Output;
use crate::shutdown::stop_signal;
use crate::{apiserver, controllers, dns, duration};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pointsman_api_server::Running as ApiServer;
use pointsman_cluster::containers::RuntimeKind;
use pointsman_cluster::plan::{self, IpFamily};
use pointsman_cluster::up::{self, Config, Program};
use pointsman_cluster::{merged_kubeconfig, rootless};
use pointsman_latency_profile::{Catalog, Profile, UnknownProfile};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;

/// What a newcomer needs and nothing else.
#[derive(Args)]
#[command(after_help = "\
As root, the host gets one link and one route; its firewall is never touched. As another user, everything lives in
a user namespace: the API server and the page can be reached from outside, nodes and pods by `pointsman exec`.

Exit codes: 0 stopped as asked, 1 it could not start or go on (the message says why), 2 wrong usage.")]
pub struct Flags {
    /// The cluster's name; clusters of different names run side by side.
    #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    name: String,
    /// How many nodes, each in a network namespace of its own; 0 runs without nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=i64::from(plan::MOST_NODES)))]
    nodes: u8,
    /// Zones that the nodes are in, by turns: their names, or how many (zone-1, zone-2, ...). Nodes carry the label
    /// topology.kubernetes.io/zone, which traffic distribution and topology-aware hints go by.
    #[arg(long, value_name = "N|NAME,...", value_parser = zones)]
    zones: Option<Zones>,
    /// Which addresses nodes, pods and Services have. By default those of the data directory, and of IPv4 alone in a new one.
    #[arg(long, value_name = "ipv4|dual", value_parser = ip_family)]
    ip_family: Option<IpFamily>,
    /// How the nodes' proxies write rules.
    #[arg(long, value_enum, default_value_t = ProxyMode::Nftables)]
    proxy_mode: ProxyMode,
    /// Let this kube-proxy write the nodes' rules, with `pointsman proxy --observe` beside it.
    #[arg(long, value_name = "PROGRAM")]
    kube_proxy: Option<PathBuf>,
    /// What runs pods: processes of this machine (`image: host`), or images in a containerd for each node, which needs
    /// root and the programs containerd, runc and the usual CNI plugins.
    #[arg(long, value_enum, default_value_t = RuntimeFlag::Processes)]
    runtime: RuntimeFlag,
    /// Where the cluster's data lives; a later start finds it again.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data_dir: PathBuf,
    /// Address and port of the API server; port 0 picks a free one. By default 127.0.0.1:6443 without nodes,
    /// else port 6443 of the link to the nodes, where it is served in any case.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// How long a node's lease lasts; agents renew it every quarter of that.
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    node_lease_duration_seconds: u32,
    /// How patient the cluster is with its nodes from the start: nodes report, silence is forgiven, pods stay on a
    /// silent node for so long. Without it components have the values of Default and no profile is asked for.
    ///
    ///   Default                      10s / 40s / 300s
    ///   MediumUpdateAverageReaction  20s / 2m  /  60s   (short: medium)
    ///   LowUpdateSlowReaction         1m / 5m  /  60s   (short: low)
    ///
    /// A new cluster starts with these values at once. One that has nodes already goes to them step by step, as with
    /// `pointsman profile apply`.
    #[arg(long, value_name = "PROFILE", value_parser = latency_profile, conflicts_with_all = ["demo", "apart"], verbatim_doc_comment)]
    latency_profile: Option<Profile>,
    /// Let proxies reset connections to the pods of a node that nobody has reached for so long (3s or more); by default
    /// they are left to time out.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    reset_dead_connections: Option<Duration>,
    /// Add the context pointsman-NAME to the first file of $KUBECONFIG, or ~/.kube/config, and make it the current one, as
    /// kind does. It is removed when the cluster stops.
    #[arg(long)]
    merge_kubeconfig: bool,
    /// Return once the cluster serves; it goes on in the background, with its output in DIR/up.log, until `pointsman down`.
    #[arg(long, conflicts_with = "demo")]
    detach: bool,
    /// For whom output is written.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Show what happens to requests while pods and nodes come and go, then stay.
    #[arg(long)]
    demo: bool,
    /// What a process outside the user namespace left for the one inside.
    #[arg(long, hide = true)]
    inside: Option<rootless::Doors>,
    /// Run API server, controllers and collector in processes of their own, and let nodes report as often as
    /// in a demonstration, so that each part can be made to fail alone.
    #[arg(long, hide = true)]
    apart: bool,
    /// Who says which nodes are not reached: proxies do where nodes have kubelets.
    #[arg(long, hide = true, value_enum, default_value_t = OpinionsOf::Agents)]
    opinions_of: OpinionsOf,
}

#[derive(Clone, Copy, ValueEnum)]
enum OpinionsOf {
    Agents,
    Proxies,
    Nobody,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RuntimeFlag {
    /// Each container is a process of this machine.
    Processes,
    /// Images, in a containerd for each node.
    Containerd,
}

impl From<RuntimeFlag> for RuntimeKind {
    fn from(flag: RuntimeFlag) -> Self {
        match flag {
            RuntimeFlag::Processes => Self::Processes,
            RuntimeFlag::Containerd => Self::Containerd,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ProxyMode {
    /// By netlink into nf_tables.
    Nftables,
    /// By the iptables programs.
    Iptables,
}

impl Flags {
    /// Where the cluster is started in the background, if that is asked for.
    pub fn detached(&self) -> Option<(&str, &Path)> {
        self.detach.then_some((&self.name, &self.data_dir))
    }

    /// What they ask for.
    pub fn config(&self) -> anyhow::Result<Config> {
        let merge_into = self
            .merge_kubeconfig
            .then(merged_kubeconfig::usual_file)
            .transpose()?;
        Ok(Config {
            merge_into,
            name: self.name.clone(),
            nodes: self.nodes,
            zones: self.zones.clone().map(|zones| zones.0).unwrap_or_default(),
            ip_family: self.ip_family,
            proxy_mode: match self.proxy_mode {
                ProxyMode::Nftables => up::ProxyMode::Nftables,
                ProxyMode::Iptables => up::ProxyMode::Iptables,
            },
            kube_proxy: self.kube_proxy.clone(),
            runtime: self.runtime.into(),
            data_dir: self.data_dir.clone(),
            listen: self.listen,
            node_lease_duration_seconds: self.node_lease_duration_seconds,
            latency_profile: self.latency_profile,
            output: self.output.into(),
            demo: self.demo,
            inside: self.inside,
            page: None,
            apart: self.apart,
            opinions: match self.opinions_of {
                OpinionsOf::Agents => up::Opinions::OfAgents,
                OpinionsOf::Proxies => up::Opinions::OfProxies,
                OpinionsOf::Nobody => up::Opinions::OfNobody,
            },
            reset_dead_connections: self.reset_dead_connections,
        })
    }
}

fn ip_family(name: &str) -> Result<IpFamily, &'static str> {
    match name {
        "ipv6" => Err("clusters without IPv4 are not made here; `dual` has both"),
        _ => IpFamily::named(name).ok_or("it is ipv4 or dual"),
    }
}

/// Names of zones.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zones(Vec<String>);

fn zones(text: &str) -> Result<Zones, String> {
    if let Ok(count) = text.parse::<u8>() {
        return match count {
            0 => Err("there is at least one zone".into()),
            count => Ok(Zones(
                (1..=count).map(|number| format!("zone-{number}")).collect(),
            )),
        };
    }
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    let fits = |name: &String| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let ends = [name.bytes().next(), name.bytes().last()];
        name.len() <= 63
            && name.bytes().all(inner)
            && ends
                .iter()
                .all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
    };
    match names.iter().find(|name| !fits(name)) {
        Some(name) => Err(format!("{name:?} cannot be the value of a label")),
        None => Ok(Zones(names)),
    }
}

fn latency_profile(name: &str) -> Result<Profile, UnknownProfile> {
    Catalog::standard().find(name)
}

/// Runs the cluster until a signal stops it.
pub async fn run(config: Config) -> anyhow::Result<()> {
    up::run::<ThisProgram>(config).await
}

struct ThisProgram;

impl Program for ThisProgram {
    async fn api_server(arguments: Vec<OsString>) -> anyhow::Result<ApiServer> {
        apiserver::launch(role(arguments)?).await
    }

    async fn controllers(arguments: Vec<OsString>, stopping: watch::Receiver<bool>) -> anyhow::Result<()> {
        controllers::run_until(role(arguments)?, stopping).await
    }

    async fn dns(arguments: Vec<OsString>, stopping: watch::Receiver<bool>) -> anyhow::Result<()> {
        dns::run_until(role(arguments)?, stopping).await
    }

    async fn stop_signal() -> anyhow::Result<()> {
        stop_signal().await
    }
}

/// Lets a role's own flags supply their defaults.
#[derive(Parser)]
struct Role<F: Args> {
    #[command(flatten)]
    flags: F,
}

fn role<F: Args>(arguments: Vec<OsString>) -> anyhow::Result<F> {
    let all = std::iter::once(OsString::from("up")).chain(arguments);
    Ok(Role::try_parse_from(all)?.flags)
}

/// What to do with images.
#[derive(Subcommand)]
pub enum ImageCommand {
    /// Put an image from an archive, as `docker save` writes it, onto all nodes of a cluster.
    #[command(
        after_help = "Exit codes: 0 all nodes have it, 1 not, and the message says why, 2 wrong usage."
    )]
    Load {
        /// The cluster's name.
        #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
        name: String,
        /// The archive, of Docker's or OCI's layout.
        #[arg(value_name = "FILE.tar")]
        archive: PathBuf,
    },
}

/// Which cluster to stop.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 nothing of the cluster is left but its data, 1 something is, 2 wrong usage."
)]
pub struct DownFlags {
    /// The cluster's name.
    #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    pub name: String,
}

/// Whose health.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 all is well, 3 something is not or no such cluster runs, 1 it could not be found \
                  out, 2 wrong usage."
)]
pub struct StatusFlags {
    /// The cluster's name; by default all clusters of this machine.
    #[arg(long, value_name = "NAME", value_parser = plan::check_name)]
    pub name: Option<String>,
    /// For whom output is written.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Where, and what.
#[derive(Args)]
#[command(after_help = "\
Examples:
  pointsman exec n1 -- nft list ruleset
  pointsman exec default/web-5d8f-x2x7p -- sh

On a node the command has the node's network and the host's files. In a pod it sees what the pod's program sees.

Exit codes: those of the command; 128 + N if signal N ended it; 1 if it could not be started, 2 wrong usage.")]
pub struct ExecFlags {
    /// The cluster's name.
    #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    pub name: String,
    /// A node, or a pod as POD or NAMESPACE/POD.
    #[arg(value_name = "NODE|POD")]
    pub target: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What the process outside passes on to the first one inside.
#[derive(Args)]
pub struct InitFlags {
    /// Where records of clusters are kept outside.
    #[arg(long)]
    run_dir: PathBuf,
    /// The listener for the API server.
    #[arg(long)]
    server_fd: i32,
    /// The listener for the page.
    #[arg(long)]
    page_fd: i32,
    /// What to run.
    #[arg(last = true)]
    command: Vec<OsString>,
}

impl InitFlags {
    /// What they ask for.
    pub fn config(&self) -> rootless::InitConfig {
        rootless::InitConfig {
            run_dir: self.run_dir.clone(),
            server_fd: self.server_fd,
            page_fd: self.page_fd,
            command: self.command.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_words_of_kind() {
        assert_eq!(ip_family("ipv4"), Ok(IpFamily::Ipv4));
        assert_eq!(ip_family("dual"), Ok(IpFamily::Dual));
        assert!(ip_family("ipv6").unwrap_err().contains("`dual` has both"));
        assert!(ip_family("IPv4").is_err());
    }

    #[test]
    fn zones_are_counted_or_named() {
        let names = |text: &str| zones(text).map(|zones| zones.0.join(" "));
        assert_eq!(names("2"), Ok("zone-1 zone-2".into()));
        assert_eq!(names("a,eu-west.1b"), Ok("a eu-west.1b".into()));
        for odd in ["0", "", "a,", "a,b c", "-a", "a=b"] {
            assert!(names(odd).is_err(), "{odd:?}");
        }
    }
}
