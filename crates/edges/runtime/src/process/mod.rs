//! How are containers run as processes of this host?
//!
//! A pod has a network namespace and a cgroup; a container is a process below its [shim](crate::shim), in a
//! mount and UTS namespace of its own. All state is on disk and in the kernel: opening a runtime on a root
//! directory finds what an earlier one left there, kills nothing that runs, and removes what a crash left
//! half made.

mod abilities;
pub mod addresses;
mod cgroups;
mod container;
mod control;
pub(crate) mod disk;
pub(crate) mod launch;
pub(crate) mod layout;
pub(crate) mod network;
pub(crate) mod pod;
pub(crate) mod record;
pub(crate) mod session;
mod shares;
pub(crate) mod table;
mod usage;
pub(crate) mod volume;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pointsman_fabric::Netns;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::shim::protocol::Root;
use crate::{
    AddressRange, Attachable, ContainerId, ContainerSpec, ContainerState, DiskUse, Events, ExecOutcome,
    ExecRequest, Exit, FileSet, Pending, PodState, PodUid, PodUsage, Runtime, RuntimeError, Sandbox,
    SandboxSpec, Session, SessionRequest, Signal, VolumeName,
};
pub use abilities::Abilities;
use addresses::Addresses;
use cgroups::Cgroups;
use launch::Defaults;
use layout::Layout;
use shares::Shares;
use table::Table;

/// How a [`ProcessRuntime`] is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where everything is kept. One runtime at a time uses it.
    pub root_dir: PathBuf,
    /// The program that is started as `PROGRAM ARGUMENTS DIRECTORY` for each container and calls
    /// [`crate::shim::run_if_asked`]; this same executable unless a test says otherwise.
    pub shim: Vec<OsString>,
    /// The node's network namespace, if it is not the caller's own.
    pub node_netns: Option<Netns>,
    /// The node's own addresses, which it speaks to its pods from; the kernel chooses if there are none.
    pub node_addresses: Vec<IpAddr>,
    /// The largest packet between pod and node; the kernel's default if `None`.
    pub mtu: Option<u32>,
    /// What containers see as `/`; a layer over the host's files if `None` and the kernel has overlay.
    pub root: Option<Root>,
    /// Whether to use cgroups where they can be had. Without them a shim kills its descendants one by one.
    pub use_cgroups: bool,
    /// How large a log file grows before it is renamed; the kubelet's default is 10 MiB.
    pub log_limit: u64,
}

/// How many bytes a container may write outside of volumes, in memory.
const LAYER_SIZE: u64 = 256 << 20;

impl Config {
    /// The usual settings.
    pub fn new(root_dir: impl Into<PathBuf>) -> Self {
        Self {
            root_dir: root_dir.into(),
            shim: vec!["/proc/self/exe".into(), crate::shim::SUBCOMMAND.into()],
            node_netns: None,
            node_addresses: Vec::new(),
            mtu: None,
            root: None,
            use_cgroups: true,
            log_limit: 10 << 20,
        }
    }
}

/// Runs containers as processes of this host.
#[derive(Clone)]
pub struct ProcessRuntime {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    layout: Layout,
    cgroups: Option<Cgroups>,
    node: Netns,
    defaults: Defaults,
    abilities: Abilities,
    shares: Shares,
    addresses: Mutex<Addresses>,
    table: Table,
    /// Closed when the runtime is dropped.
    open: watch::Sender<()>,
}

impl ProcessRuntime {
    /// Opens the runtime of a root directory: finds what runs, and removes what is left of what does not.
    /// Needs root, and a tokio runtime to follow the containers in.
    pub async fn open(config: Config) -> Result<Self, RuntimeError> {
        let inner = blocking(move || Inner::open(config)).await?;
        let runtime = Self { inner };
        runtime.adopt().await?;
        Ok(runtime)
    }

    /// What could be had here.
    pub fn abilities(&self) -> Abilities {
        self.inner.abilities
    }

    /// Removes what a runtime without pods has in the kernel. The root directory stays.
    pub fn close(&self) {
        if let Some(cgroups) = &self.inner.cgroups {
            cgroups.remove_empty_base();
        }
    }
}

