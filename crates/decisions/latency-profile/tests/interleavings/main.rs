//! Every interleaving of the three writers, with delays, a second instance and changes of mind: no
//! node ever meets an unsafe pair of values.
//!
//! The model holds the stored objects with their versions, the components with what they announce and
//! what they use, and the instances of the owners with what each has read so far. Every read, every
//! write and every effect is one transition, and every order of transitions is explored. A crash is an
//! instance that never moves again while a new one of the same owner does; since the old one may also
//! go on at any later time, a process that was only paused, and a request that is delivered late, are
//! covered by the same transition. Decisions are those of the product: `rollout::decide`.

use jiff::Timestamp;
use pointsman_latency_profile::profile::{DEFAULT, LOW, MEDIUM};
use pointsman_latency_profile::rollout::{
    Act, Claim, Failure, Ledger, NodeReading, NodesReading, Policy, Readings, Settled, Single, Spec, View,
    decide,
};
use pointsman_latency_profile::{
    Catalog, Change, GracePeriod, Owner, Pool, Profile, ReportPeriod, Tolerations, Verdict,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

mod moves;
mod rounds;

use moves::{changes_of_mind, effects};
use rounds::{Decisions, rounds};

/// A value is the index of the profile that has it.
type Value = u8;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Config {
    value: Value,
    epoch: u64,
    version: u8,
}

/// What a component announces, what it really uses, and what it is about to do both with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Instance {
    announced: Value,
    used: Value,
    target: Value,
}

impl Instance {
    fn settled(value: Value) -> Self {
        Self {
            announced: value,
            used: value,
            target: value,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    wanted: Value,
    generation: i64,
    asked_later: Vec<Value>,
    ledger: LedgerModel,
    ledger_version: u8,
    reports: Config,
    grace: Config,
    tolerations: Config,
    nodes: Vec<Instance>,
    manager: Instance,
    server: Instance,
    writers: Vec<Writer>,
    second: Option<u8>,
    timeouts_left: u8,
    takeovers_left: u8,
}

/// The ledger without names and times, which would only make equal states look different.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct LedgerModel {
    epoch: u64,
    claim: Option<(u8, u8, u64, bool, i64)>,
    failed: Option<(i64, Value)>,
    settled: Option<(i64, Value)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Writer {
    owner: u8,
    holder: u8,
    /// Reads one thing at a time; others read all at once, which makes fewer states.
    slow: bool,
    at: At,
}

/// How far a round is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum At {
    Start,
    /// Own component read.
    Own(Config),
    /// Ledger read as well.
    Ledger(Config, LedgerModel, u8),
    /// What others have written read as well.
    Written(Config, LedgerModel, u8, Value, i64, [Value; 3]),
    /// Decided; the write is about to be sent.
    Send(Pending),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Pending {
    Ledger(LedgerModel, u8),
    Component(Option<Value>, u64, u8),
}

/// Rules that can be broken on purpose, to see that the search notices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    Nothing,
    /// The ledger is read before the own component.
    ReadOrder,
    /// A claim taken over is let go without writing.
    NoFence,
    /// Nodes use a longer period before they announce it.
    LateAnnouncement,
    /// Nobody asks for a claim.
    NoClaim,
}

const PROFILES: [Profile; 3] = [DEFAULT, MEDIUM, LOW];

fn report(value: Value) -> ReportPeriod {
    PROFILES[value as usize].values.report
}

fn grace(value: Value) -> GracePeriod {
    PROFILES[value as usize].values.grace
}

fn tolerations(value: Value) -> Tolerations {
    PROFILES[value as usize].values.tolerations
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// How much is explored.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    /// 2 leaves out the API server's owner, for transitions that do not change tolerations.
    owners: u8,
    /// The owner that gets a second instance, at any time. Then only its first instance is slow.
    second: Option<u8>,
    timeouts: u8,
}

impl World {
    fn new(from: Value, asked: &[Value], size: Size) -> Self {
        let config = Config {
            value: from,
            epoch: 0,
            version: 0,
        };
        let instance = Instance::settled(from);
        Self {
            wanted: asked[0],
            generation: 1,
            asked_later: asked[1..].to_vec(),
            ledger: LedgerModel::default(),
            ledger_version: 0,
            reports: config.clone(),
            grace: config.clone(),
            tolerations: config,
            nodes: vec![instance; size.nodes],
            manager: instance,
            server: instance,
            writers: (0..size.owners)
                .map(|owner| Writer {
                    owner,
                    holder: 0,
                    slow: size.second.is_none_or(|second| second == owner),
                    at: At::Start,
                })
                .collect(),
            second: size.second,
            timeouts_left: size.timeouts,
            // Two live instances would take claims from each other for ever.
            takeovers_left: if size.second.is_some() { 2 } else { 0 },
        }
    }

    fn config(&self, owner: u8) -> &Config {
        match owner {
            0 => &self.reports,
            1 => &self.grace,
            _ => &self.tolerations,
        }
    }

    fn config_mut(&mut self, owner: u8) -> &mut Config {
        match owner {
            0 => &mut self.reports,
            1 => &mut self.grace,
            _ => &mut self.tolerations,
        }
    }

    fn is_safe(&self) -> bool {
        self.nodes
            .iter()
            .all(|node| Verdict::of(report(node.used), grace(self.manager.used)).is_safe())
    }

