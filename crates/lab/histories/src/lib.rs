//! Can everything that clients saw be explained by one sequence of writes?
//!
//! [`run`] puts real API servers under kills, freezes and failed syncs while clients read, write, list and watch, and
//! records what each of them saw as a [`History`]. [`judge`] looks for one order of all operations that explains it:
//! every answer, list and watch, and every write that was answered, also after a crash. The judge is pure, and knows of
//! the server only what the API promises.

mod explain;
#[cfg(test)]
mod fake;
mod history;
mod judge;
mod linearize;
mod lists;
mod observed;
#[cfg(test)]
mod planted;
pub mod run;
mod timeline;
mod watches;

pub use history::{
    Answer, Content, Event, Freshness, History, Key, Listing, Nanos, Operation, Request, Revision, Scope,
    Seen, Watch, WriteId,
};
pub use judge::{Counts, Verdict, judge};
