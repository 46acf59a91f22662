//! What can a pod ask the edge to do?

use std::time::Duration;

/// What the edge has to do. Each is answered by a [`Fact`], except for `Signal` and `Kill`, which are
/// answered by the container's exit, and `Record`.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the network namespace, the cgroup and the volumes.
    MakeSandbox,
    /// Start a container.
    Start { container: String, run: u32 },
    /// Run the post-start hook.
    PostStart { container: String, run: u32 },
    /// Wait until every node has taken the pod out of its rules.
    AskGate,
    /// Run the pre-stop hook.
    PreStop {
        container: String,
        run: u32,
        /// It may take this long.
        within: Duration,
    },
    /// Send the stop signal.
    Signal { container: String, run: u32 },
    /// Kill everything of a container.
    Kill { container: String, run: u32 },
    /// Remove everything that the node has of the pod.
    TearDown,
    /// Record an Event.
    Record(PodEvent),
}

/// An Event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// Whether somebody should look.
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl PodEvent {
    pub(crate) fn normal(reason: &'static str, message: String) -> Self {
        Self {
            warning: false,
            reason,
            message,
        }
    }

    pub(crate) fn warning(reason: &'static str, message: String) -> Self {
        Self {
            warning: true,
            reason,
            message,
        }
    }
}
