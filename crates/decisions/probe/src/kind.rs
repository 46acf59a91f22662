//! What does a probe ask, and what can the answers be?

use pointsman_objects::pod_manifest;
use std::fmt;

/// What a probe decides about its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Whether the container may receive traffic.
    Readiness,
    /// Whether the container has to be restarted.
    Liveness,
    /// Whether the container has finished starting, which the other two wait for.
    Startup,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Readiness, Kind::Liveness, Kind::Startup];

    /// The container's probe of this kind.
    pub fn of(self, container: &pod_manifest::Container) -> Option<&pod_manifest::Probe> {
        match self {
            Kind::Readiness => container.readiness_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
            Kind::Startup => container.startup_probe.as_ref(),
        }
    }

    /// What is believed about a new container before any check.
    pub fn initial(self) -> Verdict {
        match self {
            Kind::Readiness => Verdict::Failure,
            Kind::Liveness => Verdict::Success,
            Kind::Startup => Verdict::Unknown,
        }
    }

    pub(crate) fn slot(self) -> usize {
        self as usize
    }
}

/// The name that metrics and events use.
impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Readiness => "Readiness",
            Kind::Liveness => "Liveness",
            Kind::Startup => "Startup",
        })
    }
}

/// What one check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The container answered well.
    Success,
    /// A success with something wrong that the user should know.
    Warning,
    /// The container answered badly, or not at all.
    Failure,
    /// The check itself could not be made; it says nothing about the container.
    Errored,
    /// The check was given up because nobody needs the answer.
    Abandoned,
}

/// What a probe currently says about its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Unknown,
    /// Ready, alive or started.
    Success,
    /// Not ready, to be restarted, or never started.
    Failure,
}

/// What the user should know about an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The check failed: event reason `Unhealthy`.
    Failed,
    /// The check could not be made: event reason `Unhealthy`.
    Errored,
    /// The check passed with a warning: event reason `ProbeWarning`.
    Warned,
}

/// What follows from one outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The new verdict, if it changed.
    pub verdict: Option<Verdict>,
    /// What the user should know, if anything new.
    pub notice: Option<Notice>,
    /// Whether the outcome counted. It does not when the check could not be made or when the
    /// container is no longer the one that was checked.
    pub counted: bool,
}
