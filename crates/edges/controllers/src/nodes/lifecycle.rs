//! How does the verdict about a silent node reach the API server?
//!
//! [`Monitor`] decides; here its actions are carried out: lease checks and conditions one after the
//! other for a node, taints by reading and writing a node until nobody else wrote in between. What
//! fails is not repeated here: the monitor asks again until the watch shows the effect.

use super::Edge;
use super::metrics::HealthMetrics;
use super::pods::node_subject;
use super::write::{check_lease, mark_unknown, write_taints};
use crate::writer::Writers;
use pointsman_api_client::ApiError;
use pointsman_api_client::events::Severity;
use pointsman_model::Text;
use pointsman_node_health::action::{LiveLease, UnknownReason};
use pointsman_node_health::taint::TaintChange;
use pointsman_node_health::{Action, Monitor, Now, Settings};
use pointsman_objects::node::ConditionKind;
use pointsman_objects::{Lease, Node};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Nodes written or checked at the same time (upstream has 8 workers).
const WRITERS: usize = 16;
/// After a write that somebody else came before, the next look comes this soon.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The state of the loop.
pub(super) struct Lifecycle {
    edge: Edge,
    pub monitor: Monitor,
    pub writers: Writers<Done>,
    nodes: HashMap<Text, Arc<Node>>,
    jobs: VecDeque<Job>,
    /// Nodes with a lease check or a write of conditions queued or under way.
    judging: HashSet<Text>,
    /// Nodes whose taints are queued or being written, with what came since.
    tainting: HashMap<Text, Option<TaintChange>>,
    next_check: Duration,
    metrics: HealthMetrics,
}

enum Job {
    CheckLease(Text),
    MarkUnknown(Text, Vec<(ConditionKind, UnknownReason)>),
    Taint(Text, TaintChange),
}

/// What became of one job.
pub(super) enum Done {
    Checked {
        node: Text,
        live: Result<Lease, ApiError>,
    },
    Marked {
        node: Text,
        failure: Option<ApiError>,
        took: Duration,
    },
    Tainted {
        node: Text,
        failure: Option<ApiError>,
    },
}

impl Lifecycle {
    pub fn new(edge: Edge, settings: Settings, metrics: HealthMetrics) -> Self {
        metrics.settings(&settings);
        Self {
            edge,
            monitor: Monitor::new(settings),
            writers: Writers::new(WRITERS),
            nodes: HashMap::new(),
            jobs: VecDeque::new(),
            judging: HashSet::new(),
            tainting: HashMap::new(),
            next_check: Duration::ZERO,
            metrics,
        }
    }

    /// Goes on with other settings, beginning with a look at all nodes.
    pub fn set_settings(&mut self, settings: Settings, now: Now) {
        self.metrics.settings(&settings);
        self.monitor.set_settings(settings, now);
        self.next_check = self.next_check.min(now.tick + settings.monitor_period);
    }

    /// Takes in a node; returns what is to be done for its pods. `listed`: all nodes were seen before, so one that was not is new.
    pub fn observe(&mut self, node: &Arc<Node>, listed: bool, now: Now) -> Vec<Text> {
        let name = &node.metadata.name;
        let before = self.nodes.insert(name.clone(), node.clone());
        if before
            .as_ref()
            .is_some_and(|known| known.metadata.uid != node.metadata.uid)
        {
            self.monitor.remove_node(name);
        }
        if before.is_none() && listed {
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            self.tell(name, Severity::Normal, "RegisteredNode", message);
        }
        let actions = self.monitor.observe_node(node.clone(), now);
        self.carry_out(actions)
    }

    /// A node is gone.
    pub fn gone(&mut self, name: &str) {
        if self.monitor.remove_node(name) {
            let message = format!("Node {name} event: Removing Node {name} from Controller");
            self.tell(name, Severity::Normal, "RemovingNode", message);
        }
        self.nodes.remove(name);
    }

