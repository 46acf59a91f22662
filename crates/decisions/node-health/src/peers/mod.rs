//! Which nodes can the other nodes not reach, within a second of it, and should traffic avoid them?
//!
//! Traffic should leave a dead node at the first good suspicion, because that is cheap to undo; eviction
//! should be patient, because it is not. So this is a decision of its own, beside [`crate::Monitor`]:
//! it never touches a condition, a taint or a pod.
//!
//! Every node asks a constant number of others several times a second whether they are there
//! ([`rings`] says whom, [`suspicion`] what their silence means) and writes whom it does not reach into
//! its own Lease. [`verdict`] folds these opinions into nodes whose endpoints get no traffic. [`gone`] says
//! to which of them connections that are open already may be ended.

pub mod gone;
mod renewals;
pub mod rings;
pub mod suspicion;
mod table;
pub mod verdict;

pub use gone::Gone;
pub use renewals::Renewals;
pub use rings::Rings;
pub use suspicion::{Observer, Thresholds};
pub use verdict::{Change, Limits, Reachability, Votes};
