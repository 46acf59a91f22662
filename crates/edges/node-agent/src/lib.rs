//! How does a node run its pods and report them?
//!
//! The kubelet's part of the path. [`pointsman_pod_lifecycle`] decides, a [`Runtime`] runs containers, the
//! prober checks them; this crate joins them to the API: pods are watched, statuses patched, heartbeats
//! sent, logs served.
//!
//! Invariants:
//! - One task owns all pods ([`agent`]); everything else sends it finished values.
//! - A readiness change leaves for the API at once. Nothing waits for a resync, because there is none.
//! - Pods outlive the agent. A new one finds them, and what was ready stays ready.
//! - Without an API server, probing and restarting go on, and the last state is sent afterwards.

mod agent;
mod clock;
mod config;
mod disk;
pub mod gate;
mod heartbeat;
mod host;
mod metrics;
mod neighbours;
pub mod node;
mod objects;
mod pod;
mod probing;
mod room;
mod run;
mod security;
mod serve;
mod stats;
mod streams;
mod tokens;
mod translate;
mod volumes;
mod work;

pub use config::Config;
pub use host::Host;
pub use metrics::describe as describe_metrics;
pub use pointsman_pod_lifecycle::resolver::ClusterDns;
pub use pointsman_runtime::Runtime;
pub use run::{AgentError, run};
