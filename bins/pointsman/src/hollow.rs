//! `pointsman hollow`.

use crate::duration;
use crate::shutdown::stop_signal;
use anyhow::bail;
use clap::Args;
use pointsman_api_client::Source;
use pointsman_hollow::nodes::{self, Nodes};
use pointsman_hollow::{Config, name, run as run_hollow};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Programmers where nobody says how many.
const PROGRAMMERS: usize = 100;

/// How many programmers and nodes, and how quick they are.
#[derive(Args)]
pub struct Flags {
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// How many programmers; they share one watch of each kind. With --nodes there are none unless this says so.
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
    /// How many nodes: they send heartbeats, and report the pods that are bound to them as running and ready, which run nowhere.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub nodes: usize,
    /// Where they are served: programmer N below /p/hollow-N/, all together on /watermarks.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:10280")]
    pub listen: SocketAddr,
    /// Where to write their names and URLs, for `pointsman sli --programmers-file`.
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// The shortest pause that stands for a write to the kernel.
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = duration::parse)]
    pub shortest_commit: Duration,
    /// The longest such pause, below a second.
    #[arg(long, value_name = "DURATION", default_value = "15ms", value_parser = duration::parse)]
    pub longest_commit: Duration,
}

/// Runs them until a signal stops them.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    if flags.longest_commit >= Duration::from_secs(1) || flags.shortest_commit > flags.longest_commit {
        bail!("commits take from --shortest-commit to --longest-commit, which is less than a second");
    }
    let Some(nodes) = Nodes::try_new(flags.nodes) else {
        bail!("{} nodes are more than there are addresses for", flags.nodes);
    };
    tokio::select! {
        outcome = programmers(&flags) => outcome?,
        outcome = hollow_nodes(&flags, nodes) => outcome?,
        signal = stop_signal() => signal?,
    }
    Ok(())
}

async fn hollow_nodes(flags: &Flags, nodes: Nodes) -> anyhow::Result<()> {
    if nodes.count() == 0 {
        return std::future::pending().await;
    }
    let registered = || tracing::info!(count = nodes.count(), "hollow nodes are registered");
    Ok(nodes::run(&Source::from_flag(flags.kubeconfig.clone()), nodes, registered).await?)
}

async fn programmers(flags: &Flags) -> anyhow::Result<()> {
    let count = flags
        .count
        .unwrap_or(if flags.nodes == 0 { PROGRAMMERS } else { 0 });
    if count == 0 {
        return std::future::pending().await;
    }
    let config = Config {
        source: Source::from_flag(flags.kubeconfig.clone()),
        listen: flags.listen,
        count,
        pause: (flags.shortest_commit, flags.longest_commit),
    };
    let running = run_hollow(config, |address| {
        tracing::info!(%address, count, "serving hollow programmers");
        let Some(path) = &flags.list else { return Ok(()) };
        let mut text = String::new();
        for number in 0..count {
            let name = name(number);
            let _ = writeln!(text, "{name}=http://{address}/p/{name}");
        }
        // Whoever waits for the file finds it whole.
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    });
    Ok(running.await?)
}
