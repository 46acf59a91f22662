//! How do nodes get their pod address ranges?

use super::Edge;
use super::book::{Assignment, Book, Sight};
use super::metrics::RangeMetrics;
use super::pods::node_subject;
use super::ranges::{ClusterRange, Range};
use crate::writer::Writers;
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ApiError, Patch, Resource};
use pointsman_model::Text;
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Nodes written at the same time.
const WRITERS: usize = 8;

/// The state of the loop.
pub(super) struct Ipam {
    edge: Edge,
    on: bool,
    book: Book,
    queue: WorkQueue<Text>,
    pub writers: Writers<Done>,
    /// Nodes for which no range was left.
    waiting: BTreeSet<Text>,
    metrics: RangeMetrics,
}

/// What became of one node.
pub(super) struct Done {
    name: Text,
    uid: Text,
    failure: Option<ApiError>,
}

impl Ipam {
    pub fn new(edge: Edge, on: bool, ranges: &[ClusterRange], metrics: RangeMetrics) -> Self {
        Self {
            edge,
            on: on && !ranges.is_empty(),
            book: Book::new(ranges),
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(WRITERS),
            waiting: BTreeSet::new(),
            metrics,
        }
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }

    /// Takes in a node.
    pub fn observe(&mut self, name: &Text, uid: &Text, ranges: &[Text], now: Duration) {
        if !self.on {
            return;
        }
        match self.book.see(name, uid, ranges) {
            Sight::Settled => {}
            Sight::Wants if self.waiting.contains(name) => {}
            Sight::Wants => self.queue.add(name, now),
            Sight::Doubled(doubled) => {
                let message = format!("{} is also held by another node", list(&doubled));
                tracing::error!(node = %name, ranges = list(&doubled), "two nodes hold the same pod addresses");
                self.edge.tell(
                    &node_subject(name, uid),
                    Severity::Warning,
                    "CIDRConflict",
                    message,
                );
            }
        }
    }

    /// A node is gone.
    pub fn gone(&mut self, name: &str, now: Duration) {
        self.waiting.remove(name);
        if self.book.gone(name) {
            self.metrics.released(self.book.pools());
            for name in std::mem::take(&mut self.waiting) {
                self.queue.add(&name, now);
            }
        }
    }

    /// Gives out ranges, as many as there is room for. All nodes must have been seen.
    pub fn start(&mut self, now: Duration) {
        while self.writers.has_room()
            && let Some(name) = self.queue.next(now)
        {
            match self.book.assign(&name) {
                Assignment::Nothing => self.queue.finish(&name, Outcome::Done, now),
                Assignment::Exhausted { uid, range } => {
                    let message = format!("No pod addresses are left in {range}");
                    tracing::error!(node = %name, %range, "no pod addresses are left");
                    let subject = node_subject(&name, &uid);
                    self.edge
                        .tell(&subject, Severity::Warning, "CIDRNotAvailable", message);
                    self.queue.finish(&name, Outcome::Done, now);
                    self.waiting.insert(name);
                }
                Assignment::Write { uid, ranges } => {
                    self.metrics.assigned(self.book.pools());
                    self.writers
                        .start(assign(self.edge.clone(), name.clone(), uid, ranges));
                }
            }
        }
    }

    /// Takes back a node. The range stays the node's until the watch shows what it has.
    pub fn finish(&mut self, done: Done, now: Duration) {
        let outcome = match &done.failure {
            None => Outcome::Done,
            Some(error) => {
                tracing::warn!(node = %done.name, %error, "pod addresses are tried again");
                if let ApiError::Refused(_) = error {
                    let subject = node_subject(&done.name, &done.uid);
                    self.edge.tell(
                        &subject,
                        Severity::Warning,
                        "CIDRAssignmentFailed",
                        error.to_string(),
                    );
                }
                Outcome::Retry
            }
        };
        self.queue.finish(&done.name, outcome, now);
    }
}

async fn assign(edge: Edge, name: Text, uid: Text, ranges: Vec<Range>) -> Done {
    let texts: Vec<String> = ranges.iter().map(Range::to_string).collect();
    // The uid guards against a node of the same name; the server refuses to replace other ranges.
    let patch = json!({ "metadata": { "uid": &*uid }, "spec": { "podCIDR": texts[0], "podCIDRs": texts } });
    let api = edge.client.api(Resource::NODES, None);
    let patch = Patch::Merge(patch.to_string().into_bytes());
    let failure = api.patch::<IgnoredAny>(&name, patch).await.err();
    if failure.is_none() {
        tracing::info!(node = %name, ranges = list(&ranges), "gave a node its pod addresses");
    }
    Done { name, uid, failure }
}

fn list(ranges: &[Range]) -> String {
    let texts: Vec<String> = ranges.iter().map(Range::to_string).collect();
    texts.join(",")
}
