//! How do the containers of a node run?
//!
//! The node agent decides what should run; a [`Runtime`] makes it so and reports what happened. The seam
//! speaks of resolved values only (environment expanded, volumes filled, user ids as numbers), so that a
//! runtime needs no Kubernetes object and the agent needs no system call.
//!
//! - [`process::ProcessRuntime`] runs containers as processes in namespaces and cgroups of their own. Each
//!   has a [`shim`] that outlives the agent.
//! - [`cri::CriRuntime`] has a container runtime such as containerd run containers from images.
//! - [`fake::FakeRuntime`] behaves like a runtime without touching the system.

mod cgroup;
pub mod cri;
pub mod error;
pub mod fake;
pub mod id;
pub mod image;
pub mod process;
pub mod range;
pub mod runtime;
pub mod security;
pub mod session;
pub mod shim;
pub mod spec;
pub mod state;
pub mod usage;

pub use error::{Refusal, RuntimeError, StartFailure};
pub use id::{BadId, ContainerId, ContainerName, PodUid, VolumeName};
pub use range::{AddressRange, ParseRangeError};
pub use runtime::{Events, Pending, Runtime};
pub use security::{Capabilities, CapabilitySet, Security, SystemCalls};
pub use session::{Session, SessionRequest, Terminal};
pub use spec::{
    Attachable, ContainerSpec, ExecRequest, FileContent, FileSet, HostAlias, HostPort, Limits, Medium,
    MountSpec, Network, Protocol, Pull, SandboxSpec, Signal, User, VolumeSource, VolumeSpec,
};
pub use state::{
    ContainerState, ContainerStatus, DiskUse, ExecEnd, ExecOutcome, Exit, ExitCause, PodState, RuntimeEvent,
    Sandbox,
};
pub use usage::{ContainerUsage, MemoryUse, PodUsage, Usage};
