//! What can a pod ask the edge to do?

use std::time::Duration;

/// What the edge has to do. Each is answered by a [`Fact`], except for `Signal` and `Kill`, which are
/// answered by the container's exit, and `Tell`.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the network namespace, the cgroup and the volumes.
    MakeSandbox,
    /// Start a container.
    Start {
        /// Which.
        container: String,
        /// Which run of it, counted from 0.
        run: u32,
    },
    /// Run the post-start hook.
    PostStart {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
    },
    /// Wait until every node has taken the pod out of its rules.
    AskGate,
    /// Run the pre-stop hook.
    PreStop {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// It may take this long.
        within: Duration,
    },
    /// Send the stop signal.
    Signal {
        /// To which container.
        container: String,
        /// To which run.
        run: u32,
    },
    /// Kill everything of a container.
    Kill {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
    },
    /// Remove everything that the node has of the pod.
    TearDown,
    /// Record an Event.
    Tell(News),
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Whether somebody should look.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl News {
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
