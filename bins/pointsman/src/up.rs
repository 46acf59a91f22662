//! `pointsman up`: everything on this machine.
//!
//! ```text
//!  host       API server, controllers            one link pm-NAME, one route
//!    |
//!  NAME-fabric    a namespace with a bridge
//!    |        |        |
//!  NAME-n1  NAME-n2  NAME-n3    a namespace per node, with its proxy and its own rules
//! ```

mod apart;
pub mod claim;
mod demo;
pub mod leftovers;
pub mod network;
pub mod nodes;
mod parts;
pub mod plan;
mod pod_routes;
pub mod progress;
pub mod rootless;
mod supervise;

use crate::{apiserver, controllers, stop_signal};
use anyhow::{Context, bail};
use claim::{Claim, Record};
use clap::{Args, Parser, ValueEnum};
use plan::{Block, Plan};
use pointsman_api_server::auth::kubeconfig::local_url;
use progress::{Output, Progress};
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use supervise::Supervisor;
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
    /// How the nodes' proxies write rules.
    #[arg(long, value_enum, default_value_t = ProxyMode::Nftables)]
    proxy_mode: ProxyMode,
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
    /// For whom output is written.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Show what happens to requests while pods and nodes come and go, then stay.
    #[arg(long)]
    demo: bool,
    /// What a process outside the user namespace left for the one inside.
    #[arg(long, hide = true)]
    inside: Option<rootless::Doors>,
    /// Where the page is served, if that is not free to choose.
    #[arg(skip)]
    page: Option<SocketAddr>,
    /// Run API server, controllers and collector in processes of their own, and let nodes report as often as
    /// in a demonstration, so that each part can be made to fail alone.
    #[arg(long, hide = true)]
    apart: bool,
}

