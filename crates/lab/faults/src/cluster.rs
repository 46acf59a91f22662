//! How is the cluster that is tried started, crashed, found and removed?

use super::schedule::{NODES, Process};
use anyhow::{Context, bail};
use pointsman_api_client::{Client, Source, connect};
use pointsman_cluster::claim::Record;
use pointsman_cluster::containers::RuntimeKind;
use pointsman_cluster::pod_program::PodProgram;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// How long a start or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is free on the disk that can be filled, in bytes.
const FREE: u64 = 96 << 20;

/// A disk of its own for everything that a cluster writes.
pub struct Home(PathBuf);

impl Home {
    /// Mounts an empty one.
    pub fn mount(name: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        let home = Self(path);
        run("mount", &["-t", "tmpfs", name], &home.0)?;
        Ok(home)
    }

    /// Leaves little room beside what is there, which is half of it more where that is images: a disk that is nearly
    /// full keeps pods away.
    pub fn limit(&self) -> anyhow::Result<()> {
        let found = rustix::fs::statvfs(&self.0)?;
        let used = (found.f_blocks - found.f_bfree) * found.f_frsize;
        let size = format!("remount,size={}", used + used / 2 + FREE);
        run("mount", &["-o", &size], &self.0)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the cluster's data is.
    pub fn data_dir(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Writes until nothing fits any more.
    pub fn fill(&self) -> anyhow::Result<()> {
        use std::io::Write;
        let mut file = File::create(self.0.join("filler"))?;
        let block = vec![0x5a; 64 << 10];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("filling the disk"),
            }
        }
    }

    /// Makes room again.
    pub fn empty(&self) -> anyhow::Result<()> {
        fs::remove_file(self.0.join("filler")).context("removing what fills the disk")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[], &self.0).and_then(|()| Ok(fs::remove_dir(&self.0)?)) {
            tracing::warn!(%error, "a temporary disk could not be removed");
        }
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> anyhow::Result<()> {
    let mut command = std::process::Command::new(program);
    let output = command
        .args(arguments)
        .arg(path)
        .output()
        .with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A running `pointsman up`.
pub struct Cluster {
    /// What it says about itself.
    pub record: Record,
    /// May do everything.
    pub client: Client,
    pub home: Home,
    /// The program that is tried.
    pub program: PathBuf,
    /// The same, as pods run it.
    pub served: PodProgram,
    runtime: RuntimeKind,
    proxy_mode: &'static str,
    process: Mutex<Child>,
}

impl Cluster {
    /// Starts one with a name of its own and returns when it is ready.
    pub async fn start(
        program: PathBuf,
        name: &str,
        proxy_mode: &'static str,
        runtime: RuntimeKind,
    ) -> anyhow::Result<Self> {
        let home = Home::mount(&format!("pointsman-{name}"))?;
        let (process, record) = up(&program, name, proxy_mode, runtime, &home).await?;
        let served = PodProgram::on(&record, &program)?;
        home.limit()?;
        let source = Source::Kubeconfig(record.kubeconfig.clone());
        Ok(Self {
            client: connect::connect(&source, "pointsman-faults").await?,
            record,
            home,
            program,
            served,
            runtime,
            proxy_mode,
            process: Mutex::new(process),
        })
    }

    /// Kills `up` itself and starts it again on what it left.
    pub async fn crash(&self) -> anyhow::Result<()> {
        let mut process = self.process.lock().await;
        process.kill().await.context("killing `up`")?;
        let name = &self.record.name;
        let (new, _) = up(&self.program, name, self.proxy_mode, self.runtime, &self.home).await?;
        *process = new;
        Ok(())
    }

    /// The processes of the cluster, as they are now.
    pub async fn processes(&self) -> anyhow::Result<BTreeMap<Process, Pid>> {
        let parent = self.process.lock().await.id().context("`up` has ended")?;
        children(parent)
    }

    /// How its proxies write rules.
    pub fn proxy_mode(&self) -> &'static str {
        self.proxy_mode
    }

    /// The addresses of all its pods, as `up` configures its proxies.
    pub fn pod_range(&self) -> String {
        let [a, b, ..] = self
            .record
            .nodes
            .first()
            .map_or([10, 0, 0, 0], |node| node.address.octets());
        format!("{a}.{}.0.0/16", b.saturating_add(2))
    }

    /// Whether `up` still runs.
    pub async fn is_running(&self) -> bool {
        matches!(self.process.lock().await.try_wait(), Ok(None))
    }

    /// Runs another command of ours on the cluster.
    pub async fn pointsman(&self, command: &str, arguments: &[&str]) -> anyhow::Result<std::process::Output> {
        let mut process = Command::new(&self.program);
        process
            .args([command, "--name", &self.record.name])
            .args(arguments);
        process.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, process.output()).await;
        output
            .with_context(|| format!("{command} hangs"))?
            .context("running ourselves")
    }

