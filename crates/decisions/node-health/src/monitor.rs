//! Which nodes fell silent, and what is to be done about it, at which pace?
//!
//! The caller feeds in nodes and leases as watches deliver them, calls [`Monitor::check`] every
//! monitor period and [`Monitor::pace`] when [`Monitor::wake_at`] says so, and carries out the actions
//! that come back. Actions repeat until the watch shows their effect, so a failed write heals itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pointsman_model::{Moment, Text};
use pointsman_objects::names::{NOT_READY_TAINT as NOT_READY, UNREACHABLE_TAINT as UNREACHABLE};
use pointsman_objects::node::ConditionKind;
use pointsman_objects::taint::{Effect, Taint};
use pointsman_objects::{ConditionStatus, Node};

use crate::action::{Action, LiveLease, Now, UnknownReason};
use crate::node::Renewal;
use crate::pace::Pacer;
use crate::settings::Settings;
use crate::taint::{TaintChange, has_no_execute, no_execute_key, no_schedule_change};
use crate::zone::{Census, ZoneState, eviction_rate, marking_rate};

/// What is known of one zone.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneReport {
    /// Nodes that count.
    pub census: Census,
    /// State by conditions.
    pub state: ZoneState,
    /// State with nodes that are half-way to silence counted as silent: it sets the pace.
    pub outlook: ZoneState,
    /// Nodes tainted for eviction so far.
    pub evictions: u64,
}

/// The node lifecycle controller without its connections.
#[derive(Debug)]
pub struct Monitor {
    settings: Settings,
    nodes: BTreeMap<Text, Record>,
    leases: HashMap<Text, Lease>,
    zones: BTreeMap<Text, Zone>,
    /// The lease cache lacks this revision; no verdicts until it has it.
    leases_behind: Option<(Text, u64)>,
    /// Every zone is fully disrupted: it is us, not them.
    blind: bool,
    /// Every zone is about to be.
    hold: bool,
}

/// The newest lease of a node.
#[derive(Debug)]
struct Lease {
    revision: u64,
    renewed: Option<Moment>,
}

#[derive(Debug)]
struct Record {
    node: Arc<Node>,
    /// Its failure domain.
    zone: Text,
    stamp: Duration,
    marking: Marking,
    tainting: Tainting,
}

/// How far the NoExecute taint of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tainting {
    NotNeeded,
    Queued,
    /// Handed out at this tick; the watch has still to show it.
    Sent(Duration),
}

/// How far the marking of a node's pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marking {
    NotNeeded,
    Queued,
    Done,
}

#[derive(Debug)]
struct Zone {
    report: ZoneReport,
    taints: VecDeque<Text>,
    taint_pacer: Pacer,
    marks: VecDeque<Text>,
    mark_pacer: Pacer,
}

