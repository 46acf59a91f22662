//! How fast and how large is the API server, on each store?
//!
//! Starts a real server on a real disk, loads it from this process over TLS as clients would, and
//! prints one column of numbers per store engine. `docs/benchmarks.md` says what each row means.

mod custom;
mod large;
mod lists;
mod objects;
mod progress;
mod report;
mod server;
mod streams;
mod watches;
mod writes;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use pointsman_benches::process;
use report::{Machine, Report};
use server::{Engine, Workplace};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Measures `pointsman apiserver`.
#[derive(Parser)]
struct Flags {
    /// The program to measure.
    #[arg(value_name = "POINTSMAN")]
    program: PathBuf,
    /// A smoke test of some seconds: fewer clients and objects, no meaning in the numbers.
    #[arg(long)]
    quick: bool,
    /// Which stores to measure.
    #[arg(long, value_enum, default_value_t = Stores::Both)]
    store: Stores,
    /// Only these phases.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Phase::Writes, Phase::Watches, Phase::Lists, Phase::Custom])]
    phase: Vec<Phase>,
    /// How many objects a large store holds, where the size is not the usual one.
    #[arg(long, value_name = "N")]
    objects: Option<usize>,
    /// Where data directories and `api.json` go; must be on a disk.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// The etcd to run.
    #[arg(long, value_name = "FILE", env = "ETCD_BIN", default_value = "etcd")]
    etcd: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stores {
    Embedded,
    Etcd,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Phase {
    Writes,
    Watches,
    Lists,
    Custom,
    /// Many objects; on the embedded store only.
    Large,
    /// Many watches, each over a connection of its own.
    Streams,
}

/// How much load there is.
struct Scale {
    /// Clients that write at the same time, each on a connection of its own.
    writers: usize,
    /// How long each kind of write is measured.
    write_time: Duration,
    fan: Fan,
    streams: Fan,
    slices: usize,
    definitions: usize,
    /// Objects of a large store, EndpointSlices among them.
    objects: usize,
}

/// Changes, and those who watch them.
struct Fan {
    watchers: usize,
    changes_per_second: u32,
    time: Duration,
}

const FULL: Scale = Scale {
    writers: 64,
    write_time: Duration::from_secs(10),
    fan: Fan {
        watchers: 1_000,
        changes_per_second: 100,
        time: Duration::from_secs(15),
    },
    streams: Fan {
        watchers: 5_000,
        changes_per_second: 20,
        time: Duration::from_secs(15),
    },
    slices: 50_000,
    definitions: 200,
    objects: 1_000_000,
};

const QUICK: Scale = Scale {
    writers: 16,
    write_time: Duration::from_secs(1),
    fan: Fan {
        watchers: 50,
        changes_per_second: 50,
        time: Duration::from_secs(1),
    },
    streams: Fan {
        watchers: 500,
        changes_per_second: 20,
        time: Duration::from_secs(5),
    },
    slices: 1_000,
    definitions: 20,
    objects: 100_000,
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = pointsman_benches::arguments();
    let flags = Flags::parse_from(std::iter::once("api".to_owned()).chain(arguments));
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Whatever ends first, leaving this function ends child processes and removes their directories.
    tokio::select! {
        done = run(&flags) => done,
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    }
}

async fn run(flags: &Flags) -> anyhow::Result<()> {
    process::raise_file_limit();
    std::fs::create_dir_all(&flags.out).with_context(|| format!("cannot create {}", flags.out.display()))?;
    let disk = process::disk_of(&flags.out)?;
    let scale = if flags.quick { QUICK } else { FULL };
    let scale = Scale {
        objects: flags.objects.unwrap_or(scale.objects),
        ..scale
    };
    let engines = match flags.store {
        Stores::Embedded => vec![Engine::Embedded],
        Stores::Etcd => vec![Engine::Etcd],
        Stores::Both => vec![Engine::Embedded, Engine::Etcd],
    };
    let mut report = Report::new(Machine::look(disk), flags.quick);
    for engine in engines {
        progress::say(&format!("store {}", engine.name()));
        let workplace = Workplace {
            program: flags.program.clone(),
            etcd: flags.etcd.clone(),
            scratch: flags.out.clone(),
            engine,
        };
        report.begin(engine.name());
        measure(&workplace, &scale, &flags.phase, &mut report).await?;
    }
    report.machine.look_again();
    write(&flags.out.join("api.json"), &report)
}

/// Each phase has a server and a disk of its own, so that none pays for another's leftovers.
async fn measure(
    workplace: &Workplace,
    scale: &Scale,
    phases: &[Phase],
    report: &mut Report,
) -> anyhow::Result<()> {
    for phase in phases {
        match phase {
            Phase::Writes => writes::run(workplace, scale, report).await?,
            Phase::Watches => watches::run(workplace, scale, report).await?,
            Phase::Lists => lists::run(workplace, scale, report).await?,
            Phase::Custom => custom::run(workplace, scale, report).await?,
            Phase::Large => large::run(workplace, scale, report).await?,
            Phase::Streams => streams::run(workplace, scale, report).await?,
        }
    }
    Ok(())
}

fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    use std::io::Write;
    let json = serde_json::to_vec_pretty(&report.json())?;
    std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    std::io::stdout().write_all(report.markdown().as_bytes())?;
    Ok(())
}
