//! Which nodes are alive, what follows when one is not, and which pod addresses does each get?
//!
//! One task owns what is known of nodes, their leases and pods, and three loops over it: node
//! lifecycle, taint eviction and pod address ranges. Each has its own writers and can be left out.

mod book;
mod eviction;
mod ipam;
mod lifecycle;
mod marking;
mod metrics;
mod owner;
mod pods;
pub mod ranges;
mod reporting;
mod server_check;
pub mod settings;
mod write;

use crate::loops::Loop;
use crate::manager::Context;
use crate::shared::Shared;
use crate::writer::sleep_until;
pub use metrics::Metrics;
use owner::Owner;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{Client, Event as Seen, ObjectKey, Scope, Watcher};
use pointsman_node_health::{Renewal, Settings};
use pointsman_objects::{ConfigMap, Lease, Node, Pod};
use reporting::CONFIG_MAPS;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Events that may wait for the owner.
const INBOX: usize = 1024;

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

/// What the owner gets.
enum Input {
    Node(Arc<Node>),
    Pod(Arc<Pod>),
    Lease(Renewal),
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
pub(crate) fn run(context: Context, shared: &mut Shared) -> impl Future<Output = ()> + Send + use<> {
    let wanted = Wanted::of(&context);
    let (sender, inbox) = mpsc::channel(INBOX);
    let (watches, sources) = watch(&context.client, wanted, shared, &sender);
    work(context, wanted, inbox, watches, sources)
}

async fn work(
    context: Context,
    wanted: Wanted,
    mut inbox: mpsc::Receiver<Input>,
    _watches: JoinSet<()>,
    sources: BTreeSet<Source>,
) {
    let mut stop = context.stop.clone();
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
            answered = owner.server_check.writers.next() => owner.answered(answered),
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

/// Subscribes to what is shared and starts the other watches that the loops need; those end with the
/// returned set.
fn watch(
    client: &Client,
    wanted: Wanted,
    shared: &mut Shared,
    sender: &mpsc::Sender<Input>,
) -> (JoinSet<()>, BTreeSet<Source>) {
    let (mut tasks, mut sources) = (JoinSet::new(), BTreeSet::from([Source::Nodes]));
    let nodes = |event: &Seen<_>| input(event, Source::Nodes, |node| Input::Node(Arc::clone(node)));
    shared.nodes.subscribe(sender.clone(), nodes);
    if wanted.lifecycle || wanted.eviction {
        sources.insert(Source::Pods);
        let pods = |event: &Seen<_>| input(event, Source::Pods, |pod| Input::Pod(Arc::clone(pod)));
        shared.pods.subscribe(sender.clone(), pods);
    }
    if wanted.lifecycle {
        sources.extend([Source::Leases, Source::Settings]);
        let renewals =
            |event: &Seen<Arc<Lease>>| input(event, Source::Leases, |lease| Input::Lease(Renewal::of(lease)));
        shared.leases.subscribe(sender.clone(), renewals);
        let one = Scope {
            namespace: Some(settings::NAMESPACE.into()),
            ..Scope::all(CONFIG_MAPS).fields(&format!("metadata.name={}", settings::NAME))
        };
        let settings = |event| {
            input(&event, Source::Settings, |map: &ConfigMap| {
                Input::Settings(map.clone())
            })
        };
        tasks.spawn(Watcher::new(client.clone(), one).forward(sender.clone(), settings));
    }
    (tasks, sources)
}

fn input<T>(event: &Seen<T>, source: Source, applied: impl Fn(&T) -> Input) -> Option<Input> {
    Some(match event {
        Seen::Init => Input::Listing(source),
        Seen::Applied { object, .. } => applied(object),
        Seen::Deleted { key, .. } => Input::Gone(source, key.clone()),
        Seen::Synced(_) => Input::Listed(source),
    })
}
