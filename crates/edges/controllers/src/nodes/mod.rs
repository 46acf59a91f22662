//! Which nodes are alive, what follows when one is not, and which pod addresses does each get?
//!
//! One task owns what is known of nodes, their leases and pods, and three loops over it: node
//! lifecycle, taint eviction and pod address ranges. Each has its own writers and can be left out.

mod book;
mod eviction;
mod hearing;
mod ipam;
mod lifecycle;
mod marking;
mod metrics;
mod objects;
mod owner;
pub mod ranges;
mod reporting;
pub mod settings;
mod write;

use crate::loops::Loop;
use crate::manager::Context;
use crate::writer::sleep_until;
pub use metrics::Metrics;
use objects::{ConfigMap, NodeObject};
use owner::Owner;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{Client, Event as Seen, ObjectKey, Resource, Scope, Watcher};
use pointsman_node_health::evict::Pod;
use pointsman_node_health::{Lease, Settings};
use reporting::CONFIG_MAPS;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Events that may wait for the owner.
const INBOX: usize = 1024;

/// Renewals of leases gather for this long; a verdict takes many times longer.
const LEASES_GATHER: Duration = Duration::from_millis(100);
/// Reports of nodes gather for this long.
const NODES_GATHER: Duration = Duration::from_millis(20);

/// Settings of the node loops.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where nodes' pod address ranges are cut from; empty when somebody else gives them.
    pub ranges: Vec<ranges::ClusterRange>,
    /// How patient the cluster is with nodes, until the ConfigMap says otherwise.
    pub health: Settings,
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

/// Which of the loops run.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    lifecycle: bool,
    eviction: bool,
    ranges: bool,
}

impl Wanted {
    fn of(context: &Context) -> Self {
        let loops = &context.config.loops;
        Self {
            lifecycle: loops.runs(Loop::NodeLifecycle),
            eviction: loops.runs(Loop::TaintEviction),
            ranges: loops.runs(Loop::NodeIpam) && !context.config.nodes.ranges.is_empty(),
        }
    }
}

/// What the owner is told.
enum Input {
    Node(Box<NodeObject>),
    Pod(Box<Pod>),
    Lease(Lease),
    Settings(ConfigMap),
    Gone(Source, ObjectKey),
    Listing(Source),
    Listed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Nodes,
    Pods,
    Leases,
    Settings,
}

/// Whether any of these loops is wanted.
pub(crate) fn wanted(context: &Context) -> bool {
    let wanted = Wanted::of(context);
    wanted.lifecycle || wanted.eviction || wanted.ranges
}

/// Runs until it is asked to stop; ends at once when dropped.
pub(crate) async fn run(context: Context) {
    let mut stop = context.stop.clone();
    let wanted = Wanted::of(&context);
    let (sender, mut inbox) = mpsc::channel(INBOX);
    let (_watches, sources) = watch(&context.client, wanted, sender);
    let mut owner = Owner::new(&context, wanted, sources);
    let mut batch = Vec::with_capacity(INBOX);
    loop {
        let alarm = owner.wake_at();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            done = owner.lifecycle.writers.next() => owner.lifecycle_done(done),
            done = owner.marking.writers.next() => owner.marking.finish(done, owner.tick()),
            done = owner.evictions.writers.next() => owner.evictions.finish(done, owner.tick()),
            answered = owner.hearing.writers.next() => owner.answered(answered),
            done = owner.ipam.writers.next() => owner.ipam.finish(done, owner.tick()),
            done = owner.reporting.writers.next() => owner.reporting.finish(done, owner.tick()),
            count = inbox.recv_many(&mut batch, INBOX) => {
                assert!(count > 0, "watches never end");
                batch.drain(..).for_each(|input| owner.take(input));
            }
            () = sleep_until(alarm) => {}
        }
        owner.start_work();
    }
    drop(inbox);
    owner.drain().await;
}

/// Starts the watches that the wanted loops need; they end with the returned set.
fn watch(client: &Client, wanted: Wanted, sender: mpsc::Sender<Input>) -> (JoinSet<()>, BTreeSet<Source>) {
    let mut watches = Watches {
        client,
        sender,
        tasks: JoinSet::new(),
        sources: BTreeSet::new(),
    };
    watches.add(Source::Nodes, Scope::all(Resource::NODES), |node| {
        Input::Node(Box::new(node))
    });
    if wanted.lifecycle || wanted.eviction {
        watches.add(Source::Pods, Scope::all(Resource::PODS), |pod| {
            Input::Pod(Box::new(pod))
        });
    }
    if wanted.lifecycle {
        let leases = Scope {
            namespace: Some(write::LEASES.into()),
            ..Scope::all(Resource::LEASES)
        };
        watches.add(Source::Leases, leases, Input::Lease);
        let one = Scope {
            namespace: Some(settings::NAMESPACE.into()),
            ..Scope::all(CONFIG_MAPS).fields(&format!("metadata.name={}", settings::NAME))
        };
        watches.add(Source::Settings, one, Input::Settings);
    }
    (watches.tasks, watches.sources)
}

struct Watches<'a> {
    client: &'a Client,
    sender: mpsc::Sender<Input>,
    tasks: JoinSet<()>,
    sources: BTreeSet<Source>,
}

impl Watches<'_> {
    fn add<T: DeserializeOwned + Send + 'static>(
        &mut self,
        source: Source,
        scope: Scope,
        applied: fn(T) -> Input,
    ) {
        let watcher = Watcher::<T>::new(self.client.clone(), scope);
        self.sources.insert(source);
        let sender = self.sender.clone();
        let input = move |event| {
            Some(match event {
                Seen::Init => Input::Listing(source),
                Seen::Applied { object, .. } => applied(object),
                Seen::Deleted { key, .. } => Input::Gone(source, key),
                Seen::Synced(_) => Input::Listed(source),
            })
        };
        // Heartbeats are most of what comes.
        let gather = match source {
            Source::Leases => LEASES_GATHER,
            Source::Nodes => NODES_GATHER,
            Source::Pods | Source::Settings => {
                self.tasks.spawn(watcher.forward(sender, input));
                return;
            }
        };
        self.tasks
            .spawn(watcher.forward_in_bunches(sender, gather, input));
    }
}
