//! How is each fault made, and undone?

use super::cluster::Cluster;
use super::schedule::{Fault, Planned, Process};
use anyhow::{Context, bail};
use pointsman_fabric::Netns;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::process::Stdio;

/// What undoes a fault.
enum Undo {
    Nothing,
    Continue(Vec<Pid>),
    Connect(u8),
    CalmLink(u8),
    MakeRoom,
}

/// Makes the fault, waits as long as it lasts, and undoes it.
pub async fn suffer(cluster: &Cluster, proxy_mode: &str, planned: Planned) -> anyhow::Result<()> {
    let undo = begin(cluster, proxy_mode, planned.fault)
        .await
        .with_context(|| format!("making the fault: {planned}"))?;
    tokio::time::sleep(planned.lasts).await;
    end(cluster, undo).with_context(|| format!("undoing the fault: {planned}"))
}

async fn begin(cluster: &Cluster, proxy_mode: &str, fault: Fault) -> anyhow::Result<Undo> {
    match fault {
        Fault::Kill(process) => {
            signal(&find(cluster, &[process]).await?, Signal::KILL)?;
            Ok(Undo::Nothing)
        }
        Fault::Freeze(process) => freeze(cluster, &[process]).await,
        Fault::StopClock(node) => freeze(cluster, &[Process::Agent(node), Process::Proxy(node)]).await,
        Fault::CutLink(node) => {
            set_link(cluster, node, false)?;
            Ok(Undo::Connect(node))
        }
        Fault::LossyLink(node, percent) => {
            in_namespace(&fabric(cluster), "nft", &["-f", "-"], &lossy(node, percent))?;
            Ok(Undo::CalmLink(node))
        }
        Fault::FillDisk => {
            cluster.home.fill()?;
            Ok(Undo::MakeRoom)
        }
        Fault::FlushRules(node) => {
            flush(cluster, node, all_rules(proxy_mode))?;
            Ok(Undo::Nothing)
        }
        Fault::FlushChain(node) => {
            flush(cluster, node, one_chain(proxy_mode))?;
            Ok(Undo::Nothing)
        }
        Fault::Crash => {
            cluster.crash().await?;
            Ok(Undo::Nothing)
        }
    }
}

fn end(cluster: &Cluster, undo: Undo) -> anyhow::Result<()> {
    match undo {
        Undo::Nothing => Ok(()),
        // It may have been killed meanwhile.
        Undo::Continue(pids) => signal(&pids, Signal::CONT),
        Undo::Connect(node) => set_link(cluster, node, true),
        Undo::CalmLink(node) => {
            let text = format!("delete table netdev lossy-n{node}\n");
            in_namespace(&fabric(cluster), "nft", &["-f", "-"], &text)
        }
        Undo::MakeRoom => cluster.home.empty(),
    }
}

async fn freeze(cluster: &Cluster, processes: &[Process]) -> anyhow::Result<Undo> {
    let pids = find(cluster, processes).await?;
    signal(&pids, Signal::STOP)?;
    Ok(Undo::Continue(pids))
}

/// One that was killed just now comes back within moments.
async fn find(cluster: &Cluster, processes: &[Process]) -> anyhow::Result<Vec<Pid>> {
    let mut missing = String::new();
    for _ in 0..100 {
        let running = cluster.processes().await?;
        let found: Option<Vec<Pid>> = processes
            .iter()
            .map(|process| running.get(process).copied())
            .collect();
        if let Some(found) = found {
            return Ok(found);
        }
        missing = format!("{running:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    bail!("not all of {processes:?} run, only {missing}")
}

fn signal(pids: &[Pid], signal: Signal) -> anyhow::Result<()> {
    for pid in pids {
        match kill_process(*pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).context("signalling a process"),
        }
    }
    Ok(())
}

fn fabric(cluster: &Cluster) -> String {
    format!("{}-fabric", cluster.record.name)
}

fn set_link(cluster: &Cluster, node: u8, connected: bool) -> anyhow::Result<()> {
    let mut switch = Netns::named(&fabric(cluster))?.network()?;
    let port = format!("n{node}");
    if connected {
        switch.set_up(&port)?;
    } else {
        switch.set_down(&port)?;
    }
    Ok(())
}

/// Drops packets at the switch's port, where no proxy looks.
fn lossy(node: u8, percent: u8) -> String {
    let chain = |hook: &str| {
        format!(
            "chain {hook}-n{node} {{ type filter hook {hook} device \"n{node}\" priority 0;\n\
             numgen random mod 100 < {percent} drop; }}\n"
        )
    };
    format!(
        "table netdev lossy-n{node} {{\n{}{}}}\n",
        chain("ingress"),
        chain("egress")
    )
}

type CommandLine = &'static [&'static str];

fn all_rules(proxy_mode: &str) -> &'static [CommandLine] {
    match proxy_mode {
        "iptables" => &[
            &["iptables", "-t", "nat", "-F"],
            &["iptables", "-t", "filter", "-F"],
            &["iptables", "-t", "mangle", "-F"],
        ],
        _ => &[&["nft", "flush", "ruleset"]],
    }
}

fn one_chain(proxy_mode: &str) -> &'static [CommandLine] {
    match proxy_mode {
        "iptables" => &[&["iptables", "-t", "nat", "-F", "KUBE-SERVICES"]],
        _ => &[&["nft", "flush", "chain", "ip", "pointsman", "services"]],
    }
}

fn flush(cluster: &Cluster, node: u8, commands: &[CommandLine]) -> anyhow::Result<()> {
    let namespace = format!("{}-n{node}", cluster.record.name);
    for command in commands {
        in_namespace(&namespace, command[0], &command[1..], "")?;
    }
    Ok(())
}

/// Runs a program in a network namespace.
pub fn in_namespace(namespace: &str, program: &str, arguments: &[&str], input: &str) -> anyhow::Result<()> {
    let mut command = Netns::named(namespace)?.command(program);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().with_context(|| format!("running {program}"))?;
    if let Some(mut stdin) = process.stdin.take() {
        // A program that reads nothing may have ended; its status says how.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = process.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
