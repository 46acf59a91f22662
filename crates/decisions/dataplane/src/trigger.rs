//! When did the change happen that we are about to program?
//!
//! The slice controller writes the time of the oldest change behind a slice update into an annotation;
//! a change of a Service itself began with the API server's write of it. Each update gives one sample, observed
//! when the kernel has the rules. A sync that fails gives its samples back, so that the time spent retrying is
//! part of the latency instead of vanishing from it.

use pointsman_model::{Began, ServiceName, SliceName};

/// One sample waiting to be observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    pub cause: Cause,
    /// The Service concerned.
    pub service: ServiceName,
    /// When the change happened.
    pub began: Began,
}

/// What changed, and with what the sample is discarded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The slice whose update carried the time; its deletion discards the sample.
    Slice(SliceName),
    /// The Service itself came, changed or went. It is a sample only if that alters rules.
    Service,
}
