//! How do Deployments become ReplicaSets, ReplicaSets and other controllers pods, and pods find nodes?
//!
//! One task owns a cache of all these objects and the loops over it: each has its own queue and its own writers, and each
//! can be left out.

mod budgets;
mod cleaning;
mod daemon_sets;
mod deployments;
mod jobs;
mod parents;
mod pods;
mod replica_sets;
mod scheduling;
mod stateful_sets;
mod store;
mod work;
mod write;

use crate::loops::Loop;
use crate::manager::Context;
use crate::shared::Shared;
use crate::writer::sleep_until;
use budgets::Budgets;
use cleaning::Cleaning;
use deployments::Deployments;
use jobs::Strays;
use parents::Parents;
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Client, Event as Seen, ObjectKey, Resource, Scope, Watcher};
use pointsman_model::Moment;
use pointsman_objects::{
    DaemonSet, Deployment, Job, Node, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet,
};
use scheduling::Scheduling;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Kept, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use work::Work;

/// Events that may wait for the owner.
const INBOX: usize = 1024;

/// What the owner gets.
enum Input {
    Pod(Arc<Pod>),
    Node(Arc<Node>),
    PodGone(ObjectKey),
    NodeGone(ObjectKey),
    /// A change of an object that only these loops watch.
    Kept(Box<dyn FnOnce(&mut Store) -> Change + Send>),
    Listed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Pods,
    Nodes,
    Sets,
    Deployments,
    Daemons,
    Stateful,
    Jobs,
    Budgets,
}

/// The time of one step, on both clocks.
#[derive(Clone, Copy, Debug)]
struct Now {
    tick: Duration,
    wall: Moment,
}

impl Now {
    /// The tick at which it will be this time.
    fn tick_at(self, at: Moment) -> Duration {
        self.tick + at.since(self.wall)
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
        Loop::StatefulSets,
        Loop::Jobs,
        Loop::Disruption,
        Loop::Scheduler,
        Loop::PodGarbage,
    ]
    .into_iter()
    .any(|which| loops.runs(which))
}

/// Runs until it is asked to stop; ends at once when dropped.
pub(crate) fn run(context: Context, shared: &mut Shared) -> impl Future<Output = ()> + Send + use<> {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (watches, sources) = watch(&context, shared, sender);
    work(context, inbox, watches, sources)
}

async fn work(
    context: Context,
    mut inbox: mpsc::Receiver<Input>,
    _watches: JoinSet<()>,
    sources: BTreeSet<Source>,
) {
    let mut stop = context.stop.clone();
    let mut owner = Owner::new(&context, sources);
    let mut batch = Vec::with_capacity(INBOX);
    loop {
        let alarm = owner.wake_at();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            done = owner.sets.work.writers.next() => owner.sets.finish(done, owner.store.now()),
            done = owner.deployments.0.writers.next() => owner.deployments.0.finish(done, owner.store.now()),
            done = owner.daemons.work.writers.next() => owner.daemons.finish(done, owner.store.now()),
            done = owner.stateful.work.writers.next() => owner.stateful.finish(done, owner.store.now()),
            done = owner.jobs.work.writers.next() => owner.jobs.finish(done, owner.store.now()),
            done = owner.strays.0.writers.next() => owner.strays.0.finish(done, owner.store.now()),
            done = owner.budgets.0.writers.next() => owner.budgets.0.finish(done, owner.store.now()),
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

/// Subscribes to what is shared and starts the other watches that the loops need; those end with the
/// returned set.
fn watch(
    context: &Context,
    shared: &mut Shared,
    sender: mpsc::Sender<Input>,
) -> (JoinSet<()>, BTreeSet<Source>) {
    let loops = &context.config.loops;
    let mut watches = Watches {
        client: &context.client,
        sender: sender.clone(),
        tasks: JoinSet::new(),
        sources: BTreeSet::from([Source::Pods]),
    };
    shared.pods.subscribe(sender.clone(), |event| {
        shared_input(event, Source::Pods, |pod| Input::Pod(pod.clone()), Input::PodGone)
    });
    let of_nodes = [Loop::Scheduler, Loop::PodGarbage, Loop::DaemonSets];
    if of_nodes.into_iter().any(|which| loops.runs(which)) {
        watches.sources.insert(Source::Nodes);
        shared.nodes.subscribe(sender, |event| {
            shared_input(
                event,
                Source::Nodes,
                |node| Input::Node(node.clone()),
                Input::NodeGone,
            )
        });
    }
    let any = |which: &[Loop]| which.iter().any(|which| loops.runs(*which));
    if any(&[Loop::ReplicaSets, Loop::Deployments, Loop::Disruption]) {
        watches.add::<ReplicaSet>(Resource::REPLICA_SETS, Source::Sets);
    }
    if any(&[Loop::DaemonSets]) {
        watches.add::<DaemonSet>(Resource::DAEMON_SETS, Source::Daemons);
    }
    if any(&[Loop::Deployments, Loop::Disruption]) {
        watches.add::<Deployment>(Resource::DEPLOYMENTS, Source::Deployments);
    }
    if any(&[Loop::StatefulSets, Loop::Disruption]) {
        watches.add::<StatefulSet>(Resource::STATEFUL_SETS, Source::Stateful);
    }
    if any(&[Loop::Jobs]) {
        watches.add::<Job>(Resource::JOBS, Source::Jobs);
    }
    if any(&[Loop::Disruption]) {
        watches.add::<PodDisruptionBudget>(Resource::POD_DISRUPTION_BUDGETS, Source::Budgets);
    }
    (watches.tasks, watches.sources)
}

/// Watches of this loop alone.
struct Watches<'a> {
    client: &'a Client,
    sender: mpsc::Sender<Input>,
    tasks: JoinSet<()>,
    sources: BTreeSet<Source>,
}

impl Watches<'_> {
    fn add<T: Kept>(&mut self, resource: Resource, source: Source) {
        self.sources.insert(source);
        let watcher = Watcher::<T>::new(self.client.clone(), Scope::all(resource));
        let input = move |event| match event {
            Seen::Init => None,
            Seen::Applied { key, object, .. } => kept(key, Some(object)),
            Seen::Deleted { key, .. } => kept::<T>(key, None),
            Seen::Synced(_) => Some(Input::Listed(source)),
        };
        self.tasks.spawn(watcher.forward(self.sender.clone(), input));
    }
}

