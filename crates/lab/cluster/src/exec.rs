//! `pointsman exec`: a command in the network of a node, or inside a pod.

use crate::claim::{self, Known, Record};
use crate::rootless;
use anyhow::{Context, bail};
use pointsman_api_client::{Resource, Source, connect};
use pointsman_fabric::Netns;
use pointsman_objects::Pod;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Runs a command in a node, or in a pod as `POD` or `NAMESPACE/POD`, of the cluster of this name, and returns its
/// exit code.
pub async fn run(name: &str, target: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Known::Running(record) = claim::look_up(name)? else {
        bail!("no cluster named {name:?} runs here; `pointsman up` starts one");
    };
    if let Some(pid) = record.elsewhere() {
        let same = std::env::args_os().skip(1);
        return Ok(rootless::exit_code(rootless::inside(pid, same)?.status()?));
    }
    let (program, arguments) = command.split_first().context("a command is missing")?;
    let node = record.nodes.iter().find(|node| node.name == target);
    let mut command = match node {
        Some(node) => Netns::named(&node.namespace)?.command(program),
        None => in_pod(&record, target, program).await?,
    };
    command.args(arguments);
    let status = command
        .status()
        .with_context(|| format!("running {} in {}", program.display(), target))?;
    Ok(rootless::exit_code(status))
}

async fn in_pod(record: &Record, target: &str, program: &OsStr) -> anyhow::Result<Command> {
    let (namespace, pod) = target.split_once('/').unwrap_or(("default", target));
    let client = connect::connect(&Source::Kubeconfig(record.kubeconfig.clone()), "pointsman-exec").await?;
    let found: Pod = client
        .api(Resource::PODS, Some(namespace))
        .get(pod)
        .await
        .with_context(|| format!("{target} is no node, and looking for a pod"))?;
    let prefix = format!("pod-{}-", found.metadata.uid);
    let name = Netns::names()?.into_iter().find(|name| name.starts_with(&prefix));
    let name = name.with_context(|| format!("pod {target} has no network on this machine (yet)"))?;
    let pid = program_of(&Netns::named(&name)?)?.with_context(|| format!("nothing runs in pod {target}"))?;
    enter_all(pid, program)
}

/// The first process of the pod that is not one of ours.
fn program_of(pod: &Netns) -> anyhow::Result<Option<Pid>> {
    let is_shim = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"shim")
    };
    let pids = Netns::processes(std::slice::from_ref(pod))?;
    let found = pids.into_iter().find(|pid| !is_shim(*pid));
    Ok(found.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)))
}

/// A command in the network, file tree and host name of a process.
#[expect(unsafe_code, reason = "a closure between fork and exec must be safe there")]
fn enter_all(pid: Pid, program: &OsStr) -> anyhow::Result<Command> {
    let process = pidfd_open(pid, PidfdFlags::empty()).context("opening the pod's process")?;
    let mut command = Command::new(program);
    let spaces = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    // SAFETY: the closure makes one system call and allocates nothing; the child has a single thread, as
    // entering a mount namespace requires.
    unsafe {
        command.pre_exec(move || Ok(move_into_thread_name_spaces(process.as_fd(), spaces)?));
    }
    // The directory of the caller need not exist there, and the child changes to it before it enters.
    command.current_dir("/");
    Ok(command)
}
