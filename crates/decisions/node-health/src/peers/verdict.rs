//! Should traffic avoid a node, going by what the others say of it?
//!
//! Yes, if most of its first observers and most of the confirming ones do not reach it, at least
//! [`ACCUSERS`] of them, and it is not half of a zone or of the cluster that seems gone: then the fault is
//! more likely ours, and nothing is withdrawn there. Whose word counts:
//!
//! - only observers speak, and only about the nodes they are to ask;
//! - a Lease that was not renewed for a while says nothing;
//! - an observer that reaches less than half of the others it asks, or did a moment ago, is cut off itself and
//!   accuses nobody;
//! - an observer that seems gone speaks for nobody until it writes its Lease again: it may have died with
//!   the node that its last Lease calls reachable.
//!
//! The verdict follows from the opinions as they are now. Nothing is remembered but which observers have
//! written since they seem gone, and who was cut off and which zone over its limit a moment ago, so a node is
//! back as soon as most of its observers say so. Work follows the number of accused nodes, not of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pointsman_model::Text;

use super::rings::{RINGS, Rings};
use super::table::{Counted, Number, Observers, Row, Speaker, Table};

/// So many accusers it takes at least.
pub const ACCUSERS: usize = 2;

/// How much may be withdrawn, and how old words may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// A Lease that was not renewed for this long says nothing.
    pub fresh: Duration,
    /// Less than this share of a zone's nodes may be withdrawn, or one.
    pub zone_share: f64,
    /// Less than this share of all nodes may be withdrawn.
    pub cluster_share: f64,
    /// After more seemed gone than may be withdrawn, nothing is withdrawn for this long.
    pub hold: Duration,
    /// An observer that was cut off accuses nobody for this long.
    pub regain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(40),
            zone_share: 0.5,
            cluster_share: 0.5,
            hold: Duration::from_secs(10),
            regain: Duration::from_secs(2),
        }
    }
}

impl Limits {
    /// The most nodes of a zone of this size that may be withdrawn.
    pub fn of_zone(&self, size: usize) -> usize {
        less_than_share(size, self.zone_share).max(1)
    }

    /// The most nodes of a cluster of this size that may be withdrawn.
    pub fn of_cluster(&self, size: usize) -> usize {
        less_than_share(size, self.cluster_share)
    }
}

fn less_than_share(size: usize, share: f64) -> usize {
    ((size as f64 * share).ceil() as usize).saturating_sub(1)
}

/// The votes of one half of a node's observers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// Those who do not reach it.
    pub accuse: Vec<Text>,
    /// Those who do.
    pub reach: Vec<Text>,
}

/// The votes about a node that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    pub first: Half,
    pub confirming: Half,
}

impl Votes {
    /// How many do not reach it.
    pub fn accusers(&self) -> usize {
        self.first.accuse.len() + self.confirming.accuse.len()
    }

    /// How many count.
    pub fn counted(&self) -> usize {
        self.accusers() + self.first.reach.len() + self.confirming.reach.len()
    }
}

impl std::fmt::Display for Votes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (accusers, counted) = (self.accusers(), self.counted());
        write!(f, "{accusers} of {counted} observers do not reach it")?;
        let mut accuse = self.first.accuse.iter().chain(&self.confirming.accuse).peekable();
        if accuse.peek().is_some() {
            let names: Vec<&str> = accuse.map(|name| &**name).collect();
            write!(f, " ({})", names.join(", "))?;
        }
        let mut reach = self.first.reach.iter().chain(&self.confirming.reach).peekable();
        if reach.peek().is_some() {
            let names: Vec<&str> = reach.map(|name| &**name).collect();
            write!(
                f,
                "; {} {}",
                names.join(", "),
                if names.len() == 1 { "does" } else { "do" }
            )?;
        }
        Ok(())
    }
}

/// A node whose endpoints get no traffic from now on, or get it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Withdrawn { node: Text, votes: Votes },
    Restored { node: Text, votes: Votes },
}

/// A zone with nodes, or one that had them.
#[derive(Clone, Debug)]
struct Zone {
    name: Text,
    size: usize,
    /// It was over its limit, and until when nothing is withdrawn there.
    held: Option<Duration>,
    /// During a decision: how many of its nodes are accused by enough.
    doubtful: usize,
}