    fn is_done(&self) -> bool {
        let goal = match self.ledger.failed {
            Some((generation, _)) if generation == self.generation => 0,
            _ => self.wanted,
        };
        let is = |instance: &Instance| *instance == Instance::settled(goal);
        let same = |value: Value| tolerations(value) == tolerations(goal);
        self.nodes.iter().all(is)
            && is(&self.manager)
            && same(self.server.used)
            && self.ledger.claim.is_none()
    }
}
struct Explored {
    states: usize,
    unsafe_state: Option<World>,
    stuck: Option<World>,
}

/// Visits every reachable state once.
fn explore(start: World, broken: Break) -> Explored {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    let mut explored = Explored {
        states: 0,
        unsafe_state: None,
        stuck: None,
    };
    let mut made = Decisions {
        broken,
        known: HashMap::new(),
    };
    let mut next = Vec::new();
    while let Some(world) = open.pop() {
        explored.states += 1;
        if !world.is_safe() {
            explored.unsafe_state = Some(world);
            return explored;
        }
        // Every 997th state: whoever is left finishes the rollout from here.
        if broken == Break::Nothing && explored.states.is_multiple_of(997) && !finishes(&world, &mut made) {
            explored.stuck = Some(world);
            return explored;
        }
        effects(&world, broken, &mut next);
        changes_of_mind(&world, &mut next);
        rounds(&world, &mut made, &mut next);
        for after in next.drain(..) {
            if !seen.contains(&after) {
                seen.insert(after.clone());
                open.push(after);
            }
        }
    }
    explored
}

/// Whether the newest instances alone bring the rollout to its end: everybody else has crashed.
fn finishes(world: &World, made: &mut Decisions) -> bool {
    let mut world = World {
        asked_later: Vec::new(),
        second: None,
        timeouts_left: 0,
        takeovers_left: 9,
        ..world.clone()
    };
    let owners = world.writers.iter().map(|writer| writer.owner).max().unwrap_or(0);
    for owner in 0..=owners {
        let newest = world
            .writers
            .iter()
            .filter(|writer| writer.owner == owner)
            .count() as u8
            - 1;
        world
            .writers
            .retain(|writer| writer.owner != owner || writer.holder == newest);
    }
    for _ in 0..400 {
        if world.is_done() {
            return true;
        }
        let mut next = Vec::new();
        effects(&world, Break::Nothing, &mut next);
        if let Some(after) = next.pop() {
            world = after;
            continue;
        }
        for index in 0..world.writers.len() {
            for _ in 0..5 {
                let mut next = Vec::new();
                let lone = World {
                    writers: vec![world.writers[index].clone()],
                    ..world.clone()
                };
                rounds(&lone, made, &mut next);
                let Some(mut after) = next.into_iter().next() else {
                    break;
                };
                let mut writers = world.writers.clone();
                writers[index] = after.writers.remove(0);
                after.writers = writers;
                world = after;
            }
        }
    }
    false
}

fn check(name: &str, from: Value, asked: &[Value], size: Size) -> usize {
    let explored = explore(World::new(from, asked, size), Break::Nothing);
    assert_eq!(
        explored.unsafe_state, None,
        "{name}: a node meets an unsafe state"
    );
    assert_eq!(explored.stuck, None, "{name}: the rollout does not end");
    explored.states
}

#[test]
fn no_interleaving_of_a_transition_shows_a_node_an_unsafe_state() {
    let size = Size {
        nodes: 2,
        owners: 3,
        second: None,
        timeouts: 0,
    };
    let mut states = 0;
    for from in 0..3 {
        for to in 0..3 {
            states += check("transition", from, &[to], size);
        }
    }
    eprintln!("{states} states of the six transitions");
}

#[test]
fn a_step_that_times_out_at_any_point_shows_no_node_an_unsafe_state() {
    let size = Size {
        nodes: 2,
        owners: 3,
        second: None,
        timeouts: 1,
    };
    let mut states = 0;
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        states += check("timeout", from, &[to], size);
    }
    eprintln!("{states} states of transitions with a step that times out");
}

#[test]
fn no_change_of_mind_at_any_point_shows_a_node_an_unsafe_state() {
    let size = Size {
        nodes: 2,
        owners: 2,
        second: None,
        timeouts: 0,
    };
    let mut states = 0;
    for (from, asked) in [(1, [2, 1]), (2, [1, 2])] {
        states += check("change of mind", from, &asked, size);
    }
    eprintln!("{states} states of transitions that are taken back at any point");
}

#[test]
fn a_crash_or_a_second_instance_at_any_point_is_harmless() {
    let mut states = 0;
    // The first instance is stopped before it lengthens reports, or shortens patience, and goes on when
    // the request was taken back: the two ways in which a late write would hurt.
    for (second, from, asked) in [(0, 1, [2, 1]), (1, 2, [1, 2])] {
        let size = Size {
            nodes: 1,
            owners: 2,
            second: Some(second),
            timeouts: 0,
        };
        states += check("second instance", from, &asked, size);
    }
    eprintln!("{states} states with a crash or a second instance and a change of mind");
}

#[test]
fn the_search_notices_when_a_rule_of_the_protocol_is_broken() {
    for (broken, name) in [
        (Break::NoClaim, "no claim"),
        (Break::NoFence, "no fence"),
        (Break::LateAnnouncement, "late announcement"),
        (Break::ReadOrder, "read order"),
    ] {
        let size = |second| Size {
            nodes: 1,
            owners: 2,
            second,
            timeouts: 0,
        };
        let seconds = match broken {
            Break::NoFence | Break::ReadOrder => vec![Some(0), Some(1)],
            _ => vec![None],
        };
        let worlds = [(1, [2, 1]), (2, [1, 2])].into_iter().flat_map(|(from, asked)| {
            let worlds = seconds
                .iter()
                .map(move |second| World::new(from, &asked, size(*second)));
            worlds.collect::<Vec<_>>()
        });
        let found = worlds
            .into_iter()
            .any(|world| explore(world, broken).unsafe_state.is_some());
        assert!(found, "{name} goes unnoticed");
    }
}