    /// Looks at heartbeats and hands out what is due; returns nodes whose pods are to be marked.
    pub fn tick(&mut self, now: Now) -> Vec<Text> {
        let mut marked = Vec::new();
        if now.tick >= self.next_check {
            self.next_check = now.tick + self.monitor.settings().monitor_period;
            let begin = Instant::now();
            let actions = self.monitor.check(now);
            marked.extend(self.carry_out(actions));
            self.metrics.checked(&self.monitor, begin.elapsed());
        }
        let actions = self.monitor.pace(now.tick);
        marked.extend(self.carry_out(actions));
        self.start();
        marked
    }

    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let paced = self.monitor.wake_at(now);
        Some(paced.map_or(self.next_check, |at| at.min(self.next_check)))
    }

    /// Queues what the monitor wants; returns nodes whose pods are to be marked.
    fn carry_out(&mut self, actions: Vec<Action>) -> Vec<Text> {
        let mut marked = Vec::new();
        for action in actions {
            match action {
                Action::CheckLease(node) => {
                    if self.judging.insert(node.clone()) {
                        self.jobs.push_back(Job::CheckLease(node));
                    }
                }
                Action::MarkUnknown(node, conditions) => {
                    self.judging.insert(node.clone());
                    self.jobs.push_front(Job::MarkUnknown(node, conditions));
                }
                Action::Taint(node, change) => self.queue_taints(node, change),
                Action::MarkPodsUnready(node) => marked.push(node),
                Action::NotReadyEvent(node) => {
                    let message = format!("Node {node} status is now: NodeNotReady");
                    self.tell(&node, Severity::Normal, "NodeNotReady", message);
                }
            }
        }
        marked
    }

    fn queue_taints(&mut self, node: Text, change: TaintChange) {
        match self.tainting.get_mut(&node) {
            Some(since) => {
                *since = Some(match since.take() {
                    Some(earlier) => earlier.then(change),
                    None => change,
                });
            }
            None => {
                self.tainting.insert(node.clone(), None);
                self.jobs.push_back(Job::Taint(node, change));
            }
        }
    }

    fn start(&mut self) {
        while self.writers.has_room()
            && let Some(job) = self.jobs.pop_front()
        {
            let edge = self.edge.clone();
            match job {
                Job::CheckLease(node) if self.monitor.leases_behind() => {
                    self.judging.remove(&node);
                }
                Job::CheckLease(node) => self.writers.start(async move {
                    let live = check_lease(&edge, &node).await;
                    Done::Checked { node, live }
                }),
                Job::MarkUnknown(node, conditions) => {
                    let Some(known) = self.nodes.get(&node) else {
                        self.judging.remove(&node);
                        continue;
                    };
                    let known = known.clone();
                    self.writers.start(async move {
                        let begin = Instant::now();
                        let written = mark_unknown(&edge, &known, &conditions);
                        let failure = written.await.err();
                        let took = begin.elapsed();
                        Done::Marked { node, failure, took }
                    });
                }
                Job::Taint(node, change) => {
                    let Some(known) = self.nodes.get(&node) else {
                        self.tainting.remove(&node);
                        continue;
                    };
                    let uid = known.metadata.uid.clone();
                    self.writers.start(async move {
                        let failure = write_taints(&edge, &node, &uid, &change).await.err();
                        Done::Tainted { node, failure }
                    });
                }
            }
        }
    }

    /// Takes back a job. `away`: the API server did not answer lately, so this is no time for verdicts.
    pub fn finish(&mut self, done: Done, away: bool, now: Now) {
        match done {
            Done::Checked { node, live } => {
                self.judging.remove(&node);
                let live = match live {
                    _ if away => LiveLease::Failed,
                    Ok(lease) => LiveLease::Revision(lease.metadata.revision().0),
                    Err(ApiError::NotFound(_)) => LiveLease::Missing,
                    Err(error) => {
                        tracing::warn!(%node, %error, "no verdict about a silent node: its lease cannot be read");
                        LiveLease::Failed
                    }
                };
                let verdict = self.monitor.lease_checked(&node, live, now);
                if self.monitor.leases_behind() {
                    tracing::warn!(%node, "no verdicts: leases changed that the watch has not shown yet");
                }
                self.carry_out(verdict.into_iter().collect());
            }
            Done::Marked { node, failure, took } => {
                self.judging.remove(&node);
                self.metrics.judged(took);
                match failure {
                    None => tracing::info!(%node, "the node fell silent: its conditions are Unknown now"),
                    Some(error) => {
                        // Most often the node reported in the last moment.
                        tracing::info!(%node, %error, "the node was not marked silent");
                        self.next_check = self.next_check.min(now.tick + LOOK_AGAIN);
                    }
                }
            }
            Done::Tainted { node, failure } => {
                if let Some(error) = failure {
                    tracing::warn!(%node, %error, "taints could not be written");
                }
                if let Some(Some(change)) = self.tainting.remove(&node) {
                    self.queue_taints(node, change);
                }
            }
        }
    }

    fn tell(&self, node: &str, severity: Severity, reason: &str, message: String) {
        let uid = self.nodes.get(node).map_or("", |known| &*known.metadata.uid);
        self.edge
            .tell(&node_subject(node, uid), severity, reason, message);
    }
}
