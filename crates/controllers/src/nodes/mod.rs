//! How do nodes get what the cluster owes them?
//!
//! One task owns what is known of nodes, and the loops over it; each has its own writers and can be
//! left out.

mod book;
mod ipam;
mod metrics;
pub mod ranges;

use crate::loops::Loop;
use crate::manager::Context;
use crate::writer::sleep_until;
use ipam::Ipam;
pub use metrics::Metrics;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{Client, Event as Seen, ObjectKey, Resource, Scope, Watcher};
use pointsman_node_health::node::Text;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Events that may wait for the owner.
const INBOX: usize = 1024;

/// Settings of the node loops.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where nodes' pod address ranges are cut from; empty when somebody else gives them.
    pub ranges: Vec<ranges::ClusterRange>,
}

/// What loops send with.
#[derive(Clone)]
struct Edge {
    client: Client,
    recorder: Recorder,
}

impl Edge {
    /// Tells people about an object.
    fn tell(&self, subject: &Subject, severity: Severity, reason: &str, message: String) {
        self.recorder.record(News {
            subject: subject.clone(),
            severity,
            reason: reason.into(),
            message,
        });
    }
}

fn node_subject(name: &str, uid: &str) -> Subject {
    Subject {
        api_version: "v1".into(),
        kind: "Node".into(),
        namespace: String::new(),
        name: name.into(),
        uid: uid.into(),
    }
}

/// What the owner is told.
enum Input {
    Node(Box<Node>),
    Gone(Source, ObjectKey),
    Listed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Nodes,
}

/// A node as these loops read it.
#[derive(Debug, Deserialize)]
struct Node {
    metadata: NodeMetadata,
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Debug, Deserialize)]
struct NodeMetadata {
    name: Text,
    uid: Text,
}

#[derive(Debug, Default, Deserialize)]
struct NodeSpec {
    #[serde(default, rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

/// Whether any of these loops is wanted.
pub(crate) fn wanted(context: &Context) -> bool {
    wants_ranges(context)
}

fn wants_ranges(context: &Context) -> bool {
    context.config.loops.runs(Loop::NodeIpam) && !context.config.nodes.ranges.is_empty()
}

/// Runs until it is asked to stop; ends at once when dropped.
pub(crate) async fn run(context: Context) {
    let mut stop = context.stop.clone();
    let (sender, mut inbox) = mpsc::channel(INBOX);
    let (_watches, sources) = watch(&context, sender);
    let mut owner = Owner::new(&context, sources);
    let mut batch = Vec::with_capacity(INBOX);
    loop {
        let alarm = owner.wake_at();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            done = owner.ipam.writers.next() => owner.ipam.finish(done, owner.start.elapsed()),
            count = inbox.recv_many(&mut batch, INBOX) => {
                assert!(count > 0, "watches never end");
                batch.drain(..).for_each(|input| owner.take(input));
            }
            () = sleep_until(alarm) => {}
        }
        owner.start_work();
    }
    drop(inbox);
    owner.ipam.writers.drain().await;
}

/// Starts the watches that the wanted loops need; they end with the returned set.
fn watch(context: &Context, sender: mpsc::Sender<Input>) -> (JoinSet<()>, BTreeSet<Source>) {
    let mut tasks = JoinSet::new();
    let nodes = Watcher::new(context.client.clone(), Scope::all(Resource::NODES));
    tasks.spawn(nodes.forward(sender, |event| {
        input(event, Source::Nodes, |node| Input::Node(Box::new(node)))
    }));
    (tasks, BTreeSet::from([Source::Nodes]))
}

fn input<T>(event: Seen<T>, source: Source, applied: impl Fn(T) -> Input) -> Option<Input> {
    match event {
        Seen::Init => None,
        Seen::Applied { object, .. } => Some(applied(object)),
        Seen::Deleted { key, .. } => Some(Input::Gone(source, key)),
        Seen::Synced(_) => Some(Input::Listed(source)),
    }
}

/// The one task's state.
struct Owner {
    missing: BTreeSet<Source>,
    ipam: Ipam,
    start: Instant,
}

impl Owner {
    fn new(context: &Context, sources: BTreeSet<Source>) -> Self {
        let edge = Edge {
            client: context.client.clone(),
            recorder: context.recorder.clone(),
        };
        let metrics = &context.metrics.nodes;
        Self {
            missing: sources,
            ipam: Ipam::new(
                edge,
                wants_ranges(context),
                &context.config.nodes.ranges,
                metrics.ranges.clone(),
            ),
            start: Instant::now(),
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.start.elapsed();
        match input {
            Input::Node(node) => {
                let NodeMetadata { name, uid } = &node.metadata;
                self.ipam.observe(name, uid, &node.spec.pod_cidrs, now);
            }
            Input::Gone(Source::Nodes, key) => self.ipam.gone(key.name(), now),
            Input::Listed(source) => {
                if self.missing.remove(&source) && self.missing.is_empty() {
                    tracing::info!("nodes: first lists are complete");
                }
            }
        }
    }

    fn start_work(&mut self) {
        if self.missing.is_empty() {
            self.ipam.start(self.start.elapsed());
        }
    }

    /// When a wait of one of the loops is over.
    fn wake_at(&self) -> Option<Instant> {
        let wake = [self.ipam.wake_at()].into_iter().flatten().min();
        let wake: Option<Duration> = wake.filter(|_| self.missing.is_empty());
        wake.map(|tick| self.start + tick)
    }
}