fn kept<T: Kept>(key: ObjectKey, object: Option<T>) -> Option<Input> {
    Some(Input::Kept(Box::new(move |store| store.put(key, object))))
}

fn shared_input<T>(
    event: &Seen<T>,
    source: Source,
    applied: impl Fn(&T) -> Input,
    gone: fn(ObjectKey) -> Input,
) -> Option<Input> {
    match event {
        Seen::Init => None,
        Seen::Applied { object, .. } => Some(applied(object)),
        Seen::Deleted { key, .. } => Some(gone(key.clone())),
        Seen::Synced(_) => Some(Input::Listed(source)),
    }
}

/// The one task's state.
struct Owner {
    store: Store,
    missing: BTreeSet<Source>,
    sets: Parents<ReplicaSet>,
    deployments: Deployments,
    daemons: Parents<DaemonSet>,
    stateful: Parents<StatefulSet>,
    jobs: Parents<Job>,
    strays: Strays,
    budgets: Budgets,
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
        let runs = |which| config.loops.runs(which);
        let writers = config.workload_writers;
        Self {
            store: Store::new(start),
            missing: sources,
            sets: Parents::new(edge.clone(), runs(Loop::ReplicaSets), writers),
            deployments: Deployments(Work::new(edge.clone(), runs(Loop::Deployments), writers)),
            daemons: Parents::new(edge.clone(), runs(Loop::DaemonSets), writers),
            stateful: Parents::new(edge.clone(), runs(Loop::StatefulSets), writers),
            jobs: Parents::new(edge.clone(), runs(Loop::Jobs), writers),
            strays: Strays(Work::new(edge.clone(), runs(Loop::Jobs), writers)),
            budgets: Budgets(Work::new(edge.clone(), runs(Loop::Disruption), writers)),
            scheduling: Scheduling::new(edge.clone(), runs(Loop::Scheduler)),
            cleaning: Cleaning::new(
                edge,
                runs(Loop::PodGarbage),
                config.terminated_pod_threshold,
                start,
            ),
            start,
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.store.now();
        let change = match input {
            Input::Pod(pod) => self.store.apply_pod(pod),
            Input::Node(node) => self.store.apply_node(node),
            Input::PodGone(key) => self.store.remove_pod(&key),
            Input::NodeGone(key) => self.store.remove_node(key.name()),
            Input::Kept(put) => put(&mut self.store),
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
        self.stateful.observe(&self.store, &change, now);
        self.jobs.observe(&self.store, &change, now);
        self.strays.observe(&self.store, &change, now);
        self.budgets.observe(&self.store, &change, now);
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
        self.stateful.start(&self.store, now);
        self.jobs.start(&self.store, now);
        self.strays.start(&self.store, now);
        self.budgets.start(&self.store, now);
        self.scheduling.start(&self.store, now);
        self.cleaning.start(&self.store, now);
    }

    /// When a wait of one of the loops is over.
    fn wake_at(&self) -> Option<Instant> {
        let wakes = [
            self.sets.work.wake_at(),
            self.deployments.0.wake_at(),
            self.daemons.work.wake_at(),
            self.stateful.work.wake_at(),
            self.jobs.work.wake_at(),
            self.strays.0.wake_at(),
            self.budgets.0.wake_at(),
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
        self.sets.work.writers.drain().await;
        self.deployments.0.writers.drain().await;
        self.daemons.work.writers.drain().await;
        self.stateful.work.writers.drain().await;
        self.jobs.work.writers.drain().await;
        self.strays.0.writers.drain().await;
        self.budgets.0.writers.drain().await;
        self.scheduling.writers.drain().await;
        self.cleaning.writers.drain().await;
    }
}
