//! How do pods become EndpointSlices, and the classic Endpoints, on a running cluster?
//!
//! Watches feed one task that owns the [`Controller`]; jobs go to writers and come back with what the
//! server answered. A lone change is written at once; changes that come while their Service is being
//! written are merged into the next write.

mod classic;
mod metrics;
mod mirror;
mod reachability;
mod send;
mod withdrawn;

use crate::loops::Loop;
use crate::manager::Context;
use crate::shared::{NODE_LEASES, Shared, leases};
use crate::writer::{Writers, sleep_until};
use classic::Classic;
use mirror::Mirrors;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{ApiError, Client, Event as Seen, ObjectKey, Resource, Scope, Watcher};
use pointsman_model::{Moment, Text};
use pointsman_objects::endpoints::Endpoints;
use pointsman_objects::{Interner, Lease, Service};
use pointsman_slices::ServiceKey;
use pointsman_slices::controller::{Controller, Event, Job, Now, Step};
use pointsman_slices::queue::Pace;
use reachability::Peers;
use send::{Sent, send};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use metrics::Metrics;
pub use reachability::Metrics as ReachabilityMetrics;

/// Events that may wait for the owner.
const INBOX: usize = 1024;
/// How long a change waits at least before it is written to the classic Endpoints as well. The store commits one
/// group of writes after the other, and the rules of every node wait for the slice, not for these.
const AFTER_SLICES: Duration = Duration::from_millis(25);
/// How long the first list of Leases is waited for. Without it nothing is withdrawn, but slices are written: a missing
/// right to read Leases must not stop them.
const LEASES_WAIT: Duration = Duration::from_secs(2);

/// What the owner gets.
enum Input {
    Event(Event),
    /// An Endpoints object as it is now.
    Endpoints(ObjectKey, Box<Endpoints>),
    /// An Endpoints object is gone.
    EndpointsGone(ObjectKey),
    /// A Lease that may say whom a node reaches.
    Lease(Arc<Lease>),
    /// A node's Lease is gone.
    LeaseGone(Text),
    /// A source's list is complete.
    Listed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Pods,
    Services,
    Nodes,
    Slices,
    Endpoints,
    Leases,
}

/// Runs until it is asked to stop; ends at once when dropped.
pub(crate) fn run(context: Context, shared: &mut Shared) -> impl Future<Output = ()> + Send + use<> {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (mut tasks, sources) = watch(&context, shared, sender);
    let (tell, withdrawn) = tokio::sync::watch::channel(None);
    if context.config.peer_leases.is_some() {
        tasks.spawn(withdrawn::publish(context.client.clone(), withdrawn));
    }
    work(context, inbox, tasks, sources, tell)
}

async fn work(
    context: Context,
    mut inbox: mpsc::Receiver<Input>,
    _tasks: JoinSet<()>,
    sources: BTreeSet<Source>,
    withdrawn: tokio::sync::watch::Sender<Option<withdrawn::List>>,
) {
    let mut stop = context.stop.clone();
    let mut owner = Owner::new(context, sources, withdrawn);
    let mut batch = Vec::with_capacity(INBOX);
    loop {
        let alarm = owner.wake_at();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            sent = owner.writers.next() => owner.finish(sent),
            done = next_classic(&mut owner.classic) => owner.finish_classic(done),
            done = next_mirror(&mut owner.mirrors) => owner.finish_mirror(done),
            count = inbox.recv_many(&mut batch, INBOX) => {
                assert!(count > 0, "watches never end");
                batch.drain(..).for_each(|input| owner.take(input));
            }
            () = sleep_until(alarm) => {}
        }
        owner.judge_nodes();
        owner.start_jobs();
    }
    drop(inbox);
    owner.writers.drain().await;
    if let Some(classic) = owner.classic {
        classic.writers.drain().await;
    }
    if let Some(mirrors) = owner.mirrors {
        mirrors.writers.drain().await;
    }
}

async fn next_classic(classic: &mut Option<Classic>) -> classic::Done {
    match classic {
        Some(classic) => classic.writers.next().await,
        None => std::future::pending().await,
    }
}

async fn next_mirror(mirrors: &mut Option<Mirrors>) -> mirror::Done {
    match mirrors {
        Some(mirrors) => mirrors.writers.next().await,
        None => std::future::pending().await,
    }
}

