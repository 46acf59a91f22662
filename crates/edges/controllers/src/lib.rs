//! Which loops carry decisions to an API server?
//!
//! Every loop here is the same shape: watches feed one task that owns the state, pure code from a
//! decision crate says what to write, writers send it, and what the server answered goes back to the
//! owner. Loops know nothing of each other; they meet in the objects.

pub mod config;
pub mod endpoint_slices;
pub mod latency_profile;
pub mod loops;
pub mod manager;
pub mod nodes;

mod shared;
mod workloads;
mod writer;

pub use config::{Config, Leadership};
pub use loops::{Loop, Loops};
pub use manager::{RunError, describe_metrics, run};
