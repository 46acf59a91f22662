//! How are containers run by a container runtime, such as containerd?
//!
//! The runtime behind the socket owns sandboxes, containers, images and the pods' network; what is ours are the files
//! that containers mount and their logs, below the root directory and as with processes. Pods are found again by
//! labels, so that they outlive this process. Nothing is written down that the runtime knows itself.

#[doc(hidden)]
pub mod answers;
pub mod archive;
mod client;
mod config;
mod container;
mod follow;
mod image;
mod messages;
mod mounts;
mod pod;
pub mod private;
mod stats;
mod streams;

use crate::process::layout::Layout;
use crate::process::network::system;
use crate::process::table::Table;
use crate::process::{blocking, pod as files};
use crate::{
    AddressRange, Attachable, ContainerId, ContainerSpec, ContainerState, DiskUse, Events, ExecOutcome,
    ExecRequest, Exit, FileSet, Pending, PodState, PodUid, PodUsage, Runtime, RuntimeError, Sandbox,
    SandboxSpec, Session, SessionRequest, Signal, VolumeName,
};
use client::{Client, failed};
use messages::{VersionRequest, VersionResponse};
use parking_lot::Mutex;
use pointsman_fabric::Netns;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

/// How a [`CriRuntime`] is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where volumes, logs and the files of the pods' `/etc` are kept. One runtime at a time uses it.
    pub root_dir: PathBuf,
    /// The runtime's socket, `unix:///path`. It has to see the same files as this process.
    pub endpoint: String,
    /// The network that the runtime serves streams in; that of the calling thread if not set.
    pub node_netns: Option<Netns>,
    /// How large a log file grows before it is renamed; the kubelet's default is 10 MiB.
    pub log_limit: u64,
}

impl Config {
    /// The usual settings.
    pub fn new(root_dir: impl Into<PathBuf>, endpoint: impl Into<String>) -> Self {
        Self {
            root_dir: root_dir.into(),
            endpoint: endpoint.into(),
            node_netns: None,
            log_limit: 10 << 20,
        }
    }
}

/// Has a container runtime run containers.
#[derive(Clone)]
pub struct CriRuntime {
    inner: Arc<Inner>,
    version: String,
}

struct Inner {
    client: Client,
    node: Netns,
    layout: Layout,
    log_limit: u64,
    table: Table,
    names: Mutex<Names>,
    /// The pods' addresses, for runtimes that give them out by this.
    ranges: watch::Sender<String>,
    trouble: watch::Sender<Option<String>>,
    /// A container may have ended.
    stirred: Notify,
    /// A sandbox may have.
    sandbox_stirred: AtomicBool,
    /// Closed when the runtime is dropped.
    open: watch::Sender<()>,
}

/// How the runtime calls what is ours.
#[derive(Default)]
struct Names {
    sandboxes: BTreeMap<PodUid, String>,
    containers: BTreeMap<ContainerId, String>,
}

impl CriRuntime {
    /// Connects to the runtime and follows what it runs for this root directory. Needs root, and a tokio runtime to
    /// follow the containers in.
    pub async fn open(config: Config) -> Result<Self, RuntimeError> {
        let client = Client::new(&config.endpoint)?;
        let version: VersionResponse =
            client
                .runtime("Version", VersionRequest {})
                .await
                .map_err(|status| {
                    failed(
                        format!("reach the container runtime at {}", config.endpoint),
                        &status,
                    )
                })?;
        let layout = Layout::create(&config.root_dir)
            .map_err(|error| RuntimeError::system("make the root directory", error))?;
        let node = match config.node_netns {
            Some(netns) => netns,
            None => Netns::current().map_err(system)?,
        };
        let inner = Arc::new(Inner {
            client,
            node,
            layout,
            log_limit: config.log_limit,
            table: Table::default(),
            names: Mutex::default(),
            ranges: watch::Sender::new(String::new()),
            trouble: watch::Sender::new(None),
            stirred: Notify::new(),
            sandbox_stirred: AtomicBool::new(false),
            open: watch::Sender::new(()),
        });
        inner.find().await?;
        let asked = inner.check(&mut String::new()).await;
        asked.map_err(|status| failed("ask the container runtime how it is", &status))?;
        follow::start(&inner);
        Ok(Self {
            inner,
            version: format!("{}://{}", version.runtime_name, version.runtime_version),
        })
    }

