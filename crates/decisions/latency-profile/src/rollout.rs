//! How do three writers that know nothing of each other carry out one plan?
//!
//! Each owner repeats one round for ever: read its own component first, then the ledger, then everything
//! else; ask [`decide`]; carry out the one act that comes back. Every write is conditional on the version
//! that the round read. That is the whole protocol, and these rules make it safe whatever is delayed,
//! lost or run twice:
//!
//! - Only the owner that holds the claim in the [`Ledger`] writes its component, and only a step that
//!   the planner calls safe for everything that was written or is still in force.
//! - A claim allows one write of the component, which carries the claim's epoch.
//! - Whoever finds a claim of its owner made by another instance takes it over with a new epoch and must
//!   write the component before it lets the claim go. A write of the former instance that is still under
//!   way then finds another version and fails: it read the component before the ledger.
//! - An instance that does not know what became of a request takes a new name, and so takes itself over.
//! - Components announce the worse value first: a node announces a longer period before it uses it and a
//!   shorter one after, the controller manager the other way round. So what is announced is never better
//!   than what is in force.
//!
//! `tests/interleavings` explores all of this.

mod conditions;
mod decide;
mod ledger;
mod readings;
mod speech;

pub use conditions::{Condition, ConditionType, Status, Stored, merge};
pub use decide::{Act, Decision, Notice, Policy, Spec, View, decide};
pub use ledger::{Claim, Failure, Ledger, Settled};
pub use readings::{NodeReading, NodesReading, Problem, Readings, Single, Unaware};
