//! How are the containers of a node checked?
//!
//! One thread makes all HTTP, TCP and gRPC checks of a node: it waits for sockets and for the next
//! due time, and [`pointsman_probe`] decides everything else. There is no task, thread or timer per
//! probe. Exec checks go to the container runtime, so many at a time.
//!
//! Invariants:
//! - Schedules use the monotonic clock; the wall clock only stamps what is reported.
//! - A check ends by its timeout, whatever the server does, and leaves no descriptor behind.
//! - Nothing a server sends is kept: bodies are skipped, heads and messages have limits.

mod connection;
mod engine;
pub mod exec;
mod finding;
mod grpc;
mod hpack;
mod http;
mod metrics;
mod prober;
mod report;
pub mod target;
mod timers;
mod tls;
pub mod url;

pub use exec::{ExecOutcome, ExecRequest, ExecRunner, NoExec};
pub use metrics::describe as describe_metrics;
pub use pointsman_probe::{Floors, Kind, Limits, Notice, Policy, Verdict};
pub use prober::{Config, Prober, Reported, StartError, Started};
pub use report::{Report, Subject};
pub use target::{Check, ContainerTarget, PodTarget, ProbeTarget, Reading};