    /// Which runtime it is, as a Node says it.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Inner {
    fn sandbox_name(&self, pod: &PodUid) -> Result<String, RuntimeError> {
        let names = self.names.lock();
        let name = names.sandboxes.get(pod).cloned();
        name.ok_or_else(|| RuntimeError::NoSuchPod(pod.clone()))
    }

    fn container_name(&self, id: &ContainerId) -> Result<String, RuntimeError> {
        let names = self.names.lock();
        let name = names.containers.get(id).cloned();
        name.ok_or_else(|| RuntimeError::NoSuchContainer(id.clone()))
    }
}

impl Runtime for CriRuntime {
    fn set_pod_ranges(&self, ranges: &[AddressRange]) {
        let ranges: Vec<String> = ranges.iter().map(AddressRange::to_string).collect();
        self.inner.ranges.send_replace(ranges.join(","));
    }

    fn open_sandbox(&self, spec: SandboxSpec) -> Pending<'_, Sandbox> {
        Box::pin(self.inner.open_sandbox(spec))
    }

    fn update_files(&self, pod: &PodUid, volume: &VolumeName, files: FileSet) -> Pending<'_, ()> {
        let (inner, pod, volume) = (self.inner.clone(), pod.clone(), volume.clone());
        Box::pin(blocking(move || {
            files::update_files(&inner.layout, &pod, &volume, &files)
        }))
    }

    fn start(&self, spec: ContainerSpec) -> Pending<'_, ContainerState> {
        Box::pin(self.inner.start(spec))
    }

    fn signal(&self, container: &ContainerId, signal: Signal) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move { self.inner.signal(&container, signal).await })
    }

    fn stop(&self, container: &ContainerId, signal: Signal, grace: Duration) -> Pending<'_, Exit> {
        let container = container.clone();
        Box::pin(async move { self.inner.stop(&container, signal, grace).await })
    }

    fn exec(&self, container: &ContainerId, request: ExecRequest) -> Pending<'_, ExecOutcome> {
        let container = container.clone();
        Box::pin(async move { self.inner.exec(&container, request).await })
    }

    fn open(&self, container: &ContainerId, request: SessionRequest) -> Pending<'_, Session> {
        let container = container.clone();
        Box::pin(async move { self.inner.open_in(&container, request).await })
    }

    fn attach(&self, container: &ContainerId, wants: Attachable) -> Pending<'_, Session> {
        let container = container.clone();
        Box::pin(async move { self.inner.attach_to(&container, wants).await })
    }

    fn connect(&self, pod: &PodUid, port: u16) -> Pending<'_, TcpStream> {
        let pod = pod.clone();
        Box::pin(async move { self.inner.connect_in(&pod, port).await })
    }

    fn remove_container(&self, container: &ContainerId) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move { self.inner.remove_container(&container).await })
    }

    fn remove_pod(&self, pod: &PodUid) -> Pending<'_, ()> {
        let pod = pod.clone();
        Box::pin(async move { self.inner.remove_pod(&pod).await })
    }

    fn list(&self) -> Pending<'_, Vec<PodState>> {
        Box::pin(self.inner.list())
    }

    fn disk_use(&self, pod: &PodUid) -> Pending<'_, DiskUse> {
        let pod = pod.clone();
        Box::pin(async move { self.inner.disk_use(&pod).await })
    }

    fn usage(&self) -> Pending<'_, Vec<PodUsage>> {
        Box::pin(self.inner.usage())
    }

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.inner.trouble.subscribe()
    }

    fn subscribe(&self) -> Events {
        self.inner.table.subscribe()
    }
}
