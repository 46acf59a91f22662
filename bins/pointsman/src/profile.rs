//! `pointsman profile`: plan, apply and watch changes of the latency profile.

use crate::duration;
use clap::{Args, Subcommand, ValueEnum};
use pointsman_api_client::Source;
use pointsman_controllers::latency_profile::plan_json;
use pointsman_latency_profile::{
    Catalog, Day, GracePeriod, LeaseTerms, Pool, Profile, ReportPeriod, State, Tolerations, Values, Wanted,
    plan, render,
};
use pointsman_profile::kubeadm::Files;
use pointsman_profile::{cluster, kubeadm, print};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How patient the cluster is with its nodes: plan a change, apply it, watch it, check what is in force.
///
/// A profile sets three things at once: how often nodes report, how long a node may be silent, and how
/// long pods stay on a silent node. Changed in the wrong order, live nodes look dead; plans go only
/// through states in which at least 4 reports fit into the grace period.
///
///   Default                      10s / 40s / 300s
///   MediumUpdateAverageReaction  20s / 2m  /  60s   (short: medium)
///   LowUpdateSlowReaction         1m / 5m  /  60s   (short: low)
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the steps of a change, the states on the way, and why each is safe. Touches nothing.
    Plan(PlanFlags),
    /// Ask a cluster for a profile and follow the rollout, or change the files of a kubeadm control plane.
    Apply(Box<ApplyFlags>),
    /// Print what each owner says about the rollout.
    Status(StatusFlags),
    /// Print the values in force and whether nodes are safe with them; fails if they are not.
    Check(CheckFlags),
    /// Put the files of a kubeadm control plane back as they were before the first `apply`. Elsewhere the way back is
    /// `apply Default`: flags and files were never changed.
    Restore(KubeadmFlags),
}

#[derive(Args)]
struct PlanFlags {
    /// Where it starts: a profile, or values as REPORT/GRACE/TOLERATION such as 10s/40s/300.
    #[arg(long, value_name = "PROFILE|VALUES")]
    from: Start,
    /// The profile to reach.
    #[arg(long, value_name = "PROFILE")]
    to: String,
    /// Another profile for the nodes of a pool, as POOL=PROFILE; the slowest pool sets the control plane.
    #[arg(long = "pool", value_name = "POOL=PROFILE", value_parser = pool)]
    pools: Vec<(String, String)>,
    /// 0 while a cluster is installed: straight to the profile. 2 while it runs: never past a profile in
    /// between.
    #[arg(long, value_name = "0|2", default_value = "2")]
    day: DayFlag,
    /// What to print.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Output,
    /// Also know kubespray's FastUpdateFastReaction (4s / 20s / 30s), which the API does not have.
    #[arg(long)]
    with_fast: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DayFlag {
    #[value(name = "0")]
    Zero,
    #[value(name = "2")]
    Two,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// A table for people.
    Text,
    /// For programs.
    Json,
    /// A timeline.
    Svg,
}

/// How a cluster is reached.
#[derive(Args)]
struct Connection {
    /// How to reach the API server; without it, ~/.kube/config or the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl Connection {
    fn source(&self) -> Source {
        Source::of_user(self.kubeconfig.clone())
    }
}

/// Which files make a control plane.
#[derive(Args)]
struct KubeadmFlags {
    /// Directory with manifests/kube-apiserver.yaml and manifests/kube-controller-manager.yaml.
    #[arg(long, value_name = "DIR", default_value = "/etc/kubernetes")]
    kubeadm_dir: PathBuf,
    /// A kubelet's configuration file; repeat it for each kubelet whose file is within reach.
    #[arg(
        long = "kubelet-config",
        value_name = "FILE",
        default_value = "/var/lib/kubelet/config.yaml"
    )]
    kubelet_configs: Vec<PathBuf>,
}

/// The same, if files are meant at all.
#[derive(Args)]
struct OptionalKubeadmFlags {
    /// Work on the files of a kubeadm control plane instead of a cluster's API: the directory with
    /// manifests/kube-apiserver.yaml and manifests/kube-controller-manager.yaml, usually /etc/kubernetes.
    #[arg(long, value_name = "DIR")]
    kubeadm_dir: Option<PathBuf>,
    /// With --kubeadm-dir: a kubelet's configuration file; repeat it for each kubelet within reach. Without
    /// it, /var/lib/kubelet/config.yaml. Kubelets read it when they start: restart them after each change.
    #[arg(long = "kubelet-config", value_name = "FILE", requires = "kubeadm_dir")]
    kubelet_configs: Vec<PathBuf>,
    /// With --kubeadm-dir: take a step for done when the running processes have the new flags, not when
    /// the file has them.
    #[arg(long, requires = "kubeadm_dir")]
    observe_processes: bool,
    /// Where processes are observed.
    #[arg(long, value_name = "DIR", default_value = "/proc", hide = true)]
    proc_dir: PathBuf,
    /// With --kubeadm-dir: how long one step may take before Default is restored.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse, requires = "kubeadm_dir")]
    step_timeout: Duration,
}

