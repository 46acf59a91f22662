//! Which nodes do the others not reach, so that their endpoints get no traffic?
//!
//! Leases carry the opinions, [`Reachability`] folds them, and every change of its verdict is told on the Node
//! and counted. Pods, conditions, taints and evictions are node lifecycle's and stay as they are.

use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_model::{Moment, Text};
use pointsman_node_health::peers::{Change, Limits, Reachability, Renewals, Votes};
use pointsman_objects::{Lease, Node};
use pointsman_protocol::peers;
use pointsman_telemetry::{Counter, Definition, Family, Gauge, Registry};
use std::time::Duration;
use tokio::sync::watch;

use super::withdrawn::List;

/// What is measured about nodes that others do not reach.
#[derive(Clone)]
pub struct Metrics {
    withdrawn: Gauge,
    seem_gone: Gauge,
    held: Gauge,
    changes: Family<Counter>,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            withdrawn: registry.gauge(Definition::new(
                "pointsman_controllers_withdrawn_nodes",
                "Nodes whose endpoints get no traffic because other nodes do not reach them.",
            )),
            seem_gone: registry.gauge(Definition::new(
                "pointsman_controllers_unreachable_nodes",
                "Nodes that most of their observers do not reach, withdrawn or not.",
            )),
            held: registry.gauge(Definition::new(
                "pointsman_controllers_withdrawals_held",
                "1 if more nodes seem gone, in a zone or in all, than may be withdrawn.",
            )),
            changes: registry.counters(
                Definition::new(
                    "pointsman_controllers_node_withdrawals_total",
                    "Nodes that were withdrawn from traffic and restored.",
                )
                .labels(&["change"]),
            ),
        }
    }
}

/// The fold, and what it is told with.
pub(super) struct Peers {
    fold: Reachability,
    renewals: Renewals,
    recorder: Recorder,
    metrics: Metrics,
    /// For others, once something was decided.
    list: watch::Sender<Option<List>>,
}

impl Peers {
    pub fn new(recorder: Recorder, metrics: Metrics, list: watch::Sender<Option<List>>) -> Self {
        Self {
            fold: Reachability::new(Limits::default()),
            renewals: Renewals::default(),
            recorder,
            metrics,
            list,
        }
    }

    /// A node without an address is not asked, so it does not count.
    pub fn node(&mut self, node: &Node) {
        match node.internal_addresses().next() {
            Some(_) => self
                .fold
                .observe_node(&node.metadata.name, &node.failure_domain().into()),
            None => self.fold.remove_node(&node.metadata.name),
        }
    }

    pub fn node_gone(&mut self, name: &str) {
        self.fold.remove_node(name);
    }

    /// What a Lease says, delivered when our clock says `wall`.
    pub fn lease(&mut self, lease: &Lease, wall: Moment, now: Duration) {
        let name = &lease.metadata.name;
        let renewed = lease.spec.renew_time.map(|time| Moment(time.0.as_microsecond()));
        if !self
            .renewals
            .observe(name, renewed, wall, Limits::default().fresh)
        {
            return;
        }
        match lease.metadata.annotations.get(peers::ANNOTATION) {
            Some(text) => self.fold.observe_opinions(name, peers::decode(text), now),
            None => self.fold.remove_opinions(name),
        }
    }

    pub fn lease_gone(&mut self, name: &str) {
        self.renewals.remove(name);
        self.fold.remove_opinions(name);
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.fold.wake_at()
    }

    /// Nodes whose endpoints are out of use from now on, or in use again.
    pub fn decide(&mut self, now: Duration) -> Vec<(Text, bool)> {
        let changes = self.fold.decide(now);
        self.metrics.seem_gone.set(self.fold.seem_gone() as f64);
        self.metrics.held.set(f64::from(self.fold.holds()));
        self.metrics.withdrawn.set(self.fold.withdrawn().len() as f64);
        let names = self.fold.withdrawn().map(|name| &**name);
        let names = peers::encode(names.take(peers::MOST_LISTED));
        let withdrawn = self.fold.withdrawn();
        let votes = withdrawn.map(|name| (&**name, self.fold.votes(name).to_string()));
        let votes = peers::encode_votes(votes);
        self.list.send_if_modified(|before| {
            // Votes that change meanwhile are worth no write of their own.
            let changed = before.as_ref().is_none_or(|before| before.names != names);
            *before = Some(List { names, votes });
            changed
        });
        let mut withdrawn = Vec::with_capacity(changes.len());
        for change in changes {
            let (node, votes, gone) = match change {
                Change::Withdrawn { node, votes } => (node, votes, true),
                Change::Restored { node, votes } => (node, votes, false),
            };
            self.tell(&node, &votes, gone);
            withdrawn.push((node, gone));
        }
        withdrawn
    }

    fn tell(&self, node: &Text, votes: &Votes, gone: bool) {
        let (severity, reason, change, message) = match gone {
            true => (
                Severity::Warning,
                peers::WITHDRAWN,
                "withdrawn",
                format!("Services send no traffic to the pods of {node}: {votes}"),
            ),
            false => (
                Severity::Normal,
                peers::RESTORED,
                "restored",
                format!("Services send traffic to the pods of {node} again: {votes}"),
            ),
        };
        tracing::info!(%node, %votes, "a node's endpoints are {change}");
        self.metrics.changes.with(&[change]).inc();
        self.recorder.record(News {
            subject: Subject {
                api_version: "v1".into(),
                kind: "Node".into(),
                namespace: String::new(),
                name: node.to_string(),
                // As kubelets write it, by which `kubectl describe node` finds it.
                uid: node.to_string(),
            },
            severity,
            reason: reason.into(),
            message,
        });
    }
}