/// All nodes, what they say of each other, and what follows.
#[derive(Clone, Debug, Default)]
pub struct Reachability {
    limits: Limits,
    rings: Rings,
    table: Table,
    zones: Vec<Zone>,
    /// Who is called unreachable by anybody, asked or not.
    accused: BTreeSet<Number>,
    /// How often nodes came and went: observers from before are others now.
    membership: u64,
    /// Observers that were cut off a moment ago.
    cut_off: Vec<Number>,
    /// Nodes that seem gone.
    gone: Vec<Number>,
    /// The cluster was over its limit, and until when nothing is withdrawn.
    held: Option<Duration>,
    withdrawn: BTreeMap<Text, Number>,
    /// Something changed since the last decision.
    changed: bool,
    /// When the present decision will be out of date by itself.
    expires: Option<Duration>,
}

impl Reachability {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes in a node that can be asked.
    pub fn observe_node(&mut self, name: &Text, zone: &Text) {
        let number = self.table.add(name);
        let place = self.zone(zone);
        match self.table[number].zone.replace(place) {
            Some(before) if before == place => return,
            Some(before) => self.zones[before].size -= 1,
            None => {
                self.rings.insert(name);
                self.membership += 1;
            }
        }
        self.zones[place].size += 1;
        self.changed = true;
    }

    /// The place of a zone; one that is empty and not held gives way.
    fn zone(&mut self, name: &Text) -> usize {
        if let Some(place) = self.zones.iter().position(|zone| zone.name == *name) {
            return place;
        }
        let zone = Zone {
            name: name.clone(),
            size: 0,
            held: None,
            doubtful: 0,
        };
        let unused = |zone: &Zone| zone.size == 0 && zone.held.is_none();
        let place = self.zones.iter().position(unused);
        if let Some(place) = place {
            self.zones[place] = zone;
            return place;
        }
        self.zones.push(zone);
        self.zones.len() - 1
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(number) = self.table.number(name) else {
            return;
        };
        if let Some(zone) = self.table[number].zone.take() {
            self.zones[zone].size -= 1;
            self.rings.remove(name);
            self.membership += 1;
            // There is nothing to restore; a node of the same name is judged anew.
            self.withdrawn.remove(name);
            self.table[number].withdrawn = false;
            self.table.release(number);
            self.changed = true;
        }
    }