impl Inner {
    fn open(config: Config) -> Result<Arc<Self>, RuntimeError> {
        let failed = |doing: &'static str| move |error: io::Error| RuntimeError::system(doing, error);
        let layout = Layout::create(&config.root_dir).map_err(failed("make the root directory"))?;
        let node = match &config.node_netns {
            Some(netns) => netns.clone(),
            None => Netns::current().map_err(network::system)?,
        };
        let cgroups = config
            .use_cgroups
            .then(|| Cgroups::open(&layout.root().join("cgroup"), layout.tag()).ok())
            .flatten();
        let root = config.root.unwrap_or_else(|| {
            let scratch = layout.root().join("pods");
            if crate::shim::root::can_layer(&scratch) {
                Root::Layer { size: LAYER_SIZE }
            } else {
                Root::Host
            }
        });
        let pods = layout.pods().map_err(failed("list the pods"))?;
        let addresses = Addresses::open(layout.addresses(), |pod| pods.binary_search(pod).is_ok())
            .map_err(failed("read the addresses in use"))?;
        Ok(Arc::new(Self {
            abilities: Abilities {
                has_layers: matches!(root, Root::Layer { .. }),
                has_cgroups: cgroups.is_some(),
                limits_cpu: cgroups.as_ref().is_some_and(Cgroups::limits_cpu),
                limits_memory: cgroups.as_ref().is_some_and(Cgroups::limits_memory),
                filters_system_calls: crate::shim::seccomp::is_possible(),
                capabilities: crate::shim::child::capabilities_here(),
            },
            defaults: Defaults {
                root,
                log_limit: config.log_limit,
            },
            config,
            shares: Shares::new(layout.root().to_owned()),
            layout,
            cgroups,
            node,
            addresses: Mutex::new(addresses),
            table: Table::default(),
            open: watch::Sender::new(()),
        }))
    }
}

impl Runtime for ProcessRuntime {
    fn set_pod_ranges(&self, ranges: &[AddressRange]) {
        self.inner.addresses.lock().set_ranges(ranges);
    }

    fn open_sandbox(&self, spec: SandboxSpec) -> Pending<'_, Sandbox> {
        let inner = Arc::clone(&self.inner);
        Box::pin(blocking(move || inner.open_sandbox(spec)))
    }

    fn update_files(&self, pod: &PodUid, volume: &VolumeName, files: FileSet) -> Pending<'_, ()> {
        let (inner, pod, volume) = (Arc::clone(&self.inner), pod.clone(), volume.clone());
        Box::pin(blocking(move || {
            pod::update_files(&inner.layout, &pod, &volume, &files)
        }))
    }

    fn start(&self, spec: ContainerSpec) -> Pending<'_, ContainerState> {
        Box::pin(self.start_container(spec))
    }

    fn signal(&self, container: &ContainerId, signal: Signal) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move { self.send_signal(&container, signal).await })
    }

    fn stop(&self, container: &ContainerId, signal: Signal, grace: Duration) -> Pending<'_, Exit> {
        let container = container.clone();
        Box::pin(async move { self.stop_container(&container, signal, grace).await })
    }

    fn exec(&self, container: &ContainerId, request: ExecRequest) -> Pending<'_, ExecOutcome> {
        let container = container.clone();
        Box::pin(async move { self.exec_in(&container, request).await })
    }

    fn open(&self, container: &ContainerId, request: SessionRequest) -> Pending<'_, Session> {
        let container = container.clone();
        Box::pin(async move { self.open_in(&container, request).await })
    }

    fn attach(&self, container: &ContainerId, wants: Attachable) -> Pending<'_, Session> {
        let container = container.clone();
        Box::pin(async move { self.attach_to(&container, wants).await })
    }

    fn connect(&self, pod: &PodUid, port: u16) -> Pending<'_, TcpStream> {
        let pod = pod.clone();
        Box::pin(async move { self.connect_in(&pod, port).await })
    }

    fn remove_container(&self, container: &ContainerId) -> Pending<'_, ()> {
        let container = container.clone();
        Box::pin(async move { self.forget_container(&container).await })
    }

    fn remove_pod(&self, pod: &PodUid) -> Pending<'_, ()> {
        let pod = pod.clone();
        Box::pin(async move { self.destroy_pod(&pod).await })
    }

    fn list(&self) -> Pending<'_, Vec<PodState>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(blocking(move || inner.list()))
    }

    fn disk_use(&self, pod: &PodUid) -> Pending<'_, DiskUse> {
        let (inner, pod) = (Arc::clone(&self.inner), pod.clone());
        Box::pin(blocking(move || disk::below_root(&inner.layout, &pod)))
    }

    fn usage(&self) -> Pending<'_, Vec<PodUsage>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(blocking(move || Ok(inner.usage())))
    }

    fn subscribe(&self) -> Events {
        self.inner.table.subscribe()
    }
}

/// Runs short system work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(RuntimeError::system(
            "wait for system work",
            io::Error::other(error),
        )),
    }
}