/// Subscribes to what is shared and starts the other watches, which end with the returned set.
fn watch(
    context: &Context,
    shared: &mut Shared,
    sender: mpsc::Sender<Input>,
) -> (JoinSet<()>, BTreeSet<Source>) {
    let client = &context.client;
    let mut tasks = JoinSet::new();
    let mut sources = BTreeSet::from([Source::Pods, Source::Services, Source::Nodes, Source::Slices]);
    shared.pods.subscribe(sender.clone(), |event| match event {
        Seen::Init => None,
        Seen::Applied { object, .. } => Some(Input::Event(Event::Pod(object.clone()))),
        Seen::Deleted { key, .. } => Some(gone(key, Event::PodGone)),
        Seen::Synced(_) => Some(Input::Listed(Source::Pods)),
    });
    shared.nodes.subscribe(sender.clone(), |event| match event {
        Seen::Init => None,
        Seen::Applied { object, .. } => Some(Input::Event(Event::Node(object.clone()))),
        Seen::Deleted { key, .. } => Some(Input::Event(Event::NodeGone(key.name().into()))),
        Seen::Synced(_) => Some(Input::Listed(Source::Nodes)),
    });
    let mut interner = Interner::default();
    let services = Watcher::<Service>::new(client.clone(), Scope::all(Resource::SERVICES));
    tasks.spawn(services.forward(sender.clone(), move |event| match event {
        Seen::Init => None,
        Seen::Applied { mut object, .. } => {
            object.intern(&mut interner);
            Some(Input::Event(Event::Service(Arc::new(object))))
        }
        Seen::Deleted { key, .. } => {
            let key = ServiceKey::new(key.namespace(), key.name());
            Some(Input::Event(Event::ServiceGone(key)))
        }
        Seen::Synced(_) => Some(Input::Listed(Source::Services)),
    }));
    let slices = Watcher::new(client.clone(), Scope::all(Resource::ENDPOINT_SLICES));
    tasks.spawn(slices.forward(sender.clone(), |event| match event {
        Seen::Init => None,
        Seen::Applied { object, .. } => Some(Input::Event(Event::Slice(Box::new(object)))),
        Seen::Deleted { key, .. } => Some(gone(&key, Event::SliceGone)),
        Seen::Synced(_) => Some(Input::Listed(Source::Slices)),
    }));
    if let Some(namespace) = &context.config.peer_leases {
        sources.insert(Source::Leases);
        let opinions = |event: &Seen<Arc<Lease>>| match event {
            Seen::Init => None,
            Seen::Applied { object, .. } => Some(Input::Lease(Arc::clone(object))),
            Seen::Deleted { key, .. } => Some(Input::LeaseGone(key.name().into())),
            Seen::Synced(_) => Some(Input::Listed(Source::Leases)),
        };
        match namespace.as_str() {
            NODE_LEASES => shared.leases.subscribe(sender.clone(), opinions),
            other => {
                let mut own = leases(client, other);
                own.subscribe(sender.clone(), opinions);
                tasks.spawn(own.run());
            }
        }
    }
    let loops = &context.config.loops;
    if loops.runs(Loop::Endpoints) || loops.runs(Loop::Mirroring) {
        sources.insert(Source::Endpoints);
        let endpoints = Watcher::new(client.clone(), Scope::all(Resource::ENDPOINTS));
        tasks.spawn(endpoints.forward(sender, |event| match event {
            Seen::Init => None,
            Seen::Applied { key, object, .. } => Some(Input::Endpoints(key, Box::new(object))),
            Seen::Deleted { key, .. } => Some(Input::EndpointsGone(key)),
            Seen::Synced(_) => Some(Input::Listed(Source::Endpoints)),
        }));
    }
    (tasks, sources)
}

fn gone(key: &ObjectKey, event: fn(Text, Text) -> Event) -> Input {
    Input::Event(event(key.namespace().into(), key.name().into()))
}

/// The one task's state.
struct Owner {
    controller: Controller,
    writers: Writers<Sent>,
    client: Client,
    recorder: Recorder,
    metrics: Metrics,
    /// Whether slices are written; without that their cache only serves the classic loop.
    writes_slices: bool,
    classic: Option<Classic>,
    mirrors: Option<Mirrors>,
    /// Nodes that others do not reach, if that counts.
    peers: Option<Peers>,
    /// Sources whose first list is not complete.
    missing: BTreeSet<Source>,
    ready: tokio::sync::watch::Sender<bool>,
    start: Instant,
}

