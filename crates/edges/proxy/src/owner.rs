//! Who owns the state, and what does each event do to it?

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Event, ObjectKey};
use pointsman_dataplane::Watermark;
use pointsman_dataplane::convert::{ConvertedService, ConvertedSlice, FamilySlice, NodeFacts};
use pointsman_dataplane::health::SyncHealth;
use pointsman_dataplane::second_writer::{Traces, Writer};
use pointsman_dataplane::sync::Resource;
use pointsman_kernel::{Commits, Mode, counters, interfaces};
use pointsman_model::{Began, Moment, Revision, ServiceName, SliceName};
use pointsman_objects::compact;
use pointsman_peers::GoneNodes;
use pointsman_watermarks::Watermarks;
use tokio::sync::{mpsc, watch};

use crate::behind::BehindEvents;
use crate::config::{Config, NodeState};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::others::Others;
use crate::publisher::Publisher;
use crate::service_health::ServiceServers;
use crate::side::Side;
use crate::worker::Report;

/// How long the first sync waits for the Node, whose addresses some rules need (upstream's number).
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// What the watches deliver.
#[derive(Debug)]
pub(crate) enum Input {
    Service(Event<ConvertedService>),
    Slice(Event<ConvertedSlice>),
    Node(Box<Event<NodeFacts>>),
    ServiceRange(Event<compact::ServiceCidr>),
    /// Nodes that are gone, all of them.
    Gone(GoneNodes),
}

/// What the threads report.
#[derive(Debug)]
pub(crate) enum FamilyReport {
    V4(Report<Ipv4Addr>),
    V6(Report<Ipv6Addr>),
    /// What stands of other proxies.
    Others(Traces),
}

/// The state, and what is published of it.
pub(crate) struct Owner {
    config: Config,
    v4: Side<Ipv4Addr>,
    v6: Side<Ipv6Addr>,
    servers: ServiceServers,
    node: NodeState,
    node_eligible: bool,
    /// Before this, the first sync waits for the Node.
    node_awaited_until: Option<Instant>,
    next_check: Instant,
    /// When the node's interfaces are looked at again.
    next_look: Instant,
    service_ranges: ServiceRanges,
    metrics: Metrics,
    health: watch::Sender<Health>,
    publisher: Publisher,
    others: Others,
    behind: BehindEvents,
    /// Nodes to whose pods connections are ended.
    gone: GoneNodes,
    /// The API server's versions went back: its store was restored from a backup.
    history_lost: bool,
}

/// Whether a complete list is older than what came before it.
fn is_older(listed: Watermark, received: Watermark) -> bool {
    let older = |listed: Option<Revision>, received| listed.is_some() && listed < received;
    older(listed.services, received.services) || older(listed.slices, received.slices)
}

impl Owner {
    /// Starts the threads.
    pub fn start(
        config: Config,
        metrics: Metrics,
        watermarks: Watermarks,
        reports: mpsc::UnboundedSender<FamilyReport>,
        events: Recorder,
    ) -> std::io::Result<Self> {
        let now = Instant::now();
        let node = NodeState {
            interfaces: interfaces::addresses()?,
            conntrack_liberal: interfaces::conntrack_is_liberal(),
            named_counters: uses_counters(&config),
            ..NodeState::default()
        };
        let (health, watched) = watch::channel(Health {
            families: [SyncHealth::new(config.sync_period); 2],
            node_eligible: false,
            second_writer: None,
            behind: [None, None],
        });
        let behind = BehindEvents::new(config.node.clone(), events.clone());
        let others = Others::new(&config, metrics.second_writers.clone(), events, reports.clone());
        let commits = Commits::default();
        let other = reports.clone();
        let [four, six] = metrics.families.clone();
        let publisher = Publisher::new(watermarks, metrics.clone());
        let (said4, said6) = (publisher.clone(), publisher.clone());
        // A report to an owner that is gone has nobody to interest.
        let v4 = Side::start(&config, &node, commits.clone(), four, move |report| {
            report.said().into_iter().for_each(|said| said4.said(0, said));
            let _ = reports.send(FamilyReport::V4(report));
        })?;
        let v6 = Side::start(&config, &node, commits, six, move |report| {
            report.said().into_iter().for_each(|said| said6.said(1, said));
            let _ = other.send(FamilyReport::V6(report));
        })?;
        Ok(Self {
            v4,
            v6,
            servers: ServiceServers::new(watched),
            node,
            node_eligible: false,
            node_awaited_until: Some(now + NODE_PATIENCE),
            next_check: now + config.check_period(),
            next_look: now + config.sync_period,
            service_ranges: ServiceRanges::default(),
            config,
            metrics,
            health,
            publisher,
            others,
            behind,
            gone: GoneNodes::new(),
            history_lost: false,
        })
    }

