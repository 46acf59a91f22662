//! `pointsman up`: everything on this machine.
//!
//! ```text
//!  host       API server, controllers            one link pm-NAME, one route
//!    |
//!  NAME-fabric    a namespace with a bridge
//!    |        |        |
//!  NAME-n1  NAME-n2  NAME-n3    a namespace per node, with its proxy and its own rules
//! ```

pub mod claim;
pub mod leftovers;
pub mod network;
pub mod nodes;
pub mod plan;
mod pod_routes;
pub mod progress;
mod register;
mod supervise;

use crate::{apiserver, controllers, stop_signal};
use anyhow::{Context, bail};
use claim::{Claim, NodeRecord, Record};
use clap::{Args, Parser, ValueEnum};
use plan::{Block, Plan};
use pointsman_api_client::{Source, connect};
use pointsman_api_server::Running;
use pointsman_api_server::auth::kubeconfig::local_url;
use progress::{Output, Progress};
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use supervise::Supervisor;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a newcomer needs and nothing else.
#[derive(Args)]
#[command(after_help = "\
Nodes need root. The host gets one link and one route; its firewall is never touched.

Exit codes: 0 stopped as asked, 1 it could not start or go on (the message says why), 2 wrong usage.")]
pub struct Flags {
    /// The cluster's name; clusters of different names run side by side.
    #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    name: String,
    /// How many nodes, each in a network namespace of its own; 0 runs without nodes and without root.
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
    /// For whom output is written.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
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
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let progress = Progress::new(flags.output);
    if flags.nodes > 0 && !rustix::process::geteuid().is_root() {
        bail!(
            "nodes live in network namespaces, which need root: run `sudo pointsman up`, or `pointsman up --nodes 0` \
             for the API server and controllers alone"
        );
    }
    let claim = Claim::take(&flags.name)?;
    let outcome = match prepare(&flags, &progress, &claim) {
        Ok(plan) => serve(&flags, plan.as_ref(), &progress, &claim).await,
        Err(error) => Err(error),
    };
    let removed = match flags.nodes {
        0 => Ok(leftovers::Removed::default()),
        _ => leftovers::remove(&flags.name),
    };
    // What ended the cluster matters more than what its end could not do.
    outcome?;
    removed.context("removing the nodes; `pointsman down` tries again")?;
    claim.release()
}

/// Cleans up after an earlier run and makes the network, if there are nodes.
fn prepare(flags: &Flags, progress: &Progress, claim: &Claim) -> anyhow::Result<Option<Plan>> {
    std::fs::create_dir_all(&flags.data_dir)
        .with_context(|| format!("making {}", flags.data_dir.display()))?;
    claim.write(&record(flags, None))?;
    if flags.nodes == 0 {
        return Ok(None);
    }
    let removed = leftovers::remove(&flags.name).context("cleaning up after an earlier run")?;
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
    let started = Instant::now();
    let server = apiserver::launch(role(server_arguments(flags, plan))?).await?;
    progress.ready(
        "API server",
        started,
        format_args!("https://{}, {} objects found", server.address, server.objects),
    );
    let (stop, stopping) = watch::channel(false);
    let loops = role(controller_arguments(flags, plan))?;
    let mut loops = tokio::spawn(controllers::run_until(loops, stopping));
    let mut supervisor = Supervisor::new()?;
    let outcome = async {
        let routes = match plan {
            Some(plan) => Some(start_nodes(flags, plan, &server, progress, &mut supervisor).await?),
            None => None,
        };
        let facts = Record {
            ready: true,
            server: local_url(server.address),
            ..record(flags, plan)
        };
        claim.write(&facts)?;
        progress.all_ready(&how_to_use(&facts), serde_json::to_value(&facts)?);
        tokio::select! {
            signal = stop_signal() => signal?,
            ended = &mut loops => ended??,
        }
        drop(routes);
        anyhow::Ok(())
    }
    .await;
    supervisor.stop().await;
    stop.send_replace(true);
    if !loops.is_finished() {
        loops.await??;
    }
    server.stop().await;
    outcome
}

