//! `pointsman scenario`, `faults`, `load` and `serve-http`: clusters are measured and put to the test.

use crate::duration;
use crate::output::Output;
use crate::up::RuntimeFlag;
use clap::{Args, Subcommand, ValueEnum};
use pointsman_cluster::{load, plan};
use pointsman_scenario as scenario;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What load, on which cluster.
#[derive(Args)]
#[command(after_help = "\
Needs root, and a cluster that `pointsman up` runs. Everything that is made is removed again.

Exit codes: 0 all is within its bounds, 1 it is not, or the scenario could not be played, 2 wrong usage.")]
pub struct ScenarioFlags {
    /// The cluster, started with `pointsman up`.
    #[arg(long, global = true, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    name: String,
    /// For whom output is written.
    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    mixed: MixedFlags,
    #[command(subcommand)]
    other: Option<Other>,
}

#[derive(Subcommand)]
enum Other {
    /// Replace the pods of a Deployment under load from every node, and count lost requests.
    Rolling(RollingFlags),
}

/// The mixed load.
#[derive(Args)]
struct MixedFlags {
    /// Decides the order of changes and the churn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Services that are there besides the measured ones, with one endpoint each that nobody runs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    services: usize,
    /// Measured pods on each node, with a Service each.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pods_per_node: usize,
    /// Readiness flips that are measured.
    #[arg(long, value_name = "N", default_value_t = 200)]
    flips: usize,
    /// Services that are created, given another port and deleted.
    #[arg(long, value_name = "N", default_value_t = 30)]
    lives: usize,
    /// Rolling updates that are measured.
    #[arg(long, value_name = "N", default_value_t = 30)]
    rolls: usize,
    /// Scale-ups that are measured, from no pod to three.
    #[arg(long, value_name = "N", default_value_t = 15)]
    scale_ups: usize,
    /// Readiness flips of pods that nobody runs each second, all the while.
    #[arg(long, value_name = "N", default_value_t = 10)]
    churn: u32,
    /// Programmers without a kernel besides the nodes' own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hollow: usize,
    /// Pause before each measured change.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration::parse)]
    pause: Duration,
    /// X: what the SLI of the load may not exceed. Without it, it follows the number of programmers.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    objective: Option<Duration>,
    /// The difference between truth and report that is allowed at the 99th percentile, besides four times the worst delay
    /// of a thread of this machine meanwhile.
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = duration::parse)]
    error_bound: Duration,
    /// The least coverage that is allowed, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    coverage_bound: f64,
}

/// How many updates, under what load.
#[derive(Args)]
struct RollingFlags {
    /// Rolling updates, one after the other.
    #[arg(long, value_name = "N", default_value_t = 200)]
    updates: u64,
    /// Pods of the Deployment.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    replicas: u64,
    /// New connections each second from every node.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Who asks the shutdown gate before pods are stopped.
    #[arg(long, value_enum, default_value_t)]
    gate: Gate,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Gate {
    /// As it should be.
    #[default]
    On,
    /// By the pods' annotation, to see what it is for.
    Off,
    /// Not by the agent, but by a preStop hook, for its Service.
    ServiceHook,
    /// Not by the agent, but by a preStop hook, for its pod.
    PodHook,
}

impl ScenarioFlags {
    /// What they ask for.
    pub fn config(self) -> scenario::Config {
        scenario::Config {
            name: self.name,
            output: self.output.into(),
            load: match self.other {
                Some(Other::Rolling(flags)) => scenario::Load::Rolling(flags.config()),
                None => scenario::Load::Mixed(self.mixed.config()),
            },
        }
    }
}

impl MixedFlags {
    fn config(self) -> scenario::Mixed {
        scenario::Mixed {
            seed: self.seed,
            services: self.services,
            pods_per_node: self.pods_per_node,
            flips: self.flips,
            lives: self.lives,
            rolls: self.rolls,
            scale_ups: self.scale_ups,
            churn: self.churn,
            hollow: self.hollow,
            pause: self.pause,
            objective: self.objective,
            error_bound: self.error_bound,
            coverage_bound: self.coverage_bound,
        }
    }
}

impl RollingFlags {
    fn config(self) -> scenario::Rolling {
        scenario::Rolling {
            updates: self.updates,
            replicas: self.replicas,
            rate: self.rate,
            gate: match self.gate {
                Gate::On => scenario::Gate::On,
                Gate::Off => scenario::Gate::Off,
                Gate::ServiceHook => scenario::Gate::ServiceHook,
                Gate::PodHook => scenario::Gate::PodHook,
            },
        }
    }
}

/// Which runs.
#[derive(Args)]
#[command(
    after_help = "Needs root. A run that fails is played again with --first-seed SEED --seeds 1.

Exit codes: 0 all runs are as they should be, 3 one is not, 1 a run could not be made, 2 wrong usage."
)]
pub struct FaultsFlags {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 10)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Goes on to further seeds until this much time has passed.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    duration: Option<Duration>,
    /// The program that is tried; by default this one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// What runs pods, as `pointsman up` has it; container runtimes fail, too.
    #[arg(long, value_enum, default_value_t = RuntimeFlag::Processes)]
    runtime: RuntimeFlag,
    /// Only say what the seeds mean.
    #[arg(long)]
    plan: bool,
    /// Keep logs and events of every run, not only of those that fail.
    #[arg(long)]
    keep: bool,
}

impl FaultsFlags {
    /// What they ask for.
    pub fn config(self) -> pointsman_faults::Config {
        pointsman_faults::Config {
            seeds: self.seeds,
            first_seed: self.first_seed,
            duration: self.duration,
            program: self.program,
            runtime: self.runtime.into(),
            plan: self.plan,
            keep: self.keep,
        }
    }
}

/// Where to serve.
#[derive(Args)]
pub struct ServeHttpFlags {
    /// Where to listen.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
}

/// What to ask, and how often.
#[derive(Args)]
pub struct LoadFlags {
    /// What to connect to.
    #[arg(long, value_name = "ADDR:PORT")]
    target: SocketAddr,
    /// Connections per second.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// How long a request may take.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration::parse)]
    timeout: Duration,
    /// How often a line is written.
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = duration::parse)]
    report: Duration,
    /// How long to go on; without it, until a signal.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    duration: Option<Duration>,
    /// Write a line for each request instead.
    #[arg(long)]
    each: bool,
}

impl LoadFlags {
    /// What they ask for.
    pub fn config(self) -> load::Config {
        load::Config {
            target: self.target,
            rate: self.rate,
            timeout: self.timeout,
            report: self.report,
            duration: self.duration,
            each: self.each,
        }
    }
}
