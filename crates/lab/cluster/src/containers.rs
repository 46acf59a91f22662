//! How does each node get a containerd, and how does everything of it go again?

use super::claim::{self, Known, NodeRecord, Record};
use super::nodes::root_dir;
use super::supervise::Spec;
use anyhow::{Context, bail};
use pointsman_fabric::Netns;
use pointsman_runtime::Runtime;
use pointsman_runtime::cri::private::Private;
use pointsman_runtime::cri::{Config, CriRuntime};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a containerd may take until it serves.
const PATIENCE: Duration = Duration::from_secs(30);
/// Sockets' paths have no room for more (`sun_path`, less what containerd adds).
const LONGEST: usize = 80;

/// What runs the pods of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuntimeKind {
    /// The agents themselves, as processes.
    #[default]
    Processes,
    /// A containerd for each node.
    Containerd,
}

fn directory(data_dir: &Path, node: &str) -> PathBuf {
    root_dir(data_dir, node).join("containerd")
}

/// Writes the files of a node's containerd.
pub fn prepare(root: &Path) -> anyhow::Result<Private> {
    let directory = root.join("containerd");
    let length = directory.as_os_str().len();
    if length > LONGEST {
        bail!(
            "{} is too long for a socket of containerd: choose a shorter --data-dir",
            directory.display()
        );
    }
    Private::prepare(&directory)
        .with_context(|| format!("writing the configuration below {}", directory.display()))
}

/// Keeps it running in the node's network.
pub fn keep(node: &str, namespace: &Netns, files: &Private, log: PathBuf) -> Spec {
    let (namespace, arguments) = (namespace.clone(), files.arguments());
    Spec {
        label: format!("{node} containerd"),
        command: Box::new(move || {
            let mut command = namespace.command("containerd");
            command.args(&arguments);
            command
        }),
        log,
    }
}

/// Waits until it serves and has the image without which no pod is made.
pub async fn wait(files: Private) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let asked = files.clone();
        match tokio::task::spawn_blocking(move || asked.load_pause()).await? {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(error).context("running ctr, which comes with containerd");
            }
            Err(error) if started.elapsed() > PATIENCE => {
                return Err(error).context("waiting for containerd");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Removes the pods that a node's containerd has, if it has one; returns how many.
pub async fn remove_pods(record: &Record, node: &NodeRecord) -> anyhow::Result<usize> {
    let directory = directory(&record.data_dir, &node.name);
    // Without a namespace there was no node since this machine started.
    let Ok(namespace) = Netns::named(&node.namespace) else {
        return Ok(0);
    };
    if !directory.join("config.toml").exists() {
        return Ok(0);
    }
    let files = Private::of(&directory);
    // That of the cluster has ended, or dies before it is needed.
    let mut command = namespace.command("containerd");
    command
        .args(files.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _own = Own(command.spawn().context("starting containerd")?);
    wait(files.clone()).await?;
    let runtime = CriRuntime::open(Config::new(
        root_dir(&record.data_dir, &node.name),
        files.endpoint(),
    ))
    .await?;
    let pods = runtime.list().await?;
    for pod in &pods {
        runtime.remove_pod(&pod.pod).await?;
    }
    Ok(pods.len())
}

/// A child that ends with this.
struct Own(Child);

impl Drop for Own {
    fn drop(&mut self) {
        // It has ended if it cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `pointsman image load`: adds an image from an archive to all nodes of a cluster.
pub fn load(name: &str, archive: &Path) -> anyhow::Result<()> {
    let Known::Running(record) = claim::look_up(name)? else {
        bail!("no cluster named {name:?} runs here; `pointsman up --runtime containerd` starts one");
    };
    if !archive.is_file() {
        bail!("{} is no file", archive.display());
    }
    if !record.containerd {
        bail!(
            "the nodes of {name:?} run processes, not images; start it with `pointsman up --runtime containerd`"
        );
    }
    let mut out = std::io::stdout();
    for node in &record.nodes {
        load_on(&record, node, archive)?;
        writeln!(out, "{}: loaded {}", node.name, archive.display())?;
    }
    Ok(())
}

/// Adds an image from an archive to a node.
pub fn load_on(record: &Record, node: &NodeRecord, archive: &Path) -> anyhow::Result<()> {
    let loaded = Private::of(&directory(&record.data_dir, &node.name)).load(archive);
    loaded.with_context(|| format!("loading {} on {}", archive.display(), node.name))
}
