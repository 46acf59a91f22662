//! How does a cluster with nodes run without root?
//!
//! ```text
//!  user       pointsman up                       binds the ports that the user reaches, waits
//!  --------------------------------------------  a user, process, mount and network namespace of its own
//!  init       pointsman rootless-init            process 1: reaps, passes signals on
//!    |
//!  up         pointsman up --inside              root in here; goes on as usual
//! ```
//!
//! The one user that exists inside is the user outside, called root. Process 1 dies with the process outside,
//! and the kernel ends everything else with process 1, so that nothing can be left behind.
//! Sockets belong to the network in which they were made: those that the outer process binds are inherited,
//! and the inner one connects them to the cluster.

mod advice;
mod init;
mod relay;
mod tree;

pub use init::{InitConfig, init};
pub use relay::{Doors, relay};

use super::claim;
use crate::up::{Config, absolute};
use anyhow::{Context, bail};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, kill_process, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};

/// The page's usual port.
const PAGE_PORT: u16 = 10270;

/// Whether a cluster with these config has to live in a user namespace.
pub fn is_needed(config: &Config) -> bool {
    config.nodes > 0 && !geteuid().is_root()
}

/// Runs the cluster in namespaces of its own until it ends. Only a process with a single thread can.
pub fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let run_dir = claim::run_dir();
    std::fs::create_dir_all(&run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    check_data_dir(config)?;
    let server = bind(config.listen, 6443)?;
    let page = bind(None, PAGE_PORT)?;
    become_root()?;
    let mut arguments: Vec<OsString> =
        vec!["rootless-init".into(), "--run-dir".into(), run_dir.clone().into()];
    for (name, listener) in [("--server-fd", &server), ("--page-fd", &page)] {
        fcntl_setfd(listener, FdFlags::empty()).context("letting a listener be inherited")?;
        arguments.push(format!("{name}={}", listener.as_raw_fd()).into());
    }
    arguments.push("--".into());
    arguments.extend(std::env::args_os().skip(1));
    let program = std::env::current_exe().context("finding our own program")?;
    let child = Command::new(program).args(arguments).spawn();
    let child = child.context("starting the first process of the namespace")?;
    drop((server, page));
    let status = wait(child)?;
    // Goes with the last cluster; while others run it is not empty.
    let _ = std::fs::remove_dir(run_dir);
    Ok(exit_code(status))
}

/// Runs another command of ours where the cluster lives. Only a process with a single thread can.
pub fn run_inside(pid: u32, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.context("no such process")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context("looking for the cluster's first process")?;
    let spaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::PROCESS_ID;
    let program = std::env::current_exe().context("finding our own program")?;
    let place = std::env::current_dir();
    move_into_thread_name_spaces(process.as_fd(), spaces).context("entering the cluster's namespaces")?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Ok(place) = place {
        // A mount namespace is entered at its root.
        command.current_dir(place);
    }
    let status = command.status().context("running in the cluster's namespaces")?;
    Ok(exit_code(status))
}

/// The command that runs `arguments` of ours where a cluster without root lives.
pub fn inside(pid: u32, arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding our own program")?);
    command.args(["inside", &pid.to_string(), "--"]).args(arguments);
    Ok(command)
}

/// The exit code for how a command ended.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// These are others inside than outside.
fn check_data_dir(config: &Config) -> anyhow::Result<()> {
    let dir = absolute(&config.data_dir);
    if dir.starts_with("/run") || dir.starts_with("/proc") {
        bail!(
            "without root, data cannot be in {}: choose another --data-dir",
            dir.display()
        );
    }
    Ok(())
}

/// Binds what was asked for, or the usual port of the loopback address, or any other.
fn bind(wanted: Option<SocketAddr>, usual: u16) -> anyhow::Result<TcpListener> {
    if let Some(wanted) = wanted {
        if !wanted.ip().is_loopback() {
            bail!("without root, the API server can listen on loopback addresses only, not on {wanted}");
        }
        return TcpListener::bind(wanted).with_context(|| format!("listening on {wanted}"));
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, usual))
        .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .context("listening on the loopback address")
}

/// Moves this process into a new user namespace in which it is root; children begin a process namespace.
#[expect(
    unsafe_code,
    reason = "unshare(2) may pull shared state from under a running program"
)]
fn become_root() -> anyhow::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: neither flag takes memory or descriptors away, and there is a single thread.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWPID) };
    if let Err(error) = unshared {
        bail!(advice::refused(error, &advice::Settings::read()));
    }
    // One user and one group need no helper program; a group may be mapped once groups are fixed.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {user} 1")),
        ("gid_map", format!("0 {group} 1")),
    ] {
        let path = format!("/proc/self/{file}");
        std::fs::write(&path, text).with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

/// Waits for the first process and passes on what asks it to stop. Threads cannot be started any more.
fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.context("the first process has no number")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut ended = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            tokio::select! {
                _ = ended.recv() => continue,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            // It may have ended meanwhile, which the next look shows.
            let _ = kill_process(pid, Signal::TERM);
        }
    })
}
