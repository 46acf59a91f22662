//! What must a node do next about a pod, and what does it report?
//!
//! One [`Machine`] per pod takes facts (what the runtime, the prober, the API and the clock say) and
//! returns [`Action`]s; [`Machine::status`] is the report. Nothing here runs a process, opens a socket
//! or reads a clock.
//!
//! Laws, whatever the history:
//! - A container is started only when none of its former runs can still be alive.
//! - A pod that has ended, or whose end was asked for, starts nothing any more.
//! - A phase of Succeeded or Failed is final, and is not reported while a container may still run.
//! - Every action is answered by a fact; until then the same action is not asked for again.

mod action;
mod ending;
pub mod env;
mod fact;
mod machine;
pub mod resolver;
mod status;
mod stop;
mod storage;
mod unit;

pub use action::{Action, PodEvent};
pub use fact::{ContainerFact, Fact, Found, FoundContainer, Now};
pub use machine::{Machine, Probed, Settings};
pub use storage::DiskUse;
pub use unit::{Cause, Exit, Role};
