//! How do thousands of programmers, or of nodes, fit on one machine?
//!
//! Hollow programmers watch a real API server and stream real watermarks, and have no kernel: a commit is
//! a short pause. All of one process share one watch of each collection. Hollow [`nodes`] send heartbeats and report
//! pods, and run nothing.

pub mod nodes;
mod serve;
mod state;

pub use serve::{Config, RunError, name, run};