impl Monitor {
    /// A monitor that knows no nodes. Every node it meets gets a full grace period.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            nodes: BTreeMap::new(),
            leases: HashMap::new(),
            zones: BTreeMap::new(),
            leases_behind: None,
            blind: false,
            hold: false,
        }
    }

    /// Goes on with other settings.
    pub fn set_settings(&mut self, settings: Settings, now: Now) {
        self.settings = settings;
        self.set_rates(now.tick);
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes in a node.
    pub fn observe_node(&mut self, node: Arc<Node>, now: Now) -> Vec<Action> {
        let name = node.metadata.name.clone();
        let domain: Text = node.failure_domain().into();
        let (settings, blind) = (&self.settings, self.blind);
        let zone = self
            .zones
            .entry(domain.clone())
            .or_insert_with(|| Zone::new(settings, now.tick));
        let mut actions = Vec::new();
        let before = self.nodes.remove(&name);
        let was_ready = before.as_ref().and_then(|record| record.node.ready());
        let mut record = match before {
            Some(mut record) => {
                if is_alive(&record.node, &node) {
                    record.stamp = now.tick;
                }
                if record.zone != domain {
                    // Queues belong to zones: the node gets a place in its new one.
                    record.tainting = Tainting::NotNeeded;
                    if record.marking == Marking::Queued {
                        zone.marks.push_back(name.clone());
                    }
                }
                (record.node, record.zone) = (node, domain);
                record
            }
            None => Record {
                stamp: first_stamp(&node, now),
                node,
                zone: domain,
                marking: Marking::NotNeeded,
                tainting: Tainting::NotNeeded,
            },
        };
        match record.node.ready() {
            Some(ConditionStatus::True) | None => record.marking = Marking::NotNeeded,
            Some(status) if record.marking == Marking::NotNeeded => {
                if was_ready == Some(ConditionStatus::True) {
                    actions.push(Action::NotReadyEvent(name.clone()));
                }
                if status == ConditionStatus::False {
                    // The node itself says so: there is no doubt to be careful about.
                    record.marking = Marking::Done;
                    actions.push(Action::MarkPodsUnready(name.clone()));
                } else {
                    record.marking = Marking::Queued;
                    zone.marks.push_back(name.clone());
                }
            }
            Some(_) => {}
        }
        let change = taint_change(&mut record, zone, blind, settings, now.tick);
        if !change.is_empty() {
            actions.push(Action::Taint(name.clone(), change));
        }
        self.nodes.insert(name, record);
        actions
    }

    /// Removes a node. True when it was known.
    pub fn remove_node(&mut self, name: &str) -> bool {
        self.leases.remove(name);
        if self
            .leases_behind
            .as_ref()
            .is_some_and(|(node, _)| **node == *name)
        {
            self.leases_behind = None;
        }
        self.nodes.remove(name).is_some()
    }

    /// Takes in a lease. Any newer version with another renewal time is a sign of life, whichever way
    /// the node's clock went.
    pub fn observe_lease(&mut self, lease: &Renewal, now: Now) {
        let known = self.leases.get(&lease.node);
        if known.is_some_and(|known| lease.revision <= known.revision && lease.revision != 0) {
            return;
        }
        let renewed = known.is_none_or(|known| known.renewed != lease.renewed);
        if let Some(record) = self.nodes.get_mut(&lease.node).filter(|_| renewed) {
            record.stamp = now.tick;
        }
        if self
            .leases_behind
            .as_ref()
            .is_some_and(|(node, revision)| *node == lease.node && lease.revision >= *revision)
        {
            self.leases_behind = None;
        }
        let Renewal {
            revision, renewed, ..
        } = *lease;
        self.leases
            .insert(lease.node.clone(), Lease { revision, renewed });
    }

    /// A lease is gone. That is no sign of life, and nobody waits for a newer version of it.
    pub fn remove_lease(&mut self, node: &str) {
        self.leases.remove(node);
        if self
            .leases_behind
            .as_ref()
            .is_some_and(|(behind, _)| **behind == *node)
        {
            self.leases_behind = None;
        }
    }

    /// All leases are about to be listed again, perhaps with smaller versions: the API server may have
    /// been restored from a backup.
    pub fn leases_restart(&mut self) {
        self.leases_behind = None;
        for lease in self.leases.values_mut() {
            lease.revision = 0;
        }
    }

    /// No node could report for this long, because the API server was away: that counts against no
    /// node.
    pub fn forgive(&mut self, outage: Duration, now: Duration) {
        for record in self.nodes.values_mut() {
            record.stamp = record.stamp.saturating_add(outage).min(now);
        }
    }

    /// Whether verdicts wait for the lease cache to catch up.
    pub fn leases_behind(&self) -> bool {
        self.leases_behind.is_some()
    }

    /// Looks at all heartbeats. To be called every monitor period.
    pub fn check(&mut self, now: Now) -> Vec<Action> {
        self.take_census(now.tick);
        let mut actions = Vec::new();
        for (name, record) in &mut self.nodes {
            let zone = self
                .zones
                .get_mut(&record.zone)
                .expect("every node's zone is known");
            let change = taint_change(record, zone, self.blind, &self.settings, now.tick);
            if !change.is_empty() {
                actions.push(Action::Taint(name.clone(), change));
            }
            let silent = now.tick.saturating_sub(record.stamp) > patience(&self.settings, &record.node);
            if silent && !unknown_already(&record.node) && self.leases_behind.is_none() {
                actions.push(Action::CheckLease(name.clone()));
            }
        }
        actions
    }

    /// The answer to [`Action::CheckLease`]: the node is declared silent only if the API server knows no
    /// more than we do.
    pub fn lease_checked(&mut self, name: &Text, live: LiveLease, now: Now) -> Option<Action> {
        let record = self.nodes.get(name)?;
        let cached = self.leases.get(name).map(|lease| lease.revision);
        match live {
            LiveLease::Failed => return None,
            LiveLease::Revision(revision) if cached != Some(revision) => {
                self.leases_behind = Some((name.clone(), revision));
                return None;
            }
            LiveLease::Revision(_) | LiveLease::Missing => {}
        }
        let silent = now.tick.saturating_sub(record.stamp) > patience(&self.settings, &record.node);
        if !silent || unknown_already(&record.node) || self.leases_behind.is_some() {
            return None;
        }
        let conditions =
            ConditionKind::REPORTED
                .into_iter()
                .filter_map(|kind| match record.node.condition(kind) {
                    None => Some((kind, UnknownReason::Never)),
                    Some(condition) if condition.status == ConditionStatus::Unknown => None,
                    Some(_) => Some((kind, UnknownReason::Stopped)),
                });
        Some(Action::MarkUnknown(name.clone(), conditions.collect()))
    }

    /// Hands out the taints and markings that are due by now.
    pub fn pace(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        let nodes = &mut self.nodes;
        for zone in self.zones.values_mut() {
            while let Some(name) = first(&mut zone.marks, nodes, |record| record.marking == Marking::Queued) {
                if !zone.mark_pacer.take(now) {
                    break;
                }
                nodes.get_mut(&name).expect("just found").marking = Marking::Done;
                actions.push(Action::MarkPodsUnready(name));
            }
            let needs_taint = |record: &Record| {
                record.tainting == Tainting::Queued && missing_taint(&record.node).is_some()
            };
            while let Some(name) = first(&mut zone.taints, nodes, needs_taint) {
                if self.blind || !zone.taint_pacer.take(now) {
                    break;
                }
                let record = nodes.get_mut(&name).expect("just found");
                record.tainting = Tainting::Sent(now);
                zone.report.evictions += 1;
                let key = missing_taint(&record.node).expect("it is needed");
                let add = vec![Taint::new(key, Effect::NoExecute)];
                actions.push(Action::Taint(
                    name,
                    TaintChange {
                        add,
                        remove: Vec::new(),
                    },
                ));
            }
        }
        actions
    }

    /// When [`Monitor::pace`] may have something, if not now.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let marks = self
            .zones
            .values()
            .filter(|zone| !zone.marks.is_empty())
            .filter_map(|zone| zone.mark_pacer.next(now));
        let taints = self
            .zones
            .values()
            .filter(|zone| !zone.taints.is_empty())
            .filter_map(|zone| zone.taint_pacer.next(now));
        marks.chain(taints.filter(|_| !self.blind)).min()
    }

    /// Not all pods of a node could be marked; they come up again.
    pub fn marking_failed(&mut self, name: &Text) {
        if let Some(record) = self
            .nodes
            .get_mut(name)
            .filter(|record| record.marking == Marking::Done)
        {
            record.marking = Marking::Queued;
            if let Some(zone) = self.zones.get_mut(&record.zone) {
                zone.marks.push_back(name.clone());
            }
        }
    }

    /// Whether a pod that just came to the node has to be marked not ready as well.
    pub fn marks_pods(&self, node: &str) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|record| record.marking == Marking::Done)
    }

    /// All zones with their numbers, for metrics.
    pub fn zones(&self) -> impl Iterator<Item = (&Text, &ZoneReport)> {
        self.zones.iter().map(|(name, zone)| (name, &zone.report))
    }

    /// Whether every zone is fully disrupted, so that the fault is taken to be ours.
    pub fn blind(&self) -> bool {
        self.blind
    }

    fn take_census(&mut self, now: Duration) {
        let mut counts: BTreeMap<&Text, (Census, Census)> = BTreeMap::new();
        for record in self.nodes.values() {
            let (census, outlook) = counts.entry(&record.zone).or_default();
            if record.node.is_excluded_from_disruption() {
                continue;
            }
            let ready = record.node.is_ready();
            let late = now.saturating_sub(record.stamp) > patience(&self.settings, &record.node) / 2;
            *if ready {
                &mut census.ready
            } else {
                &mut census.not_ready
            } += 1;
            *if ready && !late {
                &mut outlook.ready
            } else {
                &mut outlook.not_ready
            } += 1;
        }
        let settings = &self.settings;
        self.zones.retain(|name, _| counts.contains_key(name));
        for (name, (census, outlook)) in counts {
            let report = &mut self
                .zones
                .get_mut(name)
                .expect("every node's zone is known")
                .report;
            report.census = census;
            report.state = census.state(settings);
            report.outlook = outlook.state(settings);
        }
        let all = |state: fn(&ZoneReport) -> ZoneState| {
            let mut counted = self
                .zones
                .values()
                .filter(|zone| zone.report.census.size() > 0)
                .peekable();
            counted.peek().is_some() && counted.all(|zone| state(&zone.report) == ZoneState::FullDisruption)
        };
        let (was_blind, blind) = (self.blind, all(|report| report.state));
        self.hold = all(|report| report.outlook);
        self.blind = blind;
        if was_blind && !blind {
            // Nobody could report while we were cut off, so everybody starts afresh.
            for record in self.nodes.values_mut() {
                record.stamp = now;
            }
            for zone in self.zones.values_mut() {
                let fresh = Zone::new(&self.settings, now);
                (zone.taint_pacer, zone.mark_pacer) = (fresh.taint_pacer, fresh.mark_pacer);
            }
        }
        self.set_rates(now);
    }

    fn set_rates(&mut self, now: Duration) {
        for zone in self.zones.values_mut() {
            let size = zone.report.census.size();
            let (mut taint_rate, (mut mark_rate, burst)) = (
                eviction_rate(zone.report.outlook, size, &self.settings),
                marking_rate(zone.report.outlook, &self.settings),
            );
            if self.hold || self.blind {
                (taint_rate, mark_rate) = (0.0, 0.0);
            }
            zone.taint_pacer.set(taint_rate, 1.0, now);
            zone.mark_pacer.set(mark_rate, burst, now);
        }
    }
}