impl Owner {
    fn new(
        context: Context,
        sources: BTreeSet<Source>,
        withdrawn: tokio::sync::watch::Sender<Option<withdrawn::List>>,
    ) -> Self {
        let config = &context.config;
        let mut controller = Controller::new(config.slices, config.slice_pace, context.former);
        let classic = config.loops.runs(Loop::Endpoints).then(|| {
            controller.keep_touched();
            let pace = Pace {
                batch_period: config.slice_pace.batch_period.max(AFTER_SLICES),
                ..config.slice_pace
            };
            Classic::new(context.client.clone(), pace, config.endpoint_writers)
        });
        let recorder = context.recorder.clone();
        let mirrors = config.loops.runs(Loop::Mirroring).then(|| {
            let (client, recorder) = (context.client.clone(), context.recorder.clone());
            Mirrors::new(client, recorder, config.slice_pace, config.endpoint_writers)
        });
        let reachability = context.metrics.reachability.clone();
        let peers = config.peer_leases.is_some();
        let peers = peers.then(|| Peers::new(recorder, reachability, withdrawn));
        let mut metrics = context.metrics.slices;
        metrics.reset();
        Self {
            controller,
            writes_slices: config.loops.runs(Loop::EndpointSlices),
            classic,
            mirrors,
            peers,
            missing: sources,
            writers: Writers::new(config.slice_writers),
            client: context.client,
            recorder: context.recorder,
            metrics,
            ready: context.ready,
            start: Instant::now(),
        }
    }

