//! One program for the whole path from a pod's health to every node's rules.

mod apiserver;
mod ca;
mod config_file;
mod controllers;
mod dns;
mod doctor;
mod duration;
mod explain;
mod gate;
mod hollow;
mod keys;
mod logging;
mod metrics_access;
mod metrics_reference;
mod node;
mod output;
mod profile;
mod proxy;
mod shutdown;
mod sli;
mod trials;
mod up;

use clap::{Parser, Subcommand};
use pointsman_cluster::{self as cluster, rootless};
use shutdown::stop_signal;
use std::process::ExitCode;

/// From a pod's health to every node's load-balancing rules, measured.
///
/// Roles share their state through the Kubernetes API, so each runs against the embedded API server
/// or against a real one.
#[derive(Parser)]
#[command(name = "pointsman", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    logging: logging::Flags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything on this machine: one command, no configuration.
    Up(Box<up::Flags>),
    /// Stop a cluster that `up` runs on this machine, and remove everything but its data.
    Down(up::DownFlags),
    /// Show the health of clusters that `up` runs on this machine.
    Status(up::StatusFlags),
    /// Run a command in a node or a pod of a cluster that `up` runs on this machine.
    Exec(up::ExecFlags),
    /// Put images onto the nodes of a cluster that `up --runtime containerd` runs on this machine.
    #[command(subcommand)]
    Image(up::ImageCommand),
    /// Print completions for a shell.
    #[command(after_help = "For bash: source <(pointsman completions bash)")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Run the Kubernetes-compatible API server on an embedded durable store, or on etcd.
    Apiserver(Box<apiserver::Command>),
    /// Show and replace the keys that sign tokens of service accounts and encrypt Secrets.
    Keys(keys::Flags),
    /// Show and replace the certificate authority of an embedded API server.
    Ca(ca::Flags),
    /// Run the loops that turn pods into endpoints, and the workloads that make pods.
    Controllers(Box<controllers::Flags>),
    /// Run the agent of this node: pods, probes, readiness, heartbeats.
    ///
    /// The kubelet's part: it runs the pods that are bound to the node as processes of this machine
    /// (`image: host`), or has a container runtime run their images, probes them, reports their readiness the moment it changes, and sends heartbeats.
    ///
    /// It works in the network namespace that it is started in, which becomes the node's. Pods outlive it: a
    /// new agent on the same --root-dir finds them again, and those that were ready stay ready.
    ///
    /// Flags that the kubelet also has keep its names and formats; they win over the file of --config.
    Node(Box<node::Flags>),
    /// Run the service proxy of this node: a drop-in for kube-proxy.
    Proxy(Box<proxy::Flags>),
    /// Run the cluster's DNS: Services and their endpoints by name.
    ///
    /// It watches Services and EndpointSlices and answers questions about them; a change is answered as soon as the
    /// watch brings it. What is not the cluster's is asked of other name servers.
    Dns(Box<dns::Flags>),
    /// Say which way packets to an address or Service take on a node, and why.
    Explain(Box<explain::Flags>),
    /// Look at this node and its cluster, and say what stands in the way of a proxy and what to do.
    Doctor(doctor::Flags),
    /// A small web server that tells who it is, for demonstrations and tests.
    #[command(hide = true)]
    ServeHttp(trials::ServeHttpFlags),
    /// Open connections at a fixed rate and count what becomes of them, for demonstrations and tests.
    #[command(hide = true)]
    Load(trials::LoadFlags),
    /// Measure how long changes take to reach every node, and say when a pod may be stopped.
    Sli(Box<sli::Flags>),
    /// Wait until no node sends new connections to a pod that is being deleted.
    ///
    /// For a preStop hook: it asks the shutdown gate of `sli` about its own pod, which the downward API names, and
    /// ends when the pod may be stopped, or after --bound.
    Gate(gate::Flags),
    /// Print the reference of all metrics, in Markdown.
    #[command(hide = true)]
    MetricsReference,
    /// The first process in the namespaces of a cluster without root.
    #[command(hide = true)]
    RootlessInit(up::InitFlags),
    /// Run another command of this program in the namespaces of a cluster without root.
    #[command(hide = true)]
    Inside {
        /// The first process in them.
        pid: u32,
        /// The command.
        #[arg(last = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Run programmers or nodes without a kernel, to try a collector or a control plane on a large cluster.
    Hollow(Box<hollow::Flags>),
    /// Put a documented load on a cluster that `up` runs, and compare the SLI with packets.
    Scenario(trials::ScenarioFlags),
    /// Put clusters of three nodes under seeded faults, and check that nothing acknowledged is lost.
    Faults(trials::FaultsFlags),
    /// Plan, apply and watch changes of how patient the cluster is with its nodes.
    Profile(Box<profile::Flags>),
}

