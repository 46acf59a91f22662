//! How do Deployments become ReplicaSets, ReplicaSets and DaemonSets pods, and pods find nodes?
//!
//! One task owns a cache of Deployments, ReplicaSets, DaemonSets, pods and nodes, and up to five loops over it:
//! each has its own queue and its own writers, and each can be left out.

mod cleaning;
mod daemon_sets;
mod deployments;
mod pods;
mod replica_sets;
mod scheduling;
mod store;
mod write;

use crate::loops::Loop;
use crate::manager::Context;
use crate::writer::sleep_until;
use cleaning::Cleaning;
use daemon_sets::DaemonSets;
use deployments::Deployments;
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Client, Event as Seen, ObjectKey, Resource, Scope, Watcher};
use pointsman_workloads::Timestamp;
use pointsman_workloads::daemonset::DaemonSet;
use pointsman_workloads::deployment::Deployment;
use pointsman_workloads::pod::Pod;
use pointsman_workloads::replicaset::ReplicaSet;
use pointsman_workloads::scheduler::Node;
use replica_sets::ReplicaSets;
use scheduling::Scheduling;
use std::collections::BTreeSet;
use std::time::Duration;
use store::Store;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Events that may wait for the owner.
const INBOX: usize = 1024;

/// What the owner is told.
enum Input {
    Pod(Box<Pod>),
    Node(Box<Node>),
    Set(Box<ReplicaSet>),
    Deployment(Box<Deployment>),
    Daemon(Box<DaemonSet>),
    Gone(Source, ObjectKey),
    Listed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Pods,
    Nodes,
    Sets,
    Deployments,
    Daemons,
}

/// The time of one step, on both clocks.
#[derive(Clone, Copy, Debug)]
struct Now {
    tick: Duration,
    wall: Timestamp,
}

impl Now {
    /// The tick at which it will be this time.
    fn tick_at(self, at: Timestamp) -> Duration {
        let wait = at.duration_since(self.wall);
        self.tick + Duration::try_from(wait).unwrap_or(Duration::ZERO)
    }
}

/// What loops send with.
#[derive(Clone)]
struct Edge {
    client: Client,
    recorder: Recorder,
}

