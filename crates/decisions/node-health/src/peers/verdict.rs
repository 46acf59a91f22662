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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use pointsman_model::Text;

use super::rings::{Observers, RINGS, Rings};

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

impl Half {
    fn agrees(&self) -> bool {
        self.accuse.len() > self.reach.len()
    }
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

    /// Whether both halves agree that the node is gone.
    pub fn agree(&self) -> bool {
        self.first.agrees() && self.confirming.agrees() && self.accusers() >= ACCUSERS
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

/// What a Lease said last.
#[derive(Clone, Debug)]
struct Speaker {
    accused: Box<[Text]>,
    /// When it was last renewed, by our clock.
    at: Duration,
    renewals: u64,
}

/// All nodes, what they say of each other, and what follows.
#[derive(Clone, Debug, Default)]
pub struct Reachability {
    limits: Limits,
    rings: Rings,
    /// The zone of each node.
    nodes: HashMap<Text, Text>,
    zones: HashMap<Text, usize>,
    speakers: HashMap<Text, Speaker>,
    /// Who says of a node that it is unreachable, asked or not.
    accusers: BTreeMap<Text, BTreeSet<Text>>,
    /// Observers of the nodes that matter, until a node comes or goes.
    observers: HashMap<Text, Observers>,
    /// Observers that were cut off, and until when they accuse nobody.
    cut_off: HashMap<Text, Duration>,
    /// Nodes that seem gone, with the renewals of their own Lease when they first did.
    gone: BTreeMap<Text, u64>,
    /// Zones, and the cluster as `None`, that were over their limit, and until when nothing is withdrawn there.
    held: HashMap<Option<Text>, Duration>,
    withdrawn: BTreeMap<Text, Votes>,
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
        match self.nodes.insert(name.clone(), zone.clone()) {
            Some(before) if before == *zone => return,
            Some(before) => self.leave_zone(&before),
            None => {
                self.rings.insert(name);
                self.observers.clear();
            }
        }
        *self.zones.entry(zone.clone()).or_default() += 1;
        self.changed = true;
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(zone) = self.nodes.remove(name) {
            self.leave_zone(&zone);
            self.rings.remove(name);
            self.observers.clear();
            // There is nothing to restore; a node of the same name is judged anew.
            self.withdrawn.remove(name);
            self.changed = true;
        }
    }

    fn leave_zone(&mut self, zone: &Text) {
        if let Some(size) = self.zones.get_mut(zone) {
            *size -= 1;
            if *size == 0 {
                self.zones.remove(zone);
            }
        }
    }

    /// Takes in whom a node says it does not reach; every call is a sign of life of the node.
    pub fn observe_opinions<'a>(
        &mut self,
        node: &Text,
        accused: impl IntoIterator<Item = &'a str>,
        now: Duration,
    ) {
        let accused: Box<[Text]> = accused.into_iter().map(Text::from).collect();
        let renewals = self.speakers.get(node).map_or(0, |before| before.renewals) + 1;
        let speaker = Speaker {
            accused,
            at: now,
            renewals,
        };
        let before = self.speakers.insert(node.clone(), speaker);
        let was: &[Text] = before.as_ref().map_or(&[], |before| &before.accused);
        let is = &self.speakers[node].accused;
        if was != &**is {
            for name in was {
                drop_accuser(&mut self.accusers, name, node);
            }
            for name in is.iter() {
                self.accusers
                    .entry(name.clone())
                    .or_default()
                    .insert(node.clone());
            }
            self.changed = true;
        }
        // It may have been stale, or seem gone.
        let stale = before.is_some_and(|before| now > before.at + self.limits.fresh);
        self.changed |= stale || self.gone.contains_key(node);
    }

    /// A node's Lease is gone, or says nothing of others.
    pub fn remove_opinions(&mut self, node: &str) {
        if let Some(before) = self.speakers.remove(node) {
            for name in &before.accused {
                drop_accuser(&mut self.accusers, name, node);
            }
            self.changed = true;
        }
    }

    /// Nodes whose endpoints get no traffic, and why.
    pub fn withdrawn(&self) -> impl Iterator<Item = (&Text, &Votes)> {
        self.withdrawn.iter()
    }

    /// How many nodes seem gone, withdrawn or not.
    pub fn seem_gone(&self) -> usize {
        self.gone.len()
    }

