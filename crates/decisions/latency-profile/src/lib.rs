//! How patient is the cluster with its nodes, and how is that changed while it runs?
//!
//! Three components share one decision: nodes report every so often, the controller manager calls a
//! node unreachable after so long a silence, and the API server says how long pods stay on such a node.
//! A profile sets all three. [`plan`] turns any state into a wanted one by steps that change one
//! component each and pass only through states in which nodes are not called unreachable by mistake;
//! [`rollout`] lets three independent writers carry such a plan out, through crashes and delays.
//!
//! Values in, values out: clocks, files and connections are the caller's.

pub mod plan;
pub mod profile;
pub mod render;
pub mod rollout;
pub mod state;
pub mod units;
pub mod verdict;

pub use plan::{Change, Day, Plan, Purpose, Step, next_step, plan};
pub use profile::{Catalog, Profile, UnknownProfile, Wanted};
pub use state::{Component, Owner, Pool, Span, State};
pub use units::{GracePeriod, ReportPeriod, Tolerations, Values};
pub use verdict::{LeaseTerms, Verdict};
