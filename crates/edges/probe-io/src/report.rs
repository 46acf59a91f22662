//! What does the prober report?

use jiff::Timestamp;
use pointsman_probe::{Kind, Notice, Verdict};
use std::sync::Arc;

/// Something that the prober reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// A verdict changed.
    Verdict {
        subject: Subject,
        /// What it says now.
        verdict: Verdict,
        /// When the answer that changed it was complete, by the wall clock.
        at: Timestamp,
        /// What a failing check said; empty for a success.
        message: String,
    },
    /// A check failed, errored or passed with a warning, and the user should see it. A probe that
    /// goes on failing repeats this every 10 s at most.
    Notice {
        subject: Subject,
        notice: Notice,
        /// What the check said.
        message: String,
    },
}

/// Which probe of which container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The pod's UID.
    pub pod_uid: Arc<str>,
    /// The container's name.
    pub container: Arc<str>,
    /// What the probe decides.
    pub kind: Kind,
}

impl Report {
    /// The reason and message of the event that upstream would record for a notice.
    pub fn event(&self) -> Option<(&'static str, String)> {
        let Report::Notice {
            subject,
            notice,
            message,
        } = self
        else {
            return None;
        };
        let kind = subject.kind;
        Some(match notice {
            Notice::Failed => ("Unhealthy", format!("{kind} probe failed: {message}")),
            Notice::Errored => (
                "Unhealthy",
                format!("{kind} probe errored and resulted in unknown state: {message}"),
            ),
            Notice::Warned => ("ProbeWarning", format!("{kind} probe warning: {message}")),
        })
    }
}