    /// Whether somewhere more seems gone than may be withdrawn.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
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
        let (votes, gone) = self.count(now);
        self.hold(&votes, now);
        let allowed = |node: &Text| {
            let zone = Some(self.nodes[node].clone());
            !self.held.contains_key(&None) && !self.held.contains_key(&zone)
        };
        let withdrawn: BTreeMap<Text, Votes> = gone
            .keys()
            .filter(|node| allowed(node))
            .map(|node| (node.clone(), votes[node].clone()))
            .collect();
        self.gone = gone;
        self.expires = self.next_expiry(now);
        let before = std::mem::replace(&mut self.withdrawn, withdrawn);
        let mut changes = Vec::new();
        for (node, votes) in &self.withdrawn {
            if !before.contains_key(node) {
                let (node, votes) = (node.clone(), votes.clone());
                changes.push(Change::Withdrawn { node, votes });
            }
        }
        for node in before.into_keys() {
            if !self.withdrawn.contains_key(&node) {
                let votes = votes.get(&node).cloned().unwrap_or_default();
                changes.push(Change::Restored { node, votes });
            }
        }
        changes
    }

    /// The votes about every accused node, and the nodes that seem gone by them.
    ///
    /// Nodes that seem gone no longer speak for others, of which more may seem gone then, until no more do.
    fn count(&mut self, now: Duration) -> (HashMap<Text, Votes>, BTreeMap<Text, u64>) {
        self.learn_observers();
        self.find_cut_off(now);
        let mut open: Vec<Text> = self.accusers.keys().cloned().collect();
        open.retain(|node| self.nodes.contains_key(node));
        let (mut votes, mut gone) = (HashMap::new(), BTreeMap::new());
        loop {
            let found = gone.len();
            let mut silent: HashSet<Text> = HashSet::new();
            for (node, renewals) in &gone {
                let spoke = self.speakers.get(node).map_or(0, |speaker| speaker.renewals);
                if spoke == *renewals {
                    silent.insert(Text::clone(node));
                }
            }
            let mut newly = Vec::new();
            open.retain(|node| {
                let counted = self.votes(node, &silent, now);
                let agree = counted.agree();
                votes.insert(node.clone(), counted);
                if agree {
                    newly.push(node.clone());
                }
                !agree
            });
            for node in newly {
                let spoke = || self.speakers.get(&node).map_or(0, |speaker| speaker.renewals);
                let since = self.gone.get(&node).copied().unwrap_or_else(spoke);
                gone.insert(node, since);
            }
            if gone.len() == found {
                return (votes, gone);
            }
        }
    }

    fn learn_observers(&mut self) {
        for node in self.accusers.keys() {
            if self.nodes.contains_key(node) && !self.observers.contains_key(node) {
                self.observers.insert(node.clone(), self.rings.observers(node));
            }
        }
    }

    /// Looks for observers that reach less than half of those they ask, apart from any one of them: a node that
    /// is gone must not cut off who says so.
    fn find_cut_off(&mut self, now: Duration) {
        let mut lost: HashMap<&Text, usize> = HashMap::new();
        for (node, accusers) in &self.accusers {
            let observers = self.observers.get(node).map_or(&[][..], Observers::all);
            for observer in observers.iter().filter(|observer| accusers.contains(*observer)) {
                *lost.entry(observer).or_default() += 1;
            }
        }
        let others = RINGS.min(self.nodes.len().saturating_sub(1)).saturating_sub(1);
        let cut_off = lost.into_iter().filter(|(_, lost)| (lost - 1) * 2 > others);
        let cut_off: Vec<Text> = cut_off.map(|(observer, _)| observer.clone()).collect();
        self.cut_off.retain(|_, until| now < *until);
        for observer in cut_off {
            self.cut_off.insert(observer, now + self.limits.regain);
        }
    }

    fn votes(&self, node: &Text, silent: &HashSet<Text>, now: Duration) -> Votes {
        let observers = &self.observers[node];
        Votes {
            first: self.half(node, observers.first(), silent, now),
            confirming: self.half(node, observers.confirming(), silent, now),
        }
    }

    fn half(&self, node: &Text, observers: &[Text], silent: &HashSet<Text>, now: Duration) -> Half {
        let mut half = Half::default();
        for observer in observers {
            let Some(speaker) = self.speakers.get(observer) else {
                continue;
            };
            if now > speaker.at + self.limits.fresh {
                continue;
            }
            if !speaker.accused.contains(node) {
                if !silent.contains(observer) {
                    half.reach.push(observer.clone());
                }
            } else if !self.cut_off.contains_key(observer) {
                half.accuse.push(observer.clone());
            }
        }
        half
    }

    /// Looks where more seems gone, or is about to, than may be withdrawn.
    fn hold(&mut self, votes: &HashMap<Text, Votes>, now: Duration) {
        // Accusations of nodes that are lost together come one after the other: those that are half-way to a
        // verdict count, so that the pattern shows before the first ones are withdrawn.
        let mut doubtful: HashMap<Option<Text>, usize> = HashMap::new();
        for (node, _) in votes.iter().filter(|(_, votes)| votes.accusers() >= ACCUSERS) {
            *doubtful.entry(None).or_default() += 1;
            *doubtful.entry(Some(self.nodes[node].clone())).or_default() += 1;
        }
        let (limits, zones, all) = (self.limits, &self.zones, self.nodes.len());
        let over = doubtful.into_iter().filter(|(place, count)| match place {
            None => *count > limits.of_cluster(all),
            Some(zone) => *count > limits.of_zone(zones.get(zone).copied().unwrap_or(0)),
        });
        let over: HashSet<Option<Text>> = over.map(|(place, _)| place).collect();
        self.held.retain(|_, until| now < *until);
        for place in over {
            self.held.insert(place, now + limits.hold);
        }
    }

    /// When the next word that counts now will be stale, or a hold be over.
    fn next_expiry(&self, now: Duration) -> Option<Duration> {
        let relevant = self.accusers.keys().filter_map(|node| self.observers.get(node));
        let stale = relevant
            .flat_map(|observers| observers.all())
            .filter_map(|observer| self.speakers.get(observer))
            .map(|speaker| speaker.at + self.limits.fresh + Duration::from_micros(1));
        let ends = stale.chain(self.held.values().chain(self.cut_off.values()).copied());
        ends.filter(|at| *at > now).min()
    }
}

fn drop_accuser(accusers: &mut BTreeMap<Text, BTreeSet<Text>>, node: &str, accuser: &str) {
    if let Some(known) = accusers.get_mut(node) {
        known.remove(accuser);
        if known.is_empty() {
            accusers.remove(node);
        }
    }
}
