//! How do pods find Services by name?
//!
//! ```text
//! watches ─► owner ─► zone ◄─ listeners (UDP, TCP) ◄─ pods
//!                                 │
//!                                 └─► upstream, for everything that is not the cluster's
//! ```
//!
//! One task changes the zone, listeners only read it. Which records there are is decided by `pointsman-names`; here
//! are packets and sockets. A question about the cluster is answered where it is read, without waiting for anything;
//! one for a resolver outside gets a task of its own, of which there are only so many.

mod answer;
mod config;
mod listen;
mod metrics;
mod owner;
mod run;
#[cfg(test)]
mod tests;
mod upstream;
pub mod wire;

pub use answer::{Step, answer};
pub use config::{Config, Upstream};
pub use metrics::describe_metrics;
pub use run::{RunError, run};
