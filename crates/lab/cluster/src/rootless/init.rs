//! What does the first process of a cluster's namespaces do?
//!
//! It makes the place in which `up` finds what it expects, starts it, and reaps what nobody else waits for.

use super::exit_code;
use super::tree::{plant, telling};
use anyhow::{Context, bail};
use pointsman_fabric::Netns;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// What the process outside passes on.
pub struct InitConfig {
    /// Where records of clusters are kept outside.
    pub run_dir: PathBuf,
    /// The listener for the API server.
    pub server_fd: i32,
    /// The listener for the page.
    pub page_fd: i32,
    /// What to run.
    pub command: Vec<OsString>,
}

/// Sets the namespaces up and runs the command in them. Only a process with a single thread can.
pub fn init(config: &InitConfig) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the process outside")?;
    // This is still the tree of processes outside, so that it has our number there.
    let own = std::fs::read_link("/proc/self").context("reading our own number")?;
    let own = own.display().to_string();
    // Its path is that in the old tree, which the new one has too.
    let program = std::env::current_exe().context("finding our own program")?;
    furnish(&config.run_dir)?;
    let inside = format!("--inside={own},{},{}", config.server_fd, config.page_fd);
    let child = Command::new(program).args(&config.command).arg(inside).spawn();
    let child = child.context("starting the cluster")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    tend(pid.context("the cluster's process has no number")?)
}

/// Makes a network and the file tree that root expects.
fn furnish(run_dir: &Path) -> anyhow::Result<()> {
    let spaces = UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    unshare(spaces).map_err(|error| telling("making namespaces", error))?;
    plant(run_dir)?;
    Netns::current()?.network()?.set_up("lo")?;
    Ok(())
}

#[expect(
    unsafe_code,
    reason = "unshare(2) may pull shared state from under a running program"
)]
fn unshare(spaces: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: none of the flags takes memory or descriptors away, and there is a single thread.
    unsafe { unshare_unsafe(spaces) }
}

/// Reaps everybody until the cluster has ended; the kernel ends whoever is left then.
fn tend(cluster: Pid) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut ended = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            if let Some(status) = reap(cluster)? {
                return Ok(exit_code(status));
            }
            tokio::select! {
                _ = ended.recv() => continue,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            // It may have ended meanwhile, which the next look shows.
            let _ = kill_process(cluster, Signal::TERM);
        }
    })
}

/// Waits for all who have ended; says how the cluster did if it is among them.
fn reap(cluster: Pid) -> anyhow::Result<Option<ExitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == cluster => {
                return Ok(Some(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => bail!("waiting for the cluster: {error}"),
        }
    }
}