impl Zone {
    fn new(settings: &Settings, now: Duration) -> Self {
        let (mark_rate, burst) = marking_rate(ZoneState::Initial, settings);
        Self {
            report: ZoneReport {
                census: Census::default(),
                state: ZoneState::Initial,
                outlook: ZoneState::Initial,
                evictions: 0,
            },
            taints: VecDeque::new(),
            taint_pacer: Pacer::new(settings.eviction_rate, 1.0, now),
            marks: VecDeque::new(),
            mark_pacer: Pacer::new(mark_rate, burst, now),
        }
    }
}

/// A restart must punish nobody: a node that reported before starts with a full grace period. One that
/// never did starts from its creation.
fn first_stamp(node: &Node, now: Now) -> Duration {
    match (node.ready(), node.metadata.created) {
        (None, Some(created)) => now.tick.saturating_sub(now.wall.since(created)),
        _ => now.tick,
    }
}

/// Whether the new version of a node was written by the node itself.
fn is_alive(old: &Node, new: &Node) -> bool {
    let Some(condition) = new
        .condition(ConditionKind::Ready)
        .filter(|condition| !condition.by_controller)
    else {
        return false;
    };
    old.condition(ConditionKind::Ready) != Some(condition)
}

fn patience(settings: &Settings, node: &Node) -> Duration {
    if node.ready().is_some() {
        settings.grace_period
    } else {
        settings.startup_grace_period
    }
}