fn main() -> ExitCode {
    // The shim of a container is this same program. It forks, so that it comes before any thread.
    if let Some(code) = pointsman_runtime::shim::run_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    if matches!(cli.command, Command::Proxy(_)) {
        // It runs on every node, so that its memory counts as often as there are nodes.
        pointsman_kernel::memory::prefer_small();
    }
    cli.logging.install(match cli.command {
        Command::Up(_)
        | Command::Down(_)
        | Command::Status(_)
        | Command::Exec(_)
        | Command::Image(_)
        | Command::Profile(_)
        | Command::Doctor(_) => "warn",
        // Whatever it breaks complains; what matters is in its own lines.
        Command::Faults(_) => "error,kube_client=off",
        _ => "info",
    });
    raise_descriptor_limit();
    if let Some(outcome) = before_threads(&cli.command) {
        return finish(outcome);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Up(flags) => match flags.detached() {
                Some((name, data_dir)) => cluster::detach::run(name, data_dir),
                None => up::run(flags.config()?).await,
            },
            Command::Down(flags) => cluster::down::run(&flags.name).await,
            Command::Status(flags) => {
                return cluster::status::run(flags.name.as_deref(), flags.output.into()).await;
            }
            Command::Exec(flags) => {
                return cluster::exec::run(&flags.name, &flags.target, &flags.command).await;
            }
            Command::Image(up::ImageCommand::Load { name, archive }) => {
                cluster::containers::load(&name, &archive)
            }
            Command::Completions { shell } => complete(shell),
            Command::Apiserver(flags) => apiserver::run(*flags).await,
            Command::Ca(flags) => ca::run(flags),
            Command::Keys(flags) => keys::run(flags),
            Command::Controllers(flags) => controllers::run(*flags).await,
            Command::Node(flags) => node::run(*flags).await,
            Command::Proxy(flags) => proxy::run(*flags).await,
            Command::Dns(flags) => dns::run(*flags).await,
            Command::Explain(flags) => return explain::run(*flags).await,
            Command::Doctor(flags) => return doctor::run(flags).await,
            Command::ServeHttp(flags) => cluster::serve_http::run(flags.listen, stop_signal()).await,
            Command::Load(flags) => cluster::load::run(flags.config(), stop_signal()).await,
            Command::Sli(flags) => sli::run(*flags).await,
            Command::Gate(flags) => gate::run(flags).await,
            Command::MetricsReference => metrics_reference::run(),
            Command::Hollow(flags) => hollow::run(*flags).await,
            Command::Scenario(flags) => pointsman_scenario::run(flags.config()).await,
            Command::Faults(flags) => return pointsman_faults::run(flags.config()).await,
            Command::Profile(flags) => profile::run(*flags).await,
            Command::RootlessInit(_) | Command::Inside { .. } => Ok(()),
        }
        .map(|()| ExitCode::SUCCESS)
    });
    finish(outcome)
}

/// Does what only a process with a single thread can do: user namespaces are made and entered by whole
/// processes.
fn before_threads(command: &Command) -> Option<anyhow::Result<ExitCode>> {
    match command {
        Command::Up(flags) if flags.detached().is_some() => None,
        Command::Up(flags) => match flags.config() {
            Ok(config) => rootless::is_needed(&config).then(|| rootless::run(&config)),
            Err(error) => Some(Err(error)),
        },
        Command::RootlessInit(flags) => Some(rootless::init(&flags.config())),
        Command::Inside { pid, command } => Some(rootless::run_inside(*pid, command)),
        _ => None,
    }
}

fn finish(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Writes a shell's completions to standard output.
fn complete(shell: clap_complete::Shell) -> anyhow::Result<()> {
    use clap::CommandFactory;
    use std::io::Write;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pointsman", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

/// A server with thousands of watchers needs more descriptors than the usual 1,024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}