    /// Takes in whom a node says it does not reach; every call is a sign of life of the node.
    pub fn observe_opinions<'a>(
        &mut self,
        node: &Text,
        accused: impl IntoIterator<Item = &'a str>,
        now: Duration,
    ) {
        let number = self.table.add(node);
        let mut accused: Vec<Number> = accused.into_iter().map(|name| self.table.add(name)).collect();
        accused.sort_unstable();
        accused.dedup();
        let row = &mut self.table[number];
        let speaker = Speaker {
            accused: accused.clone().into(),
            at: now,
            renewals: row.spoke() + 1,
        };
        let before = row.speaker.replace(speaker);
        // It may have been stale, or seem gone.
        let stale = |before: &Speaker| now > before.at + self.limits.fresh;
        self.changed |= before.as_ref().is_some_and(stale) || row.gone.is_some();
        let was = before.map_or_else(Box::default, |before| before.accused);
        if *was != *accused {
            for accused in accused {
                self.table[accused].accusers += 1;
                self.accused.insert(accused);
            }
            self.drop_accusations(&was);
        }
    }

    /// A node's Lease is gone, or says nothing of others.
    pub fn remove_opinions(&mut self, node: &str) {
        let Some(number) = self.table.number(node) else {
            return;
        };
        if let Some(before) = self.table[number].speaker.take() {
            self.drop_accusations(&before.accused);
            self.table.release(number);
            self.changed = true;
        }
    }

    fn drop_accusations(&mut self, accused: &[Number]) {
        for number in accused {
            let accusers = &mut self.table[*number].accusers;
            *accusers -= 1;
            if *accusers == 0 {
                self.accused.remove(number);
                self.table.release(*number);
            }
        }
        self.changed = true;
    }

    /// Nodes whose endpoints get no traffic, by name.
    pub fn withdrawn(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.withdrawn.keys()
    }

    /// The votes about a node by the last decision; none if nobody accuses it.
    pub fn votes(&self, node: &str) -> Votes {
        let row = self.table.number(node).map(|number| &self.table[number]);
        let row = row.filter(|row| row.zone.is_some() && row.accusers > 0);
        row.map(|row| self.named(row)).unwrap_or_default()
    }

    fn named(&self, row: &Row) -> Votes {
        let mut votes = Votes::default();
        for (index, observer) in row.observers.all().iter().enumerate() {
            let bit = 1 << index;
            let half = match row.observers.first() & bit {
                0 => &mut votes.confirming,
                _ => &mut votes.first,
            };
            let name = self.table[*observer].name();
            if row.counted.accuse & bit != 0 {
                half.accuse.push(name.clone());
            } else if row.counted.reach & bit != 0 {
                half.reach.push(name.clone());
            }
        }
        votes
    }

    /// How many nodes seem gone, withdrawn or not.
    pub fn seem_gone(&self) -> usize {
        self.gone.len()
    }

    /// Whether somewhere more seems gone than may be withdrawn.
    pub fn holds(&self) -> bool {
        self.held.is_some() || self.zones.iter().any(|zone| zone.held.is_some())
    }

    /// When [`Reachability::decide`] may come to something else, if nothing is observed before.
    pub fn wake_at(&self) -> Option<Duration> {
        self.expires
    }

    /// Decides again, if there is reason to; returns what changed, ordered by node.
    pub fn decide(&mut self, now: Duration) -> Vec<Change> {
        if !self.changed && self.expires.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.changed = false;
        self.learn_observers();
        self.find_cut_off(now);
        self.count(now);
        self.hold(now);
        self.expires = self.next_expiry(now);
        let out = |row: &Row| {
            let zone = row.zone.filter(|_| row.gone.is_some() && self.held.is_none());
            zone.is_some_and(|zone| self.zones[zone].held.is_none())
        };
        let newly = self.gone.iter().copied();
        let newly = newly.filter(|node| !self.table[*node].withdrawn && out(&self.table[*node]));
        let mut newly: Vec<Number> = newly.collect();
        newly.sort_unstable_by_key(|node| self.table[*node].name());
        let back = self.withdrawn.values().copied();
        let back: Vec<Number> = back.filter(|node| !out(&self.table[*node])).collect();
        let mut changes = Vec::with_capacity(newly.len() + back.len());
        for number in newly {
            self.table[number].withdrawn = true;
            let node = self.table[number].name().clone();
            self.withdrawn.insert(node.clone(), number);
            let votes = self.votes(&node);
            changes.push(Change::Withdrawn { node, votes });
        }
        for number in back {
            self.table[number].withdrawn = false;
            let node = self.table[number].name().clone();
            self.withdrawn.remove(&node);
            let votes = self.votes(&node);
            changes.push(Change::Restored { node, votes });
        }
        changes
    }

    /// Accused nodes; other names may be accused too.
    fn accused_nodes(&self) -> impl Iterator<Item = Number> {
        let nodes = self.accused.iter().copied();
        nodes.filter(|number| self.table[*number].zone.is_some())
    }

    /// Counts the votes about every accused node, and finds those that seem gone by them.
    ///
    /// Nodes that seem gone no longer speak for others, of which more may seem gone then, until no more do.
    fn count(&mut self, now: Duration) {
        let mut open: Vec<Number> = self.accused_nodes().collect();
        let mut gone: Vec<(Number, u64)> = Vec::new();
        loop {
            let found = gone.len();
            let mut others = Vec::with_capacity(open.len());
            for node in open {
                let counted = self.count_votes(node, now);
                let row = &mut self.table[node];
                row.counted = counted;
                if agree(counted, row.observers.first()) {
                    gone.push((node, row.gone.unwrap_or(row.spoke())));
                } else {
                    others.push(node);
                }
            }
            open = others;
            if gone.len() == found {
                break;
            }
            for (node, since) in &gone[found..] {
                let row = &mut self.table[*node];
                row.silent = row.spoke() == *since;
            }
        }
        for node in std::mem::take(&mut self.gone) {
            self.table[node].gone = None;
        }
        for (node, since) in gone {
            let row = &mut self.table[node];
            (row.gone, row.silent) = (Some(since), false);
            self.gone.push(node);
        }
    }

    fn learn_observers(&mut self) {
        let outdated = self.accused_nodes();
        let outdated = outdated.filter(|number| self.table[*number].observers.since != self.membership);
        for number in outdated.collect::<Vec<_>>() {
            let names = self.rings.observers(self.table[number].name());
            let numbers = names.all().iter().filter_map(|name| self.table.number(name));
            self.table[number].observers = Observers::new(numbers, self.membership);
        }
    }

    /// Looks for observers that reach less than half of those they ask, apart from any one of them: a node that
    /// is gone must not cut off who says so.
    fn find_cut_off(&mut self, now: Duration) {
        let mut lost = Vec::new();
        for node in self.accused_nodes().collect::<Vec<_>>() {
            let observers = self.table[node].observers;
            for observer in observers.all() {
                let row = &mut self.table[*observer];
                if row.speaker.as_ref().is_some_and(|speaker| speaker.accuses(node)) {
                    if row.lost == 0 {
                        lost.push(*observer);
                    }
                    row.lost += 1;
                }
            }
        }
        let table = &mut self.table;
        self.cut_off.retain(|observer| {
            let row = &mut table[*observer];
            row.cut_off = row.cut_off.filter(|until| now < *until);
            row.cut_off.is_some()
        });
        let others = RINGS.min(self.rings.len().saturating_sub(1)).saturating_sub(1);
        for observer in lost {
            let row = &mut table[observer];
            let lost = std::mem::take(&mut row.lost);
            if (lost - 1) * 2 > others && row.cut_off.replace(now + self.limits.regain).is_none() {
                self.cut_off.push(observer);
            }
        }
    }

    fn count_votes(&self, node: Number, now: Duration) -> Counted {
        let mut counted = Counted::default();
        for (index, observer) in self.table[node].observers.all().iter().enumerate() {
            let row = &self.table[*observer];
            let Some(speaker) = &row.speaker else {
                continue;
            };
            if now > speaker.at + self.limits.fresh {
                continue;
            }
            if !speaker.accuses(node) {
                counted.reach |= u8::from(!row.silent) << index;
            } else {
                counted.accuse |= u8::from(row.cut_off.is_none()) << index;
            }
        }
        counted
    }

    /// Looks where more seems gone, or is about to, than may be withdrawn.
    fn hold(&mut self, now: Duration) {
        // Accusations of nodes that are lost together come one after the other: those that are half-way to a
        // verdict count, so that the pattern shows before the first ones are withdrawn.
        let mut all = 0;
        for node in self.accused_nodes().collect::<Vec<_>>() {
            let row = &self.table[node];
            if let Some(zone) = row.zone.filter(|_| row.counted.accusers() >= ACCUSERS) {
                self.zones[zone].doubtful += 1;
                all += 1;
            }
        }
        let (limits, until) = (self.limits, now + self.limits.hold);
        let held = |before: Option<Duration>, is_over| match is_over {
            true => Some(until),
            false => before.filter(|until| now < *until),
        };
        self.held = held(self.held, all > limits.of_cluster(self.rings.len()));
        for zone in &mut self.zones {
            let doubtful = std::mem::take(&mut zone.doubtful);
            zone.held = held(zone.held, doubtful > limits.of_zone(zone.size));
        }
    }

    /// When the next word that counts now will be stale, or a hold be over.
    fn next_expiry(&self, now: Duration) -> Option<Duration> {
        let observers = self.accused_nodes().map(|node| &self.table[node].observers);
        let stale = observers
            .flat_map(Observers::all)
            .filter_map(|observer| self.table[*observer].speaker.as_ref())
            .map(|speaker| speaker.at + self.limits.fresh + Duration::from_micros(1));
        let cut_off = self.cut_off.iter().filter_map(|node| self.table[*node].cut_off);
        let held = self.zones.iter().filter_map(|zone| zone.held).chain(self.held);
        stale.chain(cut_off).chain(held).filter(|at| *at > now).min()
    }
}

/// Whether both halves of a node's observers agree that it is gone.
fn agree(votes: Counted, first: u8) -> bool {
    let agrees = |half: u8| (votes.accuse & half).count_ones() > (votes.reach & half).count_ones();
    agrees(first) && agrees(!first) && votes.accusers() >= ACCUSERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_come_and_go_leave_no_trace() {
        let mut fold = Reachability::default();
        for round in 0..100 {
            let names: Vec<Text> = (0..4).map(|index| format!("n{round}-{index}").into()).collect();
            for name in &names {
                fold.observe_node(name, &format!("zone-{round}").into());
                fold.observe_opinions(name, [&*names[0], "nobody"], Duration::from_secs(round));
            }
            fold.decide(Duration::from_secs(round));
            for name in &names {
                fold.remove_opinions(name);
                fold.remove_node(name);
            }
        }
        fold.decide(Duration::from_secs(1000));
        assert_eq!((fold.table.len(), fold.withdrawn().len()), (0, 0));
        assert!(fold.zones.len() < 20, "{:?}", fold.zones);
    }
}