/// Whether any of these loops is wanted.
pub(crate) fn wanted(context: &Context) -> bool {
    let loops = &context.config.loops;
    [
        Loop::ReplicaSets,
        Loop::Deployments,
        Loop::DaemonSets,
        Loop::Scheduler,
        Loop::PodGarbage,
    ]
    .into_iter()
    .any(|which| loops.runs(which))
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
            done = owner.sets.writers.next() => owner.sets.finish(done, owner.store.now()),
            done = owner.deployments.writers.next() => owner.deployments.finish(done, owner.store.now()),
            done = owner.daemons.writers.next() => owner.daemons.finish(done, owner.store.now()),
            done = owner.scheduling.writers.next() => owner.scheduling.finish(done, owner.store.now()),
            done = owner.cleaning.writers.next() => owner.cleaning.finish(done),
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
fn watch(context: &Context, sender: mpsc::Sender<Input>) -> (JoinSet<()>, BTreeSet<Source>) {
    let loops = &context.config.loops;
    let mut tasks = JoinSet::new();
    let mut sources = BTreeSet::from([Source::Pods]);
    let client = || context.client.clone();
    let pods = Watcher::new(client(), Scope::all(Resource::PODS));
    tasks.spawn(pods.forward(sender.clone(), |event| {
        input(event, Source::Pods, |pod| Input::Pod(Box::new(pod)))
    }));
    let of_nodes = [Loop::Scheduler, Loop::PodGarbage, Loop::DaemonSets];
    if of_nodes.into_iter().any(|which| loops.runs(which)) {
        sources.insert(Source::Nodes);
        let nodes = Watcher::new(client(), Scope::all(Resource::NODES));
        tasks.spawn(nodes.forward(sender.clone(), |event| {
            input(event, Source::Nodes, |node| Input::Node(Box::new(node)))
        }));
    }
    if loops.runs(Loop::ReplicaSets) || loops.runs(Loop::Deployments) {
        sources.insert(Source::Sets);
        let sets = Watcher::new(client(), Scope::all(Resource::REPLICA_SETS));
        tasks.spawn(sets.forward(sender.clone(), |event| {
            input(event, Source::Sets, |set| Input::Set(Box::new(set)))
        }));
    }
    if loops.runs(Loop::DaemonSets) {
        sources.insert(Source::Daemons);
        let daemons = Watcher::new(client(), Scope::all(Resource::DAEMON_SETS));
        tasks.spawn(daemons.forward(sender.clone(), |event| {
            input(event, Source::Daemons, |daemon| Input::Daemon(Box::new(daemon)))
        }));
    }
    if loops.runs(Loop::Deployments) {
        sources.insert(Source::Deployments);
        let deployments = Watcher::new(client(), Scope::all(Resource::DEPLOYMENTS));
        tasks.spawn(deployments.forward(sender, |event| {
            input(event, Source::Deployments, |deployment| {
                Input::Deployment(Box::new(deployment))
            })
        }));
    }
    (tasks, sources)
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
    store: Store,
    missing: BTreeSet<Source>,
    sets: ReplicaSets,
    deployments: Deployments,
    daemons: DaemonSets,
    scheduling: Scheduling,
    cleaning: Cleaning,
    start: Instant,
}

impl Owner {
    fn new(context: &Context, sources: BTreeSet<Source>) -> Self {
        let config = &context.config;
        let edge = Edge {
            client: context.client.clone(),
            recorder: context.recorder.clone(),
        };
        let start = Instant::now();
        Self {
            store: Store::new(start),
            missing: sources,
            sets: ReplicaSets::new(
                edge.clone(),
                config.loops.runs(Loop::ReplicaSets),
                config.workload_writers,
            ),
            deployments: Deployments::new(
                edge.clone(),
                config.loops.runs(Loop::Deployments),
                config.workload_writers,
            ),
            daemons: DaemonSets::new(
                edge.clone(),
                config.loops.runs(Loop::DaemonSets),
                config.workload_writers,
            ),
            scheduling: Scheduling::new(edge.clone(), config.loops.runs(Loop::Scheduler)),
            cleaning: Cleaning::new(
                edge,
                config.loops.runs(Loop::PodGarbage),
                config.terminated_pod_threshold,
                start,
            ),
            start,
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.store.now();
        let change = match input {
            Input::Pod(pod) => self.store.apply_pod(*pod),
            Input::Node(node) => self.store.apply_node(*node),
            Input::Set(set) => self.store.apply_set(*set),
            Input::Deployment(deployment) => self.store.apply_deployment(*deployment),
            Input::Daemon(daemon) => self.store.apply_daemon(*daemon),
            Input::Gone(Source::Daemons, key) => self.store.remove_daemon(&key),
            Input::Gone(Source::Pods, key) => self.store.remove_pod(&key),
            Input::Gone(Source::Nodes, key) => self.store.remove_node(key.name()),
            Input::Gone(Source::Sets, key) => self.store.remove_set(&key),
            Input::Gone(Source::Deployments, key) => self.store.remove_deployment(&key),
            Input::Listed(source) => {
                if self.missing.remove(&source) && self.missing.is_empty() {
                    tracing::info!(
                        pods = self.store.pods().count(),
                        "workloads: first lists are complete"
                    );
                }
                return;
            }
        };
        self.sets.observe(&self.store, &change, now);
        self.deployments.observe(&self.store, &change, now);
        self.daemons.observe(&self.store, &change, now);
        self.scheduling.observe(&change, now);
    }

    fn start_work(&mut self) {
        if !self.missing.is_empty() {
            return;
        }
        let now = self.store.now();
        self.sets.start(&self.store, now);
        self.deployments.start(&self.store, now);
        self.daemons.start(&self.store, now);
        self.scheduling.start(&self.store, now);
        self.cleaning.start(&self.store, now);
    }

    /// When a wait of one of the loops is over.
    fn wake_at(&self) -> Option<Instant> {
        let wakes = [
            self.sets.wake_at(),
            self.deployments.wake_at(),
            self.daemons.wake_at(),
            self.scheduling.wake_at(),
            self.cleaning.wake_at(),
        ];
        let first = wakes
            .into_iter()
            .flatten()
            .min()
            .filter(|_| self.missing.is_empty());
        first.map(|tick| self.start + tick)
    }

    async fn drain(self) {
        self.sets.writers.drain().await;
        self.deployments.writers.drain().await;
        self.daemons.writers.drain().await;
        self.scheduling.writers.drain().await;
        self.cleaning.writers.drain().await;
    }
}
