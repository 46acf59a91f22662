//! How do thousands of nodes fit on one machine?
//!
//! Hollow nodes are objects whose heartbeats one process sends, and whose pods it reports as running and ready at addresses of
//! their own. There is no kernel behind them: nothing runs, nothing answers, nothing fails.
//!
//! What a pod goes through is decided by `pod-lifecycle`, as on a node with an agent; here every answer is a good one
//! and comes at once ([`life`]). [`pods`] decides what is to be written about which pod, and [`run`] writes it.

mod heartbeats;
mod life;
mod object;
mod pods;
mod run;

pub use heartbeats::Heartbeats;
pub use object::{NodeNumber, Nodes};
pub use pods::{Answer, Pods, Task, What};
pub use run::{NodesError, run};