impl OptionalKubeadmFlags {
    /// The files, if a directory was named.
    fn resolve(&self) -> Option<Files> {
        let kubelets = if self.kubelet_configs.is_empty() {
            vec!["/var/lib/kubelet/config.yaml".into()]
        } else {
            self.kubelet_configs.clone()
        };
        Some(Files {
            root: self.kubeadm_dir.clone()?,
            kubelets,
            observe: self.observe_processes.then(|| self.proc_dir.clone()),
            step_timeout: self.step_timeout,
        })
    }
}

#[derive(Args)]
struct ApplyFlags {
    /// The profile to reach.
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// Another profile for the nodes of a pool (label pointsman.io/pool), as POOL=PROFILE; `POOL=` removes it.
    #[arg(long = "pool", value_name = "POOL=PROFILE", value_parser = pool, conflicts_with = "kubeadm_dir")]
    pools: Vec<(String, String)>,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    kubeadm: OptionalKubeadmFlags,
    /// Return at once instead of following the rollout.
    #[arg(long)]
    no_wait: bool,
    /// How long to follow it.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    timeout: Duration,
}

#[derive(Args)]
struct StatusFlags {
    #[command(flatten)]
    connection: Connection,
    /// Print again whenever it changes, until the profile is in force or an owner is degraded.
    #[arg(long, short)]
    watch: bool,
}

#[derive(Args)]
struct CheckFlags {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    kubeadm: OptionalKubeadmFlags,
}

/// Where a plan starts.
#[derive(Clone)]
enum Start {
    Named(String),
    Values(Values),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').map(str::trim).collect();
        let [report, grace, toleration] = words.as_slice() else {
            return Ok(Self::Named(text.to_owned()));
        };
        let seconds = toleration.strip_suffix('s').unwrap_or(toleration);
        Ok(Self::Values(Values {
            report: ReportPeriod::parse(report).map_err(|error| error.to_string())?,
            grace: GracePeriod::parse(grace).map_err(|error| error.to_string())?,
            tolerations: Tolerations::both(
                Tolerations::parse_seconds(seconds).map_err(|error| error.to_string())?,
            ),
        }))
    }
}

/// Runs one of the commands.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    match flags.command {
        Command::Plan(flags) => print_plan(&flags),
        Command::Apply(flags) => match flags.kubeadm.resolve() {
            Some(files) => kubeadm::apply(&files, &flags.profile, flags.timeout).await,
            None => {
                let request = cluster::Request {
                    profile: flags.profile,
                    pools: flags.pools,
                    follow: (!flags.no_wait).then_some(flags.timeout),
                };
                cluster::apply(&flags.connection.source(), &request).await
            }
        },
        Command::Status(flags) if flags.watch => cluster::watch(&flags.connection.source()).await,
        Command::Status(flags) => cluster::status(&flags.connection.source()).await,
        Command::Check(flags) => match flags.kubeadm.resolve() {
            Some(files) => kubeadm::check(&files).await,
            None => cluster::check(&flags.connection.source()).await,
        },
        Command::Restore(flags) => kubeadm::restore(&flags.kubeadm_dir, &flags.kubelet_configs),
    }
}

fn print_plan(flags: &PlanFlags) -> anyhow::Result<()> {
    let catalog = if flags.with_fast {
        Catalog::with_fast()
    } else {
        Catalog::standard()
    };
    let from = match &flags.from {
        Start::Named(name) => catalog.find(name)?.values,
        Start::Values(values) => *values,
    };
    let pools = flags
        .pools
        .iter()
        .map(|(pool, name)| Ok((Pool::named(pool), catalog.find(name)?)));
    let wanted = Wanted {
        profile: catalog.find(&flags.to)?,
        pools: pools.collect::<anyhow::Result<BTreeMap<Pool, Profile>>>()?,
    };
    let mut state = State::from(from);
    for pool in wanted.pools.keys() {
        let span = state.reports[&Pool::default()];
        state.reports.insert(pool.clone(), span);
    }
    let day = match flags.day {
        DayFlag::Zero => Day::Zero,
        DayFlag::Two => Day::Two,
    };
    let plan = plan(&state, &wanted, &catalog, day);
    let leases = LeaseTerms::default();
    let text = match flags.output {
        Output::Text => render::text(&plan, &catalog, leases),
        Output::Json => serde_json::to_string_pretty(&plan_json(&plan, &catalog, leases))? + "\n",
        Output::Svg => {
            let from = catalog
                .of_values(from)
                .map_or("values in force", |profile| profile.name);
            let title = format!("{from} to {}, day {}", wanted.profile.name, day_number(day));
            render::svg(&plan, &catalog, &title)
        }
    };
    print(&text)
}

fn day_number(day: Day) -> u8 {
    match day {
        Day::Zero => 0,
        Day::Two => 2,
    }
}

fn pool(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(pool, _)| !pool.is_empty());
    let (pool, profile) = pair.ok_or("pools are given as POOL=PROFILE, such as edge=low")?;
    Ok((pool.to_owned(), profile.to_owned()))
}
