//! Does a latency profile, or the way to it, make living nodes look dead?
//!
//! A discrete-event simulation of nodes behind lossy and slow links, an API server, the node monitor,
//! taint eviction and the operators that roll profiles out. The monitor, the evictor and the planner are
//! the real ones; links, clocks and the API server are simulated. One number, the seed, decides
//! everything: the scenario, the size of the cluster and every fault. The same seed gives the same run,
//! byte for byte. [`peers`] is a second one of the same kind: nodes that ask each other whether they are
//! there.

pub mod events;
pub mod link;
pub mod peers;
pub mod report;
pub mod rollout;
pub mod scenario;
pub mod sweep;
pub mod world;

pub use report::Report;
pub use scenario::{Heartbeats, Route, Scenario};
pub use world::{Outcome, run};