    fn now(&self) -> Now {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            moment: Moment::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            tick: self.start.elapsed(),
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => {
                if let Event::ServiceGone(key) = &event {
                    self.metrics.forget(key);
                }
                match (&event, &mut self.peers) {
                    (Event::Node(node), Some(peers)) => peers.node(node),
                    (Event::NodeGone(name), Some(peers)) => peers.node_gone(name),
                    _ => {}
                }
                self.observe(event);
            }
            Input::Lease(lease) => {
                let (wall, now) = (self.now().moment, self.start.elapsed());
                if let Some(peers) = &mut self.peers {
                    peers.lease(&lease, wall, now);
                }
            }
            Input::LeaseGone(name) => {
                if let Some(peers) = &mut self.peers {
                    peers.lease_gone(&name);
                }
            }
            Input::Endpoints(key, endpoints) => {
                let now = self.now();
                if let Some(mirrors) = &mut self.mirrors {
                    mirrors.seen(self.controller.index(), &key, &endpoints, now);
                }
                if let Some(classic) = &mut self.classic {
                    classic.seen(&key, *endpoints, now);
                }
            }
            Input::EndpointsGone(key) => {
                let now = self.now();
                if let Some(mirrors) = &mut self.mirrors {
                    mirrors.gone(&key, now);
                }
                if let Some(classic) = &mut self.classic {
                    classic.gone(&key, now);
                }
            }
            Input::Listed(source) => {
                if self.missing.remove(&source) && self.missing.is_empty() {
                    self.all_listed();
                }
            }
        }
    }

    fn observe(&mut self, event: Event) {
        let now = self.now();
        if let (Some(mirrors), Event::SliceGone(namespace, name)) = (&mut self.mirrors, &event) {
            let slice = self.controller.index().slice(namespace, name);
            slice.into_iter().for_each(|slice| mirrors.slice_gone(slice, now));
        }
        // Nearly all events are about pods, which mirrors do not read.
        let mirrored = self
            .mirrors
            .as_ref()
            .filter(|_| mirror::reads(&event))
            .map(|_| event.clone());
        self.controller.observe(event, now);
        if let (Some(mirrors), Some(event)) = (&mut self.mirrors, mirrored) {
            mirrors.observe(self.controller.index(), &event, now);
        }
        if let Some(classic) = &mut self.classic {
            let touched = self.controller.take_touched();
            classic.touched(self.controller.index(), touched, now);
        }
    }

    /// Takes endpoints out of use, or back into it, by what nodes say of each other.
    fn judge_nodes(&mut self) {
        let now = self.start.elapsed();
        if self.lacks_only_leases() && now >= LEASES_WAIT {
            tracing::warn!(
                "Leases cannot be listed: no node is withdrawn by what others say of it until they can"
            );
            self.take(Input::Listed(Source::Leases));
        }
        let listed = self.missing.is_empty();
        if let Some(peers) = self.peers.as_mut().filter(|_| listed) {
            let nodes = peers.decide(now);
            if !nodes.is_empty() {
                self.observe(Event::Withdrawn(nodes));
            }
        }
    }

    fn lacks_only_leases(&self) -> bool {
        self.missing.iter().eq([&Source::Leases])
    }

    fn all_listed(&mut self) {
        let now = self.now();
        let index = self.controller.index();
        let (pods, services) = (index.pod_count(), index.services().count());
        tracing::info!(pods, services, "endpoints: first lists are complete");
        self.controller.observe(Event::Listed, now);
        if let Some(classic) = &mut self.classic {
            classic.listed(self.controller.index(), now);
        }
        if let Some(mirrors) = &mut self.mirrors {
            mirrors.listed(self.controller.index(), now);
        }
        self.ready.send_replace(true);
    }

    /// When a batch period or a wait after a failure is over.
    fn wake_at(&self) -> Option<Instant> {
        if self.lacks_only_leases() {
            return Some(self.start + LEASES_WAIT);
        }
        let slices = self
            .controller
            .wake_at()
            .filter(|_| self.writes_slices && self.writers.has_room());
        let classic = self.classic.as_ref().and_then(Classic::wake_at);
        let mirrors = self.mirrors.as_ref().and_then(Mirrors::wake_at);
        let peers = self.peers.as_ref().and_then(Peers::wake_at);
        let first = slices
            .into_iter()
            .chain(classic)
            .chain(mirrors)
            .chain(peers)
            .min()
            .filter(|_| self.missing.is_empty());
        first.map(|tick| self.start + tick)
    }

    fn finish_classic(&mut self, done: classic::Done) {
        let now = self.now();
        if let Some(classic) = &mut self.classic {
            classic.finish(done, now);
        }
    }

    fn finish_mirror(&mut self, done: mirror::Done) {
        let now = self.now();
        if let Some(mirrors) = &mut self.mirrors {
            mirrors.finish(done, now);
        }
    }

    fn start_jobs(&mut self) {
        let now = self.now();
        if let Some(mirrors) = &mut self.mirrors {
            mirrors.start(self.controller.index(), now);
        }
        if let Some(classic) = &mut self.classic {
            classic.start(self.controller.index(), now);
        }
        while self.writes_slices && self.writers.has_room() {
            let now = self.now();
            let (job, steps) = self.controller.next(now);
            for (key, step) in steps {
                if step == Step::Stale {
                    tracing::debug!(service = %key, "the cache lacks our own last write");
                    self.metrics.stale();
                }
            }
            let Some(job) = job else { return };
            if job.plan.is_empty() {
                let nothing = Sent {
                    job: Arc::new(job),
                    written: Vec::new(),
                    error: None,
                };
                self.finish(nothing);
                continue;
            }
            self.writers.start(send(self.client.clone(), Arc::new(job)));
        }
    }

    fn finish(&mut self, sent: Sent) {
        let Sent { job, written, error } = sent;
        let service = self.controller.index().service(&job.key).cloned();
        let now = self.now();
        match error {
            Some(ApiError::NamespaceTerminating(_)) => self.controller.give_up(&job, &written, now),
            _ => self.controller.finish(&job, &written, now),
        }
        self.metrics
            .synced(&job, service.as_deref(), written.len(), error.is_some());
        if let Some(service) = &service {
            self.tell(service, &job, error.as_ref());
        }
        self.metrics.backlog(self.controller.backlog());
    }

    /// Tells the Service's owner what they should know.
    fn tell(&self, service: &Service, job: &Job, error: Option<&ApiError>) {
        match error {
            // Somebody else wrote in between: the next look settles it.
            Some(ApiError::Conflict(_) | ApiError::NotFound(_)) => {
                tracing::debug!(service = %job.key, error = ?error, "slices are written again");
            }
            Some(ApiError::NamespaceTerminating(_)) => {}
            Some(error) => {
                if !error.is_missing_right() {
                    tracing::warn!(service = %job.key, %error, "slices could not be written");
                }
                let message = format!("Error updating Endpoint Slices for Service {}: {error}", job.key);
                self.record(
                    service,
                    Severity::Warning,
                    "FailedToUpdateEndpointSlices",
                    message,
                );
            }
            None => {}
        }
        for pod in &job.plan.skipped_pods {
            tracing::debug!(service = %job.key, pod = %pod, "a pod is left out: its node is not known");
        }
        use pointsman_slices::hints::HintEvent;
        for event in &job.plan.events {
            let severity = match event {
                HintEvent::Enabled(_) if !job.hints_enabled => continue,
                HintEvent::Enabled(_) => Severity::Normal,
                HintEvent::Disabled(..) => Severity::Warning,
            };
            self.record(service, severity, event.reason(), event.message());
        }
    }

    fn record(&self, service: &Service, severity: Severity, reason: &str, message: String) {
        self.recorder.record(News {
            subject: Subject {
                api_version: "v1".into(),
                kind: "Service".into(),
                namespace: service.metadata.namespace.to_string(),
                name: service.metadata.name.to_string(),
                uid: service.metadata.uid.to_string(),
            },
            severity,
            reason: reason.into(),
            message,
        });
    }
}
