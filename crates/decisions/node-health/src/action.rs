//! What does the monitor want done, and what does it have to know?

use std::time::Duration;

use pointsman_model::{Moment, Text};
use pointsman_objects::node::ConditionKind;

use crate::taint::TaintChange;

/// The time of one step, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic clock: all decisions.
    pub tick: Duration,
    /// Wall clock: only for the age of nodes that never reported.
    pub wall: Moment,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the node's lease from the API server, not from a cache, and report with
    /// [`crate::Monitor::lease_checked`].
    CheckLease(Text),
    /// Set these conditions to Unknown, with their reasons, keeping their heartbeat times.
    MarkUnknown(Text, Vec<(ConditionKind, UnknownReason)>),
    /// Change the node's taints.
    Taint(Text, TaintChange),
    /// Set the Ready condition of all pods on the node to False; report failures with
    /// [`crate::Monitor::marking_failed`].
    MarkPodsUnready(Text),
    /// Tell on the node that it is not ready.
    NotReadyEvent(Text),
}

/// Why a condition is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownReason {
    /// The node reported before.
    Stopped,
    /// The node never reported.
    Never,
}

impl UnknownReason {
    /// The condition's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Stopped => "NodeStatusUnknown",
            Self::Never => "NodeStatusNeverUpdated",
        }
    }

    /// The condition's message.
    pub fn message(self) -> &'static str {
        match self {
            Self::Stopped => "Kubelet stopped posting node status.",
            Self::Never => "Kubelet never posted node status.",
        }
    }
}

/// What the API server has for a node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveLease {
    /// A lease with this resource version.
    Revision(u64),
    Missing,
    /// It could not be read.
    Failed,
}
