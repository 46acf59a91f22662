//! When did the change happen that we are about to program?
//!
//! The slice controller writes the time of the oldest change behind a slice update into an annotation.
//! Each update gives one sample, observed when the kernel has the rules. A sync that fails gives its
//! samples back, so that the time spent retrying is part of the latency instead of vanishing from it.

use pointsman_model::{Moment, ServiceName, SliceName};

/// One sample waiting to be observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    /// The slice whose update carried it; its deletion discards the sample.
    pub slice: SliceName,
    /// The Service concerned.
    pub service: ServiceName,
    /// When the change happened.
    pub at: Moment,
}
