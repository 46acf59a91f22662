//! `pointsman down`: stops a cluster of this machine and removes what it left.

use crate::claim::{self, Claim, Known};
use crate::{leftovers, merged_kubeconfig};
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::time::Duration;

/// How long a cluster may take to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stops the cluster if it runs, and removes what is left of it; its data stays.
pub async fn run(name: &str) -> anyhow::Result<()> {
    let known = claim::look_up(name)?;
    if let Known::Running(record) = &known {
        let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("the cluster {name:?} is just starting; try again"))?;
        stop(name, pid)?;
    }
    // A cluster that stopped by itself has cleaned up; one that was killed, or died before, has not.
    let claim = Claim::take(name)?;
    merged_kubeconfig::forget(&claim.earlier.clone().unwrap_or_default())?;
    let removed = if rustix::process::geteuid().is_root() {
        let earlier = claim.earlier.clone().unwrap_or_default();
        leftovers::remove(name, &earlier).await
    } else {
        leftovers::Removed::default()
    };
    if !removed.remaining.is_empty() {
        // The record stays for the next try.
        bail!("removed {removed}");
    }
    claim.release()?;
    let mut out = std::io::stdout();
    match known {
        Known::Running(record) => writeln!(out, "stopped; data stays in {}", record.data_dir.display())?,
        Known::Dead(_) => writeln!(out, "it did not run any more; removed {removed}")?,
        Known::Unknown if removed.is_nothing() => writeln!(out, "no cluster named {name:?} runs here")?,
        Known::Unknown => writeln!(out, "removed {removed}")?,
    }
    Ok(())
}

fn stop(name: &str, pid: Pid) -> anyhow::Result<()> {
    let signal = |signal| {
        kill_process(pid, signal).with_context(|| format!("signalling process {}", pid.as_raw_nonzero()))
    };
    signal(Signal::TERM)?;
    if claim::wait_until_stopped(name, PATIENCE)? {
        return Ok(());
    }
    tracing::warn!(
        pid = pid.as_raw_nonzero().get(),
        "the cluster does not stop; killing it"
    );
    signal(Signal::KILL)?;
    if !claim::wait_until_stopped(name, PATIENCE)? {
        bail!(
            "process {} does not end although it was killed",
            pid.as_raw_nonzero()
        );
    }
    Ok(())
}