impl Flags {
    /// Whether a lost node is noticed within seconds.
    fn is_impatient(&self) -> bool {
        self.demo || self.apart
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ProxyMode {
    /// By netlink into nf_tables.
    Nftables,
    /// By the iptables programs.
    Iptables,
}

impl ProxyMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
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

/// Starts everything, says how to use it, and stops it on a signal.
pub async fn run(mut flags: Flags) -> anyhow::Result<()> {
    let progress = Progress::new(flags.output);
    if flags.is_impatient() && flags.nodes == 0 {
        bail!("--demo and --apart need nodes");
    }
    if let Some(doors) = flags.inside {
        let [server, page] = doors.open().context("taking over the listeners")?;
        // The same addresses inside and outside, so that one kubeconfig is right on both sides.
        let (inner_server, inner_page) = (server.local_addr()?, page.local_addr()?);
        (flags.listen, flags.page) = (Some(inner_server), Some(inner_page));
        tokio::spawn(rootless::relay(server, inner_server));
        tokio::spawn(rootless::relay(page, inner_page));
        progress.note("not root: the cluster gets a user namespace of its own");
    }
    let claim = Claim::take(&flags.name)?;
    let (outcome, facts) = match prepare(&flags, &progress, &claim).await {
        Ok(plan) => {
            let outcome = serve(&flags, plan.as_ref(), &progress, &claim).await;
            (outcome, parts::record(&flags, plan.as_ref()))
        }
        Err(error) => (Err(error), parts::record(&flags, None)),
    };
    let removed = match flags.nodes {
        0 => Ok(leftovers::Removed::default()),
        _ => leftovers::remove(&flags.name, &facts).await,
    };
    // What ended the cluster matters more than what its end could not do.
    outcome?;
    removed.context("removing the nodes; `pointsman down` tries again")?;
    claim.release()
}

/// Cleans up after an earlier run and makes the network, if there are nodes.
async fn prepare(flags: &Flags, progress: &Progress, claim: &Claim) -> anyhow::Result<Option<Plan>> {
    std::fs::create_dir_all(&flags.data_dir)
        .with_context(|| format!("making {}", flags.data_dir.display()))?;
    if flags.nodes == 0 {
        claim.write(&parts::record(flags, None))?;
        return Ok(None);
    }
    let earlier = claim.earlier.clone().unwrap_or_default();
    let removed = leftovers::remove(&flags.name, &earlier).await;
    let removed = removed.context("cleaning up after an earlier run")?;
    if !removed.is_nothing() {
        progress.note(format_args!("cleaned up after an earlier run: {removed}"));
    }
    let started = Instant::now();
    let lock = claim::lock_addresses()?;
    let plan = Plan {
        name: flags.name.clone(),
        block: remembered_block(flags)?,
        nodes: flags.nodes,
    };
    // Whatever happens from here on, the next start knows where to look.
    claim.write(&parts::record(flags, Some(&plan)))?;
    network::build(&plan).context("connecting the nodes")?;
    drop(lock);
    progress.ready(
        "network",
        started,
        format_args!("{} nodes in {}", plan.nodes, plan.block.range()),
    );
    Ok(Some(plan))
}

/// The data directory keeps its block: the addresses of Services are in it.
fn remembered_block(flags: &Flags) -> anyhow::Result<Block> {
    let path = flags.data_dir.join("network.json");
    let read = std::fs::read(&path).ok();
    let known = read.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let remembered = known.and_then(|known| Block::try_new(known["block"].as_u64()?.try_into().ok()?));
    let block = network::choose_block(&flags.name, remembered)?;
    if remembered != Some(block) {
        let text = json!({"block": block.number(), "range": block.range().to_string()});
        std::fs::write(&path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(block)
}

async fn serve(flags: &Flags, plan: Option<&Plan>, progress: &Progress, claim: &Claim) -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new()?;
    let outcome = match plan.filter(|_| flags.apart) {
        Some(plan) => serve_apart(flags, plan, progress, claim, &mut supervisor).await,
        None => return serve_together(flags, plan, progress, claim, supervisor).await,
    };
    supervisor.stop().await;
    outcome
}

/// Everything is a child: nothing can end here but by a signal.
async fn serve_apart(
    flags: &Flags,
    plan: &Plan,
    progress: &Progress,
    claim: &Claim,
    supervisor: &mut Supervisor,
) -> anyhow::Result<()> {
    let stop = stop_signal();
    tokio::pin!(stop);
    let starting = async {
        let served = apart::start(flags, plan, progress, supervisor).await?;
        let server = parts::Server {
            address: served.server,
            kubeconfig: served.kubeconfig.clone(),
        };
        let gate = Some(served.gate);
        let nodes = parts::start_nodes(flags, plan, &server, gate, progress, supervisor).await?;
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
        ..parts::record(flags, Some(plan))
    };
    claim.write(&facts)?;
    progress.all_ready(&how_to_use(&facts), serde_json::to_value(&facts)?);
    tokio::select! {
        signal = stop => signal,
        never = parts::demonstrate(flags, Some(plan), Some(&nodes), progress) => match never {},
    }
}

async fn serve_together(
    flags: &Flags,
    plan: Option<&Plan>,
    progress: &Progress,
    claim: &Claim,
    mut supervisor: Supervisor,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let server = apiserver::launch(role(parts::server_arguments(flags, plan))?).await?;
    progress.ready(
        "API server",
        started,
        format_args!("https://{}, {} objects found", server.address, server.objects),
    );
    let (stop, stopping) = watch::channel(false);
    let loops = role(parts::controller_arguments(flags, plan))?;
    let mut loops = tokio::spawn(controllers::run_until(loops, stopping));
    let mut collector = None;
    let outcome = async {
        let mut facts = Record {
            ready: true,
            server: local_url(server.address),
            ..parts::record(flags, plan)
        };
        let starting = async {
            let Some(plan) = plan else { return Ok(None) };
            let running = collector.insert(parts::start_collector(flags, plan, progress).await?);
            facts.page = Some(format!("http://{}/", running.address));
            let gate = running.gate_address;
            let reached = parts::Server {
                address: server.address,
                kubeconfig: server.kubeconfig.clone(),
            };
            let nodes = parts::start_nodes(flags, plan, &reached, gate, progress, &mut supervisor);
            nodes.await.map(Some)
        };
        let stop = stop_signal();
        tokio::pin!(stop);
        // Somebody may lose patience while it starts.
        let nodes = tokio::select! {
            signal = &mut stop => return signal,
            nodes = starting => nodes?,
        };
        claim.write(&facts)?;
        progress.all_ready(&how_to_use(&facts), serde_json::to_value(&facts)?);
        let collecting = async {
            match &mut collector {
                Some(collector) => collector.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = stop => signal?,
            ended = &mut loops => ended??,
            () = collecting => bail!("a part of the collector ended unexpectedly"),
            never = parts::demonstrate(flags, plan, nodes.as_ref(), progress) => match never {},
        }
        anyhow::Ok(())
    }
    .await;
    supervisor.stop().await;
    if let Some(collector) = collector {
        collector.stop().await;
    }
    stop.send_replace(true);
    if !loops.is_finished() {
        loops.await??;
    }
    server.stop().await;
    outcome
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
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
    let page = facts.page.as_deref().unwrap_or("none without nodes");
    format!(
        "serving   {}\npage      {page}\n\nTry, in another terminal:\n  \
         export KUBECONFIG={}\n  \
         kubectl create deployment web --image=host --replicas=3 -- python3 -m http.server 8080\n  \
         kubectl expose deployment web --port=80 --target-port=8080 && kubectl get services,endpointslices\n  \
         {third}\n\n\
         Ctrl-C or `pointsman down{name}` stops it; the next start finds its data in {}.",
        facts.server,
        facts.kubeconfig.display(),
        facts.data_dir.display(),
    )
}
