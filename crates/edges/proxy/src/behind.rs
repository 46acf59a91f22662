//! Who learns in the cluster that kube-proxy is behind on this node?
//!
//! Events about the Node, which `kubectl describe node` shows.

use std::time::{Duration, Instant};

use pointsman_api_client::events::{News, Recorder, Severity};
use pointsman_observe::Behind;
use pointsman_observe::alarm::{Alarm, Report};

use crate::others::node_subject;

#[derive(Debug)]
pub(crate) struct BehindEvents {
    node: String,
    events: Recorder,
    alarm: Alarm,
}

impl BehindEvents {
    pub fn new(node: String, events: Recorder) -> Self {
        Self {
            node,
            events,
            alarm: Alarm::default(),
        }
    }

    /// Takes in whose rules have differed for too long, family by family.
    pub fn observe(&mut self, now: Instant, families: [Option<&Behind>; 2]) {
        let behind = families.into_iter().flatten().min_by_key(|behind| behind.since);
        let (severity, reason, message) = match self.alarm.step(now, behind) {
            Some(Report::Behind(behind, so_long)) => {
                (Severity::Warning, "ServiceProxyBehind", says(&behind, so_long))
            }
            Some(Report::CaughtUp(after)) => (
                Severity::Normal,
                "ServiceProxyCaughtUp",
                format!(
                    "kube-proxy's rules say what they must again, {} s after they began to differ",
                    after.as_secs()
                ),
            ),
            None => return,
        };
        self.events.record(News {
            subject: node_subject(&self.node),
            severity,
            reason: reason.into(),
            message,
        });
    }
}

fn says(behind: &Behind, so_long: Duration) -> String {
    let (differs, seconds) = (&behind.differs, so_long.as_secs());
    let Some(service) = &behind.service else {
        return format!("kube-proxy's rules have lacked for {seconds} s what all Services share: {differs}");
    };
    let others = match behind.services.saturating_sub(1) {
        0 => String::new(),
        1 => " and of another Service".to_owned(),
        more => format!(" and of {more} other Services"),
    };
    format!(
        "kube-proxy's rules of {service}{others} have differed for {seconds} s from what they must say: {differs}"
    )
}
