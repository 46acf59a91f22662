//! When is a container checked, and what do the answers mean?
//!
//! Container starts, stops and outcomes of checks go in; due times and verdicts come out. Values
//! in, values out: clocks, sockets and processes are the caller's. All times are [`Tick`]s of the
//! caller's monotonic clock, so a jump of the wall clock changes nothing.
//!
//! Invariants:
//! - A verdict changes only after as many equal outcomes in a row as its threshold says.
//! - A worker has at most one check under way.
//! - Checks keep to a fixed grid: a late check does not move those after it, and missed points
//!   collapse into one check.

pub mod budget;
pub mod container;
pub mod kind;
pub mod tick;
pub mod timing;
mod worker;

pub use budget::{Budget, Limits, Window};
pub use container::{Container, Previous, Start};
pub use kind::{Effects, Kind, Notice, Outcome, Verdict};
pub use tick::Tick;
pub use timing::{Floors, Pace, Policy, Timing};
pub use worker::{Begun, Probe};
