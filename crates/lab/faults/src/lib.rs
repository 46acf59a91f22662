//! `pointsman faults`: does a whole cluster come through whatever happens to it?
//!
//! Each seed is a run on a cluster of its own. Requests go from every node to a Service; a user rolls, scales and
//! flips pods and adds and removes Services; a clerk writes objects and keeps a journal. Meanwhile processes are
//! killed and frozen, links cut and made lossy, the disk filled, rules flushed, everything crashed. Afterwards
//!
//! - every acknowledged write is there,
//! - no request was answered by a pod that every kernel had removed,
//! - requests were lost only while a fault was in force and a while later,
//! - the cluster is in its steady state again, and every ready pod answers every node,
//! - nothing is left behind when it stops.

mod cluster;
mod inject;
mod journal;
mod objects;
mod oracle;
mod run;
mod schedule;
mod steady;
mod traces;
mod witness;
mod writers;

use anyhow::{Context, bail};
use pointsman_cluster::containers::RuntimeKind;
use run::Report;
use schedule::Schedule;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub struct Config {
    /// How many seeds.
    pub seeds: u64,
    /// The first of them.
    pub first_seed: u64,
    /// Goes on to further seeds until this much time has passed.
    pub duration: Option<Duration>,
    /// The program that is tried; by default this one.
    pub program: Option<PathBuf>,
    /// What runs the pods.
    pub runtime: RuntimeKind,
    /// Only say what the seeds mean.
    pub plan: bool,
    /// Keep logs and events of every run, not only of those that fail.
    pub keep: bool,
}

#[derive(Default)]
struct Totals {
    runs: u64,
    failed: Vec<u64>,
    sent: u64,
    lost_during: u64,
    lost_after: u64,
    acknowledged: u64,
    slowest: f64,
}

/// Plays the seeds, with a line for each.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    if config.plan {
        for seed in (config.first_seed..).take(usize::try_from(config.seeds)?) {
            let schedule = Schedule::new(seed, config.runtime);
            say(&format!(
                "{seed:<5} {:<10} {}",
                schedule.proxy_mode,
                faults(&schedule)
            ))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !rustix::process::geteuid().is_root() {
        bail!("a cluster with nodes needs root");
    }
    let program = match config.program {
        Some(program) => program.canonicalize().context("finding the program")?,
        None => std::env::current_exe().context("finding our own program")?,
    };
    let started = Instant::now();
    let mut totals = Totals::default();
    say("seed  mode       requests  lost during  after  writes  steady s  faults")?;
    for seed in config.first_seed.. {
        let is_enough = match config.duration {
            Some(duration) => started.elapsed() >= duration,
            None => totals.runs >= config.seeds,
        };
        if is_enough {
            break;
        }
        let schedule = Schedule::new(seed, config.runtime);
        let report = run::play(&program, seed, &schedule, config.runtime, config.keep)
            .await
            .with_context(|| format!("playing seed {seed}"))?;
        say(&row(seed, &schedule, &report))?;
        totals.add(seed, &report);
    }
    say(&totals.text(started.elapsed(), config.runtime))?;
    Ok(match totals.failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(3),
    })
}

fn faults(schedule: &Schedule) -> String {
    let faults: Vec<String> = schedule.faults.iter().map(ToString::to_string).collect();
    faults.join(", ")
}

fn row(seed: u64, schedule: &Schedule, report: &Report) -> String {
    let steady = match report.recovery {
        Some(recovery) => format!("{:.1}", recovery.as_secs_f64()),
        None => "never".to_owned(),
    };
    let verdict = &report.verdict;
    let mut text = format!(
        "{seed:<5} {:<10} {:>8}  {:>11}  {:>5}  {:>6}  {steady:>8}  {}",
        schedule.proxy_mode,
        verdict.sent,
        verdict.lost_during,
        verdict.lost_after,
        report.acknowledged,
        faults(schedule)
    );
    for violation in verdict.violations.iter().take(10) {
        text += &format!("\n      WRONG: {violation}");
    }
    if verdict.violations.len() > 10 {
        text += &format!("\n      WRONG: and {} more", verdict.violations.len() - 10);
    }
    if let Some(kept) = &report.kept {
        text += &format!("\n      logs and events: {}", kept.display());
    }
    text
}

impl Totals {
    fn add(&mut self, seed: u64, report: &Report) {
        self.runs += 1;
        self.sent += report.verdict.sent;
        self.lost_during += report.verdict.lost_during;
        self.lost_after += report.verdict.lost_after;
        self.acknowledged += report.acknowledged;
        if !report.verdict.violations.is_empty() {
            self.failed.push(seed);
        }
        let recovery = report
            .recovery
            .map_or(f64::INFINITY, |recovery| recovery.as_secs_f64());
        self.slowest = self.slowest.max(recovery);
    }

    fn text(&self, took: Duration, runtime: RuntimeKind) -> String {
        let mut text = format!(
            "{} runs in {:.0} s: {} requests, {} lost during faults, {} lost otherwise; {} writes acknowledged; \
             steady after at most {:.1} s; {} runs not as they should be",
            self.runs,
            took.as_secs_f64(),
            self.sent,
            self.lost_during,
            self.lost_after,
            self.acknowledged,
            self.slowest,
            self.failed.len(),
        );
        let flag = match runtime {
            RuntimeKind::Processes => "",
            RuntimeKind::Containerd => " --runtime containerd",
        };
        for seed in &self.failed {
            text += &format!("\nplay again: pointsman faults --first-seed {seed} --seeds 1{flag}");
        }
        text
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
