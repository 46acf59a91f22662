//! Who owns what is known of nodes, and which loop sees what?

use super::eviction::Evictions;
use super::ipam::Ipam;
use super::lifecycle::{Done, Lifecycle};
use super::marking::Marking;
use super::pods::Pods;
use super::reporting::Reporting;
use super::server_check::ServerCheck;
use super::{Edge, Input, Source, Wanted};
use crate::manager::Context;
use pointsman_api_client::ObjectKey;
use pointsman_model::{Moment, Text};
use pointsman_node_health::Now;
use pointsman_objects::{Node, Pod};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The one task's state.
pub(super) struct Owner {
    start: Instant,
    wanted: Wanted,
    /// Collections whose first list is not complete; nothing is decided before.
    missing: BTreeSet<Source>,
    pods: Pods,
    pub lifecycle: Lifecycle,
    pub marking: Marking,
    pub evictions: Evictions,
    pub ipam: Ipam,
    pub reporting: Reporting,
    pub server_check: ServerCheck,
}

impl Owner {
    pub fn new(context: &Context, wanted: Wanted, sources: BTreeSet<Source>) -> Self {
        let edge = Edge {
            client: context.client.clone(),
            recorder: context.recorder.clone(),
        };
        let (config, metrics) = (&context.config.nodes, &context.metrics.nodes);
        Self {
            start: Instant::now(),
            wanted,
            missing: sources,
            pods: Pods::default(),
            lifecycle: Lifecycle::new(edge.clone(), config.health, metrics.health.clone()),
            marking: Marking::new(edge.clone()),
            evictions: Evictions::new(edge.clone(), wanted.eviction, metrics.evictions.clone()),
            ipam: Ipam::new(
                edge.clone(),
                wanted.ranges,
                &config.ranges,
                metrics.ranges.clone(),
            ),
            reporting: Reporting::new(edge.clone(), config.health),
            server_check: ServerCheck::new(edge),
        }
    }

    /// The time on the monotonic clock.
    pub fn tick(&self) -> Duration {
        self.start.elapsed()
    }

    fn now(&self) -> Now {
        Now {
            tick: self.tick(),
            wall: Moment::from(jiff::Timestamp::now()),
        }
    }

    pub fn take(&mut self, input: Input) {
        match input {
            Input::Node(node) => self.node_seen(&node),
            Input::Pod(pod) => self.pod_seen(pod),
            Input::Lease(renewal) => self.lifecycle.monitor.observe_lease(&renewal, self.now()),
            Input::Settings(map) => {
                if let Some(settings) = self.reporting.observe(&map) {
                    self.lifecycle.set_settings(settings, self.now());
                }
            }
            Input::Gone(source, key) => self.gone(source, &key),
            Input::Listing(Source::Leases) => self.lifecycle.monitor.leases_restart(),
            Input::Listing(_) => {}
            Input::Listed(source) => {
                if self.missing.remove(&source) && self.missing.is_empty() {
                    self.server_check.begin(self.tick());
                    tracing::info!("nodes: first lists are complete");
                }
            }
        }
    }

    fn node_seen(&mut self, node: &Arc<Node>) {
        let now = self.now();
        let metadata = &node.metadata;
        self.ipam
            .observe(&metadata.name, &metadata.uid, &node.pod_cidrs, now.tick);
        self.evictions.node_seen(node, &self.pods, now.tick);
        if self.wanted.lifecycle {
            let listed = !self.missing.contains(&Source::Nodes);
            let silent = self.lifecycle.observe(node, listed, now);
            self.mark(&silent, now.tick);
        }
    }

    fn pod_seen(&mut self, pod: Arc<Pod>) {
        let now = self.tick();
        self.evictions.pod_seen(&pod, &self.pods, now);
        let place = |pod: &Pod| (pod.node_name.clone(), pod.metadata.uid.clone());
        let before = self.pods.apply(pod.clone());
        let arrived = before.is_none_or(|before| place(&before) != place(&pod));
        if arrived && self.wanted.lifecycle {
            self.marking.pod_arrived(&pod, &self.lifecycle.monitor, now);
        }
    }

    fn gone(&mut self, source: Source, key: &ObjectKey) {
        match source {
            Source::Nodes => {
                self.ipam.gone(key.name(), self.tick());
                self.evictions.node_gone(key.name());
                self.lifecycle.gone(key.name());
            }
            Source::Pods => {
                let key = (key.namespace().into(), key.name().into());
                self.pods.remove(&key);
                self.evictions.pod_gone(&key);
            }
            Source::Leases => self.lifecycle.monitor.remove_lease(key.name()),
            Source::Settings => self.reporting.gone(),
        }
    }

    pub fn lifecycle_done(&mut self, done: Done) {
        let now = self.now();
        let away = self.server_check.is_away(now.tick, self.period());
        self.lifecycle.finish(done, away, now);
    }

    /// The API server answered, or did not.
    pub fn answered(&mut self, answered: bool) {
        let now = self.tick();
        if let Some(outage) = self.server_check.finish(answered, now, self.period()) {
            self.lifecycle.monitor.forgive(outage, now);
            self.evictions.forgive(outage);
        }
    }

    fn period(&self) -> Duration {
        self.lifecycle.monitor.settings().monitor_period
    }

    fn mark(&mut self, nodes: &[Text], now: Duration) {
        for node in nodes {
            tracing::info!(%node, "marking the pods of a node not ready");
            self.marking.mark_node(node, &self.pods, now);
        }
    }

    pub fn start_work(&mut self) {
        if !self.missing.is_empty() {
            return;
        }
        let now = self.now();
        self.ipam.start(now.tick);
        if !self.wanted.lifecycle && !self.wanted.eviction {
            return;
        }
        self.server_check.start(now.tick, self.period());
        if self.server_check.is_away(now.tick, self.period()) {
            return;
        }
        if self.wanted.lifecycle {
            let silent = self.lifecycle.tick(now);
            self.mark(&silent, now.tick);
            self.marking.start(&self.pods, &self.lifecycle.monitor, now.tick);
            self.reporting.start(now.tick);
        }
        self.evictions.start(&self.pods, now.tick);
    }

    /// When a wait of one of the loops is over.
    pub fn wake_at(&self) -> Option<Instant> {
        if !self.missing.is_empty() {
            return None;
        }
        let now = self.tick();
        let Wanted {
            lifecycle, eviction, ..
        } = self.wanted;
        let away = self.server_check.is_away(now, self.period());
        let wakes = [
            (lifecycle && !away, self.lifecycle.wake_at(now)),
            (lifecycle && !away, self.marking.wake_at()),
            (lifecycle && !away, self.reporting.wake_at()),
            (eviction && !away, self.evictions.wake_at()),
            (lifecycle || eviction, self.server_check.wake_at()),
            (true, self.ipam.wake_at()),
        ];
        let first = wakes
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .filter_map(|(_, at)| at)
            .min();
        first.map(|tick| self.start + tick)
    }

    pub async fn drain(self) {
        self.lifecycle.writers.drain().await;
        self.marking.writers.drain().await;
        self.evictions.writers.drain().await;
        self.ipam.writers.drain().await;
        self.reporting.writers.drain().await;
        self.server_check.writers.drain().await;
    }
}