/// Ends a task with the value.
struct Aborting(JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts all nodes and returns once all serve. What is returned keeps the fabric's routes to pods.
async fn start_nodes(
    flags: &Flags,
    plan: &Plan,
    server: &Running,
    progress: &Progress,
    supervisor: &mut Supervisor,
) -> anyhow::Result<Aborting> {
    let started = Instant::now();
    let client = connect::connect(&Source::Kubeconfig(server.kubeconfig.clone()), "pointsman-up").await?;
    register::register(&client, plan)
        .await
        .context("registering nodes")?;
    let routes = Aborting(tokio::spawn(pod_routes::keep(client, plan.clone())));
    let for_nodes = SocketAddr::new(plan.host_address().address(), server.address.port());
    let credentials = nodes::Credentials::write(&flags.data_dir, &local_url(for_nodes))?;
    let settings = nodes::Settings {
        program: std::env::current_exe().context("finding our own program")?,
        logs: flags.data_dir.join("logs"),
        proxy_mode: flags.proxy_mode.as_str().to_owned(),
    };
    std::fs::create_dir_all(&settings.logs).with_context(|| format!("making {}", settings.logs.display()))?;
    for node in plan.nodes() {
        nodes::start(plan, &node, &credentials, &settings, supervisor)?;
    }
    let mut failed = 0;
    for node in plan.nodes() {
        let part = format!("{} proxy", node.name);
        match nodes::wait_for_proxy(&node, &settings).await {
            Ok(()) => progress.ready(
                &part,
                started,
                format_args!("{} at {}", settings.proxy_mode, node.address),
            ),
            Err(why) => {
                progress.failed(&part, why);
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} nodes do not serve", plan.nodes);
    }
    Ok(routes)
}

fn server_arguments(flags: &Flags, plan: Option<&Plan>) -> Vec<OsString> {
    let mut arguments = vec!["--data-dir".into(), flags.data_dir.clone().into()];
    let Some(plan) = plan else {
        let listen = flags.listen.map(|listen| format!("--listen={listen}").into());
        arguments.extend(listen);
        return arguments;
    };
    let for_nodes = plan.host_address().address();
    let listen = match flags.listen {
        None => format!("{for_nodes}:6443"),
        Some(listen) if listen.ip().is_unspecified() || listen.ip() == for_nodes => listen.to_string(),
        // Nodes cannot reach the user's choice, so there is a second listener.
        Some(listen) => format!("{listen},{for_nodes}:0"),
    };
    arguments.push(format!("--listen={listen}").into());
    arguments.push(format!("--advertise-address={for_nodes}").into());
    arguments.push(format!("--service-cluster-ip-range={}", plan.service_range()).into());
    arguments
}

fn controller_arguments(flags: &Flags, plan: Option<&Plan>) -> Vec<OsString> {
    let kubeconfig = flags.data_dir.join("kubeconfigs/controllers.kubeconfig");
    let metrics = plan.map_or("off".to_owned(), |plan| controllers_address(plan).to_string());
    let pods = plan.map_or("10.244.0.0/16".to_owned(), |plan| plan.pod_range().to_string());
    vec![
        "--kubeconfig".into(),
        kubeconfig.into(),
        // One process leads by itself.
        "--leader-elect=false".into(),
        format!("--metrics-listen={metrics}").into(),
        "--allocate-node-cidrs".into(),
        format!("--cluster-cidr={pods}").into(),
    ]
}

/// Where the controllers tell their health: on an address that no other cluster has.
fn controllers_address(plan: &Plan) -> SocketAddr {
    SocketAddr::new(plan.host_address().address(), 10257)
}

fn record(flags: &Flags, plan: Option<&Plan>) -> Record {
    let nodes = plan.map(Plan::nodes).unwrap_or_default();
    Record {
        name: flags.name.clone(),
        pid: std::process::id(),
        data_dir: absolute(&flags.data_dir),
        kubeconfig: absolute(&flags.data_dir.join("admin.kubeconfig")),
        nodes: nodes
            .into_iter()
            .map(|node| NodeRecord {
                name: node.name,
                namespace: node.namespace,
                address: node.address,
            })
            .collect(),
        controllers: plan.map(controllers_address),
        ..Record::default()
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn how_to_use(facts: &Record) -> String {
    let name = match facts.name.as_str() {
        "pointsman" => String::new(),
        other => format!(" --name {other}"),
    };
    let node = match facts.nodes.first() {
        Some(node) => format!("  pointsman exec{name} {} -- nft list ruleset\n", node.name),
        None => String::new(),
    };
    format!(
        "serving   {}\n\nTry, in another terminal:\n  \
         export KUBECONFIG={}\n  \
         kubectl create deployment web --image=host --replicas=3 && kubectl get deployments,pods -o wide\n  \
         kubectl expose deployment web --port=80 && kubectl get services,endpointslices\n{node}\n\
         Ctrl-C or `pointsman down{name}` stops it; the next start finds its data in {}.",
        facts.server,
        facts.kubeconfig.display(),
        facts.data_dir.display(),
    )
}
