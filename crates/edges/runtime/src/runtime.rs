//! What does the agent ask of a runtime?

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::{
    AddressRange, Attachable, ContainerId, ContainerSpec, ContainerState, DiskUse, ExecOutcome, ExecRequest,
    Exit, FileSet, PodState, PodUid, PodUsage, Refusal, RuntimeError, RuntimeEvent, Sandbox, SandboxSpec,
    Session, SessionRequest, Signal, VolumeName,
};

/// The answer to a request, once it is there.
pub type Pending<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// Events in the order in which they happened, for each container.
pub type Events = mpsc::UnboundedReceiver<RuntimeEvent>;

/// Runs pods on this node.
///
/// Requests for one pod are made one after another, except that [`exec`](Self::exec) and
/// [`stop`](Self::stop) may overlap with others; requests for different pods may overlap. Everything
/// survives the death of the process that holds the runtime: the next one finds it by
/// [`list`](Self::list).
pub trait Runtime: Send + Sync {
    /// Says which addresses pods may have from now on, at most one range of each family. Pods keep the
    /// addresses they have.
    fn set_pod_ranges(&self, ranges: &[AddressRange]);

    /// Makes what the pod's containers share. Asked again, it completes what is missing and returns the
    /// same addresses.
    fn open_sandbox(&self, spec: SandboxSpec) -> Pending<'_, Sandbox>;

    /// Replaces the files of a [`Files`](crate::VolumeSource::Files) volume; programs see all old files
    /// or all new ones.
    fn update_files(&self, pod: &PodUid, volume: &VolumeName, files: FileSet) -> Pending<'_, ()>;

    /// Starts a container in an open sandbox. Asked again for the same id, it starts nothing and returns
    /// the state of what it started before.
    fn start(&self, spec: ContainerSpec) -> Pending<'_, ContainerState>;

    /// Sends a signal to the container's main process.
    fn signal(&self, container: &ContainerId, signal: Signal) -> Pending<'_, ()>;

    /// Sends `signal` to the main process and, if that has not ended within `grace`, kills it and everything it
    /// started. Returns how it ended, at once if it had ended before.
    fn stop(&self, container: &ContainerId, signal: Signal, grace: Duration) -> Pending<'_, Exit>;

    /// Runs a command inside a running container, as its user, in its directory, with its environment.
    fn exec(&self, container: &ContainerId, request: ExecRequest) -> Pending<'_, ExecOutcome>;

    /// Runs such a command with streams that the caller holds. It ends at the latest when they are dropped, where the
    /// runtime can end it.
    fn open(&self, container: &ContainerId, request: SessionRequest) -> Pending<'_, Session> {
        let _ = (container, request);
        refused("run commands with streams")
    }

    /// Shows what the container's own program writes from now on, and sends it input if it reads any. The program goes on
    /// when the session is dropped.
    fn attach(&self, container: &ContainerId, wants: Attachable) -> Pending<'_, Session> {
        let _ = (container, wants);
        refused("attach to programs")
    }

    /// Connects to a port on a loopback address of the pod's network.
    fn connect(&self, pod: &PodUid, port: u16) -> Pending<'_, TcpStream> {
        let _ = (pod, port);
        refused("forward ports")
    }

    /// Forgets a run that has ended, with its log; one that still runs is killed first. A run that is not
    /// known is no error.
    fn remove_container(&self, container: &ContainerId) -> Pending<'_, ()>;

    /// Kills what runs of the pod and removes everything it had: processes, network, address, volumes,
    /// logs, records. A pod that is not known, or half removed, is no error.
    fn remove_pod(&self, pod: &PodUid) -> Pending<'_, ()>;

    /// Everything there is, in order of pod.
    fn list(&self) -> Pending<'_, Vec<PodState>>;

    /// How much the pod has on disk now.
    fn disk_use(&self, pod: &PodUid) -> Pending<'_, DiskUse>;

    /// How much CPU and memory is used now by all pods of which something runs, in order of pod.
    fn usage(&self) -> Pending<'_, Vec<PodUsage>>;

    /// Why no pods can be run here at the moment, now and later.
    fn trouble(&self) -> watch::Receiver<Option<String>> {
        watch::channel(None).1
    }

    /// A new receiver of all events from now on. What happened before is in [`list`](Self::list): a
    /// caller subscribes first and lists then.
    fn subscribe(&self) -> Events;
}

fn refused<T: Send + 'static>(what: &str) -> Pending<'static, T> {
    let message = format!("the runtime of this node does not {what}");
    let reason = Refusal::InvalidSpec;
    Box::pin(std::future::ready(Err(RuntimeError::Refused { reason, message })))
}