    /// The health as others may read it.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Runs until the API server's history is another one than what was reported to be in the kernel. A new process
    /// begins with new watermarks; the rules stay in the kernel meanwhile.
    pub async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Vec<Input>>,
        mut reports: mpsc::UnboundedReceiver<FamilyReport>,
    ) {
        let mut batch = Vec::with_capacity(INBOX);
        loop {
            let wake = self.step(Instant::now());
            tokio::select! {
                biased;
                report = reports.recv() => match report {
                    Some(report) => self.take_report(report),
                    None => return,
                },
                count = inbox.recv_many(&mut batch, INBOX) => {
                    if count == 0 {
                        return;
                    }
                    let now = Instant::now();
                    batch.drain(..).flatten().for_each(|input| self.take(input, now));
                    if self.history_lost {
                        tracing::error!("the API server was restored to an older version: starting over");
                        return;
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Does what is due; returns when to look again.
    fn step(&mut self, now: Instant) -> Instant {
        if now >= self.next_check {
            self.next_check = now + self.config.check_period();
            self.v4.check(now);
            self.v6.check(now);
            // Pods of theirs come and go, too.
            if !self.gone.is_empty() {
                self.end_connections();
            }
        }
        if now >= self.next_look {
            self.next_look = now + self.config.sync_period;
            self.look(now);
        }
        let mut wake = self.next_check.min(self.next_look);
        if let Some(until) = self.node_awaited_until.filter(|until| *until > now) {
            wake = wake.min(until);
        } else {
            let steps = [self.v4.step(now), self.v6.step(now)];
            wake = steps.iter().filter_map(|step| step.wake).fold(wake, Instant::min);
            if steps.iter().any(|step| step.began) {
                self.metrics.nothing_pending();
            }
            if steps.iter().any(|step| step.committed) {
                self.publish();
            }
        }
        self.behind.observe(now, [self.v4.behind(), self.v6.behind()]);
        self.publisher
            .advance(self.v4.progress().lower(self.v6.progress()));
        self.health.send_replace(Health {
            families: [self.v4.health(), self.v6.health()],
            node_eligible: self.node_eligible,
            second_writer: self.others.active(),
            behind: [self.v4.behind().cloned(), self.v6.behind().cloned()],
        });
        wake
    }

    fn take_report(&mut self, report: FamilyReport) {
        let now = Instant::now();
        let committed = match report {
            FamilyReport::V4(report) => self.v4.take(report, now),
            FamilyReport::V6(report) => self.v6.take(report, now),
            FamilyReport::Others(traces) => {
                self.others.observe(now, traces);
                false
            }
        };
        if self.v4.take_overwritten() | self.v6.take_overwritten() {
            self.others.wrote(now, Writer::Iptables);
        }
        if !self.config.observe && self.v4.has_replaced_predecessors() && self.v6.has_replaced_predecessors()
        {
            self.others.start(self.v4.node_ip());
        }
        if committed {
            self.publish();
        }
    }

    /// Publishes how far both families are, and what load balancers may know of it.
    fn publish(&mut self) {
        // Whoever writes the rules answers load balancers too, and whoever observes them has published already.
        if self.config.observe {
            return;
        }
        let ((v4, ports4), (v6, ports6)) = (self.v4.health_checks(), self.v6.health_checks());
        self.servers.listen_on(ports4, ports6);
        self.servers.reconcile([v4, v6]);
        self.publisher
            .publish(self.v4.progress().lower(self.v6.progress()));
    }

    fn look(&mut self, now: Instant) {
        match interfaces::addresses() {
            Ok(interfaces) => self.node.interfaces = interfaces,
            Err(error) => tracing::warn!(%error, "the node's addresses cannot be read"),
        }
        self.node.conntrack_liberal = interfaces::conntrack_is_liberal();
        // Rules that name a counter which somebody removed could not be written.
        self.node.named_counters = uses_counters(&self.config);
        self.node_changed(now);
        self.v4.look();
        self.v6.look();
    }

    fn node_changed(&mut self, now: Instant) {
        self.v4.node_changed(now, &self.config, &self.node);
        self.v6.node_changed(now, &self.config, &self.node);
    }

    fn end_connections(&self) {
        self.v4.end_connections(&self.config, &self.gone);
        self.v6.end_connections(&self.config, &self.gone);
    }

    fn take(&mut self, input: Input, now: Instant) {
        match input {
            Input::Service(event) => self.take_service(event, now),
            Input::Slice(event) => self.take_slice(event, now),
            Input::Node(event) => self.take_node(*event, now),
            Input::Gone(nodes) => {
                self.gone = nodes;
                self.end_connections();
            }
            Input::ServiceRange(event) => {
                if let Some(ranges) = self.service_ranges.take(event) {
                    self.node.service_cidrs = ranges;
                    self.node_changed(now);
                }
            }
        }
    }

    fn take_service(&mut self, event: Event<ConvertedService>, now: Instant) {
        match event {
            Event::Init => self.list_begins(Resource::Services),
            Event::Applied { object, .. } => {
                count(&self.metrics.service_changes);
                let (name, revision, began) = (&object.name, object.revision, began(object.written));
                self.v4.fold(now, |index| {
                    index.fold_service_change(name, object.v4, revision, began)
                });
                self.v6.fold(now, |index| {
                    index.fold_service_change(name, object.v6, revision, began)
                });
            }
            Event::Deleted {
                key,
                resource_version,
                removed,
            } => {
                count(&self.metrics.service_changes);
                let (revision, began) = (
                    resource_version.as_deref().and_then(Revision::parse),
                    began(removed),
                );
                if let Some(name) = name(&key, ServiceName::new) {
                    self.v4.fold(now, |index| {
                        index.fold_service_change(&name, None, revision, began)
                    });
                    self.v6.fold(now, |index| {
                        index.fold_service_change(&name, None, revision, began)
                    });
                }
            }
            Event::Synced(version) => {
                let services = Revision::parse(&version);
                let seen = Watermark {
                    services,
                    ..Watermark::default()
                };
                self.synced(now, Resource::Services, seen);
            }
        }
    }

    fn take_slice(&mut self, event: Event<ConvertedSlice>, now: Instant) {
        match event {
            Event::Init => self.list_begins(Resource::Slices),
            Event::Applied { object, .. } => {
                count(&self.metrics.endpoint_changes);
                let (revision, trigger) = (object.revision, object.trigger);
                // A name may come back with another kind of addresses, so the other family forgets it.
                match object.slice {
                    FamilySlice::V4(slice) => {
                        self.v6
                            .fold(now, |index| index.remove_slice(&slice.name, revision));
                        self.v4
                            .fold(now, |index| index.fold_slice(slice, revision, trigger));
                    }
                    FamilySlice::V6(slice) => {
                        self.v4
                            .fold(now, |index| index.remove_slice(&slice.name, revision));
                        self.v6
                            .fold(now, |index| index.fold_slice(slice, revision, trigger));
                    }
                    FamilySlice::Ignored(name) => self.remove_slice(now, &name, revision),
                }
            }
            Event::Deleted {
                key,
                resource_version,
                ..
            } => {
                count(&self.metrics.endpoint_changes);
                let revision = resource_version.as_deref().and_then(Revision::parse);
                if let Some(name) = name(&key, SliceName::new) {
                    self.remove_slice(now, &name, revision);
                }
            }
            Event::Synced(version) => {
                let slices = Revision::parse(&version);
                let seen = Watermark {
                    slices,
                    ..Watermark::default()
                };
                self.synced(now, Resource::Slices, seen);
            }
        }
    }

    fn remove_slice(&mut self, now: Instant, name: &SliceName, revision: Option<Revision>) {
        self.v4.fold(now, |index| index.remove_slice(name, revision));
        self.v6.fold(now, |index| index.remove_slice(name, revision));
    }

    fn list_begins(&mut self, resource: Resource) {
        self.v4.list_begins(resource);
        self.v6.list_begins(resource);
    }

    fn synced(&mut self, now: Instant, resource: Resource, seen: Watermark) {
        let received = self.v4.progress().received;
        self.history_lost |= is_older(seen, received);
        self.v4.fold(now, |index| index.advance(seen));
        self.v6.fold(now, |index| index.advance(seen));
        self.v4.listed(now, resource);
        self.v6.listed(now, resource);
    }

    fn take_node(&mut self, event: Event<NodeFacts>, now: Instant) {
        match event {
            Event::Init => {}
            Event::Applied { object: facts, .. } => {
                self.node_eligible = facts.eligible;
                self.node.addresses = facts.addresses;
                self.node.pod_cidrs = facts.pod_cidrs;
                self.v4.fold(now, |index| index.set_zone(facts.zone.clone()));
                self.v6.fold(now, |index| index.set_zone(facts.zone));
                self.node_changed(now);
            }
            // Its addresses are still the best we know.
            Event::Deleted { .. } => self.node_eligible = false,
            Event::Synced(_) => self.node_awaited_until = None,
        }
    }
}

/// Whether rules may name counters, which are made here.
fn uses_counters(config: &Config) -> bool {
    config.mode == Mode::Iptables && !config.observe && counters::make_named()
}

/// The ranges of cluster addresses, by the name of the object that lists them.
#[derive(Debug, Default)]
struct ServiceRanges {
    by_name: BTreeMap<ObjectKey, Vec<String>>,
    listing: bool,
}

impl ServiceRanges {
    /// Takes in an event; returns all ranges once they are known to be all.
    fn take(&mut self, event: Event<compact::ServiceCidr>) -> Option<Vec<String>> {
        match event {
            Event::Init => self.listing = true,
            Event::Applied { key, object, .. } => {
                self.by_name.insert(key, object.spec.cidrs);
            }
            Event::Deleted { key, .. } => {
                self.by_name.remove(&key);
            }
            Event::Synced(_) => self.listing = false,
        }
        (!self.listing).then(|| self.by_name.values().flatten().cloned().collect())
    }
}

/// Bunches of events that may wait for the owner.
pub(crate) const INBOX: usize = 8;

fn count((total, pending): &(pointsman_telemetry::Counter, pointsman_telemetry::Gauge)) {
    total.inc();
    pending.inc();
}

/// When a change of a Service began that the watch delivered now.
fn began(written: Option<Moment>) -> Began {
    Began::of(written, Timestamp::now().into())
}

fn name<N, E: std::fmt::Display>(key: &ObjectKey, make: impl Fn(&str, &str) -> Result<N, E>) -> Option<N> {
    make(key.namespace(), key.name())
        .inspect_err(|error| tracing::warn!(%error, "a deletion is left out"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_older_than_what_came_before_it_is_another_history() {
        let at = |slices: u64| Watermark {
            slices: Revision::parse(&slices.to_string()),
            ..Watermark::default()
        };
        assert!(is_older(at(60), at(100)));
        assert!(!is_older(at(100), at(100)));
        assert!(!is_older(at(101), at(100)));
        assert!(!is_older(at(60), Watermark::default()), "the first list");
        assert!(!is_older(Watermark::default(), at(100)), "not a number");
    }
}