fn unknown_already(node: &Node) -> bool {
    node.ready() == Some(ConditionStatus::Unknown)
}

/// The NoExecute taint that the node deserves and does not have.
fn missing_taint(node: &Node) -> Option<&'static str> {
    no_execute_key(node.ready()).filter(|key| !has_no_execute(node, key))
}

/// Taints that change at once: by condition, swaps and removals. A first NoExecute taint is queued.
fn taint_change(
    record: &mut Record,
    zone: &mut Zone,
    blind: bool,
    settings: &Settings,
    now: Duration,
) -> TaintChange {
    let node = &record.node;
    let mut change = no_schedule_change(node);
    let deserved = no_execute_key(node.ready()).filter(|_| !blind);
    let present = |key: &&str| has_no_execute(node, key);
    let wrong: Vec<&str> = [NOT_READY, UNREACHABLE]
        .into_iter()
        .filter(present)
        .filter(|key| Some(*key) != deserved)
        .collect();
    match deserved.filter(|key| !has_no_execute(node, key)) {
        Some(key) if !wrong.is_empty() => change.add.push(Taint::new(key, Effect::NoExecute)),
        Some(_) => {
            let queue = match record.tainting {
                Tainting::NotNeeded => true,
                Tainting::Queued => false,
                // The write is lost, or the watch is very late: it has to wait for its turn again.
                Tainting::Sent(at) => now.saturating_sub(at) > settings.monitor_period,
            };
            if queue {
                record.tainting = Tainting::Queued;
                zone.taints.push_back(node.metadata.name.clone());
            }
        }
        None => record.tainting = Tainting::NotNeeded,
    }
    change
        .remove
        .extend(wrong.into_iter().map(|key| Taint::new(key, Effect::NoExecute)));
    change
}

/// The first node of a queue whose turn is still needed, left in place; those before it are dropped.
fn first(
    queue: &mut VecDeque<Text>,
    nodes: &BTreeMap<Text, Record>,
    needed: impl Fn(&Record) -> bool,
) -> Option<Text> {
    while let Some(name) = queue.front() {
        if nodes.get(name).is_some_and(&needed) {
            return Some(name.clone());
        }
        queue.pop_front();
    }
    None
}
