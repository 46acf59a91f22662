//! `pointsman up`: everything on this machine.

use crate::claim::{self, Claim, Record};
use crate::containers::RuntimeKind;
use crate::plan::{Block, IpFamily, Plan, joined};
use crate::progress::{Output, Progress};
use crate::supervise::Supervisor;
use crate::{apart, dns, leftovers, merged_kubeconfig, network, parts, rootless};
use anyhow::{Context, bail};
use pointsman_api_server::Running as ApiServer;
use pointsman_api_server::auth::kubeconfig::local_url;
use pointsman_collector::Running as Collector;
use pointsman_latency_profile::Profile;
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the cluster is like.
pub struct Config {
    /// Clusters of different names run side by side.
    pub name: String,
    /// How many nodes, each in a network namespace of its own; 0 runs without nodes.
    pub nodes: u8,
    /// Which addresses it has; by default those it had before, or IPv4 alone.
    pub ip_family: Option<IpFamily>,
    /// Zones that the nodes are in, by turns; empty for none.
    pub zones: Vec<String>,
    /// How the nodes' proxies write rules.
    pub proxy_mode: ProxyMode,
    /// A kube-proxy that writes the nodes' rules, with an observer beside it, in the place of our proxy.
    pub kube_proxy: Option<PathBuf>,
    /// What runs the nodes' pods.
    pub runtime: RuntimeKind,
    /// Where the cluster's data lives; a later start finds it again.
    pub data_dir: PathBuf,
    /// The kubeconfig that the cluster is merged into as long as it runs.
    pub merge_into: Option<PathBuf>,
    /// Where the API server listens besides the link to the nodes.
    pub listen: Option<SocketAddr>,
    /// How long a node's lease lasts; agents renew it every quarter of that.
    pub node_lease_duration_seconds: u32,
    /// How patient the cluster is with its nodes, if somebody asked for that.
    pub latency_profile: Option<Profile>,
    /// For whom output is written.
    pub output: Output,
    /// Whether a demonstration is played.
    pub demo: bool,
    /// What a process outside the user namespace left for the one inside.
    pub inside: Option<rootless::Doors>,
    /// Where the page is served, if that is not free to choose.
    pub page: Option<SocketAddr>,
    /// Whether API server, controllers and collector run in processes of their own and nodes report as often as
    /// in a demonstration, so that each part can be made to fail alone.
    pub apart: bool,
    pub opinions: Opinions,
    /// When proxies reset connections to pods of a node that is gone, if at all.
    pub reset_dead_connections: Option<Duration>,
}

/// Who says which nodes are not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinions {
    OfAgents,
    /// As where nodes have kubelets. Whoever asks for it makes the namespace [`PEER_LEASES`] and lets proxies write Leases there.
    OfProxies,
    /// Heartbeats alone tell, as without all this.
    OfNobody,
}

/// Where Leases of proxies are, as `deploy/` has it.
pub const PEER_LEASES: &str = "pointsman-peers";

impl Config {
    /// Whether a lost node is noticed within seconds.
    pub(crate) fn is_impatient(&self) -> bool {
        self.demo || self.apart
    }
}

/// How a proxy writes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// By netlink into nf_tables.
    Nftables,
    /// By the iptables programs.
    Iptables,
}

