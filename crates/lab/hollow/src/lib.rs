//! How do thousands of programmers fit on one machine?
//!
//! Hollow programmers watch a real API server and stream real watermarks, and have no kernel: a commit is
//! a short pause. All of one process share one watch of each collection.

mod serve;
mod state;

pub use serve::{Config, RunError, name, run};
