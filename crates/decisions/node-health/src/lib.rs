//! Is a node alive, and what follows when it is not?
//!
//! Heartbeats go in; conditions, taints, paced marking of pods and evictions come out. Values in,
//! values out: clocks and connections are the caller's. Decisions compare times of the caller's
//! monotonic clock only; what nodes believe about the time never matters.

pub mod action;
pub mod evict;
pub mod monitor;
pub mod node;
pub mod pace;
pub mod peers;
pub mod settings;
pub mod taint;
pub mod zone;

pub use action::{Action, Now};
pub use monitor::Monitor;
pub use node::Renewal;
pub use settings::Settings;