impl ProxyMode {
    /// As the proxy's flag says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// The program around the cluster: its roles in this process, and the signal that stops it.
pub trait Program {
    /// Starts the API server with the arguments of its command; returns once it is ready.
    fn api_server(arguments: Vec<OsString>) -> impl Future<Output = anyhow::Result<ApiServer>>;
    /// Runs the controllers with the arguments of their command until `stopping` turns true.
    fn controllers(
        arguments: Vec<OsString>,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + 'static;
    /// Runs the DNS with the arguments of its command until `stopping` turns true.
    fn dns(
        arguments: Vec<OsString>,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + 'static;
    /// Waits for the signal that asks the program to stop.
    fn stop_signal() -> impl Future<Output = anyhow::Result<()>>;
}

/// Starts everything, says how to use it, and stops it on a signal.
pub async fn run<P: Program>(mut config: Config) -> anyhow::Result<()> {
    let progress = Progress::new(config.output);
    if config.is_impatient() && config.nodes == 0 {
        bail!("--demo and --apart need nodes");
    }
    if config.runtime == RuntimeKind::Containerd && (config.inside.is_some() || config.demo) {
        bail!("--runtime containerd needs root, and --demo shows processes");
    }
    if let Some(doors) = config.inside {
        let [server, page] = doors.open().context("taking over the listeners")?;
        // The same addresses inside and outside, so that one kubeconfig is right on both sides.
        let (inner_server, inner_page) = (server.local_addr()?, page.local_addr()?);
        (config.listen, config.page) = (Some(inner_server), Some(inner_page));
        tokio::spawn(rootless::relay(server, inner_server));
        tokio::spawn(rootless::relay(page, inner_page));
        progress.note("not root: the cluster gets a user namespace of its own");
    }
    let claim = Claim::take(&config.name)?;
    let (outcome, facts) = match prepare(&config, &progress, &claim).await {
        Ok(plan) => {
            let outcome = serve::<P>(&config, plan.as_ref(), &progress, &claim).await;
            (outcome, parts::record(&config, plan.as_ref()))
        }
        Err(error) => (Err(error), parts::record(&config, None)),
    };
    let forgotten = merged_kubeconfig::forget(&facts);
    let removed = match config.nodes {
        0 => leftovers::Removed::default(),
        _ => leftovers::remove(&config.name, &facts).await,
    };
    let released = match removed.remaining.is_empty() {
        true => claim.release(),
        false => Err(anyhow::anyhow!(
            "the end left something behind, `pointsman down` tries again: {removed}"
        )),
    };
    // What ended the cluster matters more than what its end could not do.
    outcome?;
    forgotten?;
    released
}

/// Cleans up after an earlier run and makes the network, if there are nodes.
async fn prepare(config: &Config, progress: &Progress, claim: &Claim) -> anyhow::Result<Option<Plan>> {
    std::fs::create_dir_all(&config.data_dir)
        .with_context(|| format!("making {}", config.data_dir.display()))?;
    let earlier = claim.earlier.clone().unwrap_or_default();
    merged_kubeconfig::forget(&earlier)?;
    if config.nodes == 0 {
        claim.write(&parts::record(config, None))?;
        return Ok(None);
    }
    let removed = leftovers::remove(&config.name, &earlier).await;
    if !removed.is_nothing() {
        progress.note(format_args!("cleaned up after an earlier run: {removed}"));
    }
    let started = Instant::now();
    let lock = claim::lock_addresses()?;
    let (block, family) = remembered(config)?;
    let plan = Plan {
        name: config.name.clone(),
        block,
        nodes: config.nodes,
        family,
    };
    // Whatever happens from here on, the next start knows where to look.
    claim.write(&parts::record(config, Some(&plan)))?;
    network::build(&plan).context("connecting the nodes")?;
    drop(lock);
    progress.ready(
        "network",
        started,
        format_args!("{} nodes in {}", plan.nodes, joined(&block.ranges(family))),
    );
    Ok(Some(plan))
}

/// The data directory keeps its block and families: Services and nodes have addresses of them.
fn remembered(config: &Config) -> anyhow::Result<(Block, IpFamily)> {
    let path = config.data_dir.join("network.json");
    let read = std::fs::read(&path).ok();
    let known = read.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let remembered = known
        .as_ref()
        .and_then(|known| Block::try_new(known["block"].as_u64()?.try_into().ok()?));
    let named = known.as_ref().and_then(|known| known["ipFamily"].as_str());
    let before = remembered.map(|_| named.and_then(IpFamily::named).unwrap_or_default());
    let family = config.ip_family.or(before).unwrap_or_default();
    if let Some(before) = before.filter(|before| *before != family) {
        bail!(
            "{} is of a cluster with --ip-family {}, whose nodes and Services keep their addresses; start with another --data-dir",
            config.data_dir.display(),
            before.as_str()
        );
    }
    let block = network::choose_block(&config.name, family, remembered)?;
    if remembered != Some(block) {
        let range = joined(&block.ranges(family));
        let text = json!({"block": block.number(), "range": range, "ipFamily": family.as_str()});
        std::fs::write(&path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok((block, family))
}

async fn serve<P: Program>(
    config: &Config,
    plan: Option<&Plan>,
    progress: &Progress,
    claim: &Claim,
) -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new()?;
    let outcome = match plan.filter(|_| config.apart) {
        Some(plan) => serve_apart::<P>(config, plan, progress, claim, &mut supervisor).await,
        None => return serve_together::<P>(config, plan, progress, claim, supervisor).await,
    };
    supervisor.stop().await;
    outcome
}

/// Everything is a child: nothing can end here but by a signal.
async fn serve_apart<P: Program>(
    config: &Config,
    plan: &Plan,
    progress: &Progress,
    claim: &Claim,
    supervisor: &mut Supervisor,
) -> anyhow::Result<()> {
    let stop = P::stop_signal();
    tokio::pin!(stop);
    let starting = async {
        let served = apart::start(config, plan, progress, supervisor).await?;
        let server = parts::Server {
            address: served.server,
            kubeconfig: served.kubeconfig.clone(),
        };
        let gate = Some(served.gate);
        let nodes = parts::start_nodes(config, plan, &server, gate, progress, supervisor).await?;
        anyhow::Ok((served, nodes))
    };
    let (served, nodes) = tokio::select! {
        signal = &mut stop => return signal,
        started = starting => started?,
    };
    let facts = Record {
        ready: true,
        server: local_url(served.server),
        page: Some(format!("http://{}/", served.page)),
        gate: Some(served.gate),
        ..parts::record(config, Some(plan))
    };
    announce(&facts, claim, progress)?;
    tokio::select! {
        signal = stop => signal,
        never = parts::demonstrate(config, Some(plan), Some(&nodes), progress) => match never {},
    }
}

async fn serve_together<P: Program>(
    config: &Config,
    plan: Option<&Plan>,
    progress: &Progress,
    claim: &Claim,
    supervisor: Supervisor,
) -> anyhow::Result<()> {
    let mut parts = Together::start::<P>(config, plan, progress, supervisor).await?;
    let outcome = parts.run::<P>(config, plan, progress, claim).await;
    parts.stop().await?;
    outcome
}

/// API server, controllers, collector and DNS in this process; agents and proxies are children.
struct Together {
    server: ApiServer,
    controllers: JoinHandle<anyhow::Result<()>>,
    dns: Option<JoinHandle<anyhow::Result<()>>>,
    /// Ends controllers and DNS.
    stop_roles: watch::Sender<bool>,
    collector: Option<Collector>,
    supervisor: Supervisor,
}

impl Together {
    async fn start<P: Program>(
        config: &Config,
        plan: Option<&Plan>,
        progress: &Progress,
        supervisor: Supervisor,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let server = P::api_server(parts::server_arguments(config, plan)).await?;
        progress.ready(
            "API server",
            started,
            format_args!("https://{}, {} objects found", server.address, server.objects),
        );
        parts::request_profile(config, &server.kubeconfig, progress).await?;
        let stop_roles = watch::Sender::new(false);
        let controllers = P::controllers(parts::controller_arguments(config, plan), stop_roles.subscribe());
        let dns = plan.map(|plan| P::dns(dns::arguments(config, plan), stop_roles.subscribe()));
        Ok(Self {
            server,
            controllers: tokio::spawn(controllers),
            dns: dns.map(tokio::spawn),
            stop_roles,
            collector: None,
            supervisor,
        })
    }

    /// Starts the nodes, and returns when a signal asks for the end or a part ends by itself.
    async fn run<P: Program>(
        &mut self,
        config: &Config,
        plan: Option<&Plan>,
        progress: &Progress,
        claim: &Claim,
    ) -> anyhow::Result<()> {
        let stop = P::stop_signal();
        tokio::pin!(stop);
        // Somebody may lose patience while it starts.
        let nodes = tokio::select! {
            signal = &mut stop => return signal,
            nodes = self.start_nodes(config, plan, progress) => nodes?,
        };
        let page = self.collector.as_ref().map(|collector| collector.address);
        let facts = Record {
            ready: true,
            server: local_url(self.server.address),
            page: page.map(|page| format!("http://{page}/")),
            gate: self
                .collector
                .as_ref()
                .and_then(|collector| collector.gate_address),
            ..parts::record(config, plan)
        };
        announce(&facts, claim, progress)?;
        let collecting = async {
            match &mut self.collector {
                Some(collector) => collector.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = stop => signal,
            ended = &mut self.controllers => ended?,
            ended = end_of(&mut self.dns) => ended,
            why = self.server.ended() => Err(why.into()),
            () = collecting => bail!("a part of the collector ended unexpectedly"),
            never = parts::demonstrate(config, plan, nodes.as_ref(), progress) => match never {},
        }
    }

    async fn start_nodes(
        &mut self,
        config: &Config,
        plan: Option<&Plan>,
        progress: &Progress,
    ) -> anyhow::Result<Option<parts::Nodes>> {
        let Some(plan) = plan else { return Ok(None) };
        let started = Instant::now();
        tokio::select! {
            ended = end_of(&mut self.dns) => ended?,
            well = apart::wait_for_dns(plan) => well?,
        }
        progress.ready("DNS", started, "cluster.local");
        let collector = parts::start_collector(config, plan, progress).await?;
        let gate = self.collector.insert(collector).gate_address;
        let server = parts::Server {
            address: self.server.address,
            kubeconfig: self.server.kubeconfig.clone(),
        };
        let nodes = parts::start_nodes(config, plan, &server, gate, progress, &mut self.supervisor);
        nodes.await.map(Some)
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.supervisor.stop().await;
        if let Some(collector) = self.collector {
            collector.stop().await;
        }
        self.stop_roles.send_replace(true);
        if let Some(dns) = self.dns.filter(|dns| !dns.is_finished()) {
            dns.await??;
        }
        if !self.controllers.is_finished() {
            self.controllers.await??;
        }
        self.server.stop().await;
        Ok(())
    }
}

/// How a part ended that may not be there.
async fn end_of(part: &mut Option<JoinHandle<anyhow::Result<()>>>) -> anyhow::Result<()> {
    match part {
        Some(part) => part.await?,
        None => std::future::pending().await,
    }
}

pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Lets people and other commands know that everything serves.
fn announce(facts: &Record, claim: &Claim, progress: &Progress) -> anyhow::Result<()> {
    if let Some(file) = &facts.merged {
        merged_kubeconfig::merge(file, &facts.name, &facts.kubeconfig)?;
    }
    claim.write(facts)?;
    progress.all_ready(&how_to_use(facts), serde_json::to_value(facts)?);
    Ok(())
}

fn how_to_use(facts: &Record) -> String {
    let name = match facts.name.as_str() {
        "pointsman" => String::new(),
        other => format!(" --name {other}"),
    };
    let third = match facts.nodes.first() {
        Some(node) => format!("pointsman exec{name} {} -- nft list ruleset", node.name),
        None => "kubectl get pods --watch".to_owned(),
    };
    let first = match &facts.merged {
        Some(file) => format!(
            "kubectl cluster-info   # context {} in {}",
            merged_kubeconfig::context_name(&facts.name),
            file.display()
        ),
        None => format!("export KUBECONFIG={}", facts.kubeconfig.display()),
    };
    let second = match facts.containerd {
        true => format!("pointsman image load{name} web.tar  # from `docker save`; then use it as an image"),
        false => "kubectl create deployment web --image=host --replicas=3 -- python3 -m http.server 8080"
            .to_owned(),
    };
    let page = facts.page.as_deref().unwrap_or("none without nodes");
    format!(
        "serving   {}\npage      {page}\n\nTry, in another terminal:\n  \
         {first}\n  \
         {second}\n  \
         kubectl expose deployment web --port=80 --target-port=8080 && kubectl get services,endpointslices\n  \
         {third}\n\n\
         Ctrl-C or `pointsman down{name}` stops it; the next start finds its data in {}.",
        facts.server,
        facts.data_dir.display(),
    )
}
