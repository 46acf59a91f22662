//! `pointsman hollow`.

use crate::duration;
use crate::shutdown::stop_signal;
use anyhow::bail;
use clap::Args;
use pointsman_api_client::Source;
use pointsman_hollow::{Config, name, run as run_hollow};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How many programmers, and how quick they are.
#[derive(Args)]
pub struct Flags {
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// How many programmers; they share one watch of each kind.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: usize,
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
    let config = Config {
        source: Source::from_flag(flags.kubeconfig),
        listen: flags.listen,
        count: flags.count,
        pause: (flags.shortest_commit, flags.longest_commit),
    };
    let running = run_hollow(config, move |address| {
        tracing::info!(%address, count = flags.count, "serving hollow programmers");
        let Some(path) = flags.list else { return Ok(()) };
        let mut text = String::new();
        for number in 0..flags.count {
            let name = name(number);
            let _ = writeln!(text, "{name}=http://{address}/p/{name}");
        }
        // Whoever waits for the file finds it whole.
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &path)
    });
    tokio::select! {
        outcome = running => outcome?,
        signal = stop_signal() => signal?,
    }
    Ok(())
}