    /// Pods and the nodes' networks as they are, for people who wonder.
    pub async fn scene(&self) -> String {
        let pods = self.client.get_path::<Value>("/api/v1/pods").await;
        let mut text = String::new();
        for pod in super::objects::items(&pods.unwrap_or_default()) {
            let (status, node) = (&pod["status"], &pod["spec"]["nodeName"]);
            text += &format!("{} {node} {}\n", pod["metadata"]["name"], status["podIP"]);
        }
        let fabric = format!("{}-fabric", self.record.name);
        let nodes = self.record.nodes.iter().map(|node| node.namespace.clone());
        for namespace in nodes.chain([fabric]) {
            for what in ["neigh", "route", "link"] {
                let output = Command::new("ip")
                    .args(["-s", "-n", &namespace, what])
                    .output()
                    .await;
                let stdout = output.map(|output| output.stdout).unwrap_or_default();
                text += &format!("--- {namespace} {what}\n{}", String::from_utf8_lossy(&stdout));
            }
        }
        text
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let mut process = self.process.lock().await;
        if let Some(pid) = process.id().and_then(to_pid) {
            kill_process(pid, Signal::TERM).context("asking `up` to stop")?;
        }
        let ended = tokio::time::timeout(PATIENCE, process.wait()).await;
        let status = ended.context("`up` does not stop")?.context("waiting for `up`")?;
        if !status.success() {
            bail!("`up` ended with {status}");
        }
        Ok(())
    }
}

async fn up(
    program: &Path,
    name: &str,
    mode: &str,
    runtime: RuntimeKind,
    home: &Home,
) -> anyhow::Result<(Child, Record)> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(home.path().join("up.log"))?;
    let mut command = Command::new(program);
    command.args([
        "up",
        "--apart",
        "--output=json",
        "--name",
        name,
        "--proxy-mode",
        mode,
    ]);
    command.arg(format!("--nodes={NODES}"));
    if runtime == RuntimeKind::Containerd {
        command.arg("--runtime=containerd");
    }
    command.arg("--data-dir").arg(home.data_dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut process = command.kill_on_drop(true).spawn().context("starting `up`")?;
    let lines = process.stdout.take().context("`up` has an output")?;
    let ready = async {
        let mut lines = BufReader::new(lines).lines();
        let mut said = Vec::new();
        while let Some(line) = lines.next_line().await? {
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if value["seconds"].is_number() {
                return Ok(serde_json::from_value::<Record>(value)?);
            }
            said.push(line);
        }
        bail!("`up` ended before it was ready: {said:#?}")
    };
    let record = tokio::time::timeout(PATIENCE, ready).await;
    Ok((process, record.context("`up` does not get ready")??))
}

fn children(parent: u32) -> anyhow::Result<BTreeMap<Process, Pid>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that has just ended cannot be read.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if parent_in(&stat) != Some(parent) {
            continue;
        }
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<String> = command
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        if let (Some(process), Some(pid)) = (process_of(&arguments), to_pid(pid)) {
            found.insert(process, pid);
        }
    }
    Ok(found)
}

/// The parent in a line of `/proc/PID/stat`, whose second field may hold anything in parentheses.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn process_of(arguments: &[String]) -> Option<Process> {
    let number = |flag: &str| {
        let value = arguments
            .iter()
            .find_map(|argument| argument.strip_prefix(flag))?;
        value.strip_prefix('n')?.parse().ok()
    };
    if arguments.first()? == "containerd" {
        let path = arguments
            .iter()
            .find(|argument| argument.ends_with("/containerd/config.toml"))?;
        let node = path.rsplit('/').nth(2)?.strip_prefix('n')?;
        return node.parse().ok().map(Process::Containerd);
    }
    match arguments.get(1)?.as_str() {
        "apiserver" => Some(Process::ApiServer),
        "controllers" => Some(Process::Controllers),
        "sli" => Some(Process::Collector),
        "node" => number("--node-name=").map(Process::Agent),
        "proxy" => number("--hostname-override=").map(Process::Proxy),
        _ => None,
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_arguments() {
        let of = |line: &str| process_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("/p node --node-name=n2 --x"), Some(Process::Agent(2)));
        assert_eq!(of("/p proxy --hostname-override=n3"), Some(Process::Proxy(3)));
        assert_eq!(of("/p sli"), Some(Process::Collector));
        let containerd = "containerd --config /d/nodes/n2/containerd/config.toml";
        assert_eq!(of(containerd), Some(Process::Containerd(2)));
        assert_eq!(of("/p load"), None);
        assert_eq!(of("/p"), None);
    }

    #[test]
    fn a_strange_name_does_not_hide_the_parent() {
        assert_eq!(parent_in("12 (a) b) S 34 12 12"), Some(34));
        assert_eq!(parent_in(""), None);
    }
}
