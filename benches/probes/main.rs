//! How much does probing cost, and how well are schedules kept?
//!
//! Three roles in one program, so that their CPU times can be told apart: the servers, the prober,
//! and the one that starts both and prints a table. `make bench-probes` runs it.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod exec;
mod floors;
mod measure;
mod probe;
mod report;
mod serve;

use anyhow::{Context, Result};
use probe::{Load, Sample};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn main() -> Result<()> {
    let arguments = pointsman_benches::arguments();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve"] => serve::run(),
        ["probe", load] => probe::run(serde_json::from_str(load)?),
        ["burn"] => floors::burn(),
        ["--floors"] => floors::measure_all(false),
        ["--floors", "--quick"] => floors::measure_all(true),
        [] => measure_all(false).and_then(|()| floors::measure_all(false)),
        ["--quick"] => measure_all(true).and_then(|()| floors::measure_all(true)),
        _ => anyhow::bail!("usage: probes [--floors] [--quick]"),
    }
}

fn measure_all(quick: bool) -> Result<()> {
    let servers = Servers::start()?;
    let seconds = if quick { 1 } else { 6 };
    let http = |count, period_ms| Load {
        handler: probe::Handler::Http,
        count,
        period_ms,
        timeout_ms: 1000,
        seconds,
        limit: f64::INFINITY,
        cpu_share: 1.0,
        port: servers.port,
    };
    let mut samples = Vec::new();
    for (count, period_ms) in [(100, 200), (1000, 200), (10_000, 200), (1000, 10)] {
        samples.push(measure(&http(count, period_ms))?);
    }
    for count in [1000] {
        for handler in [probe::Handler::Tcp, probe::Handler::Grpc] {
            samples.push(measure(&Load {
                handler,
                ..http(count, 200)
            })?);
        }
    }
    // The highest rate at which nearly every check begins within 20 ms.
    for limit in [30_000.0, 25_000.0, 20_000.0, 15_000.0, 10_000.0, 7_500.0] {
        let sample = measure(&Load {
            limit,
            ..http(10_000, 200)
        })?;
        let kept = sample.jitter_p99_ms <= 20.0;
        samples.push(sample);
        if kept || quick {
            break;
        }
    }
    samples.push(measure(&Load {
        limit: 20_000.0,
        cpu_share: 0.5,
        ..http(10_000, 200)
    })?);
    samples.push(measure(&Load {
        handler: probe::Handler::Exec,
        ..http(110, 500)
    })?);
    report::print(&samples);
    Ok(())
}

/// Runs one load in a process of its own, whose CPU time and memory are only the prober's.
fn measure(load: &Load) -> Result<Sample> {
    eprintln!(
        "measuring {} {} probes at {} ms",
        load.count,
        load.handler.name(),
        load.period_ms
    );
    let output = Command::new(std::env::current_exe()?)
        .args(["probe", &serde_json::to_string(load)?])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "the prober failed: {}", output.status);
    serde_json::from_slice(&output.stdout).context("what the prober measured")
}

struct Servers {
    process: Child,
    port: u16,
}

impl Servers {
    fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut port = String::new();
        BufReader::new(process.stdout.take().context("a pipe")?).read_line(&mut port)?;
        Ok(Self {
            port: port.trim().parse()?,
            process,
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
