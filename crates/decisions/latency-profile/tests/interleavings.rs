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
    wishes_left: Vec<Value>,
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
    fn new(from: Value, wishes: &[Value], size: Size) -> Self {
        let config = Config {
            value: from,
            epoch: 0,
            version: 0,
        };
        let instance = Instance::settled(from);
        Self {
            wanted: wishes[0],
            generation: 1,
            wishes_left: wishes[1..].to_vec(),
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

/// Effects of what is written, one at a time, the worse value announced first.
fn effects(world: &World, broken: Break, next: &mut Vec<World>) {
    for node in 0..world.nodes.len() {
        let moved = moved(
            world.nodes[node],
            world.reports.value,
            |from, to| to > from,
            broken,
        );
        if let Some(instance) = moved {
            let mut after = world.clone();
            after.nodes[node] = instance;
            // Nodes are alike: only their number matters.
            after
                .nodes
                .sort_by_key(|node| (node.announced, node.used, node.target));
            next.push(after);
        }
    }
    let manager = moved(
        world.manager,
        world.grace.value,
        |from, to| to < from,
        Break::Nothing,
    );
    if let Some(manager) = manager {
        next.push(World {
            manager,
            ..world.clone()
        });
    }
    if world.server.used != world.tolerations.value {
        next.push(World {
            server: Instance::settled(world.tolerations.value),
            ..world.clone()
        });
    }
}

/// The next thing that a component does about what is written.
fn moved(
    instance: Instance,
    written: Value,
    worse: fn(Value, Value) -> bool,
    broken: Break,
) -> Option<Instance> {
    if instance.announced != instance.used {
        // Half done: the other half follows, whatever is written by now.
        return Some(Instance::settled(instance.target));
    }
    if written == instance.used {
        return None;
    }
    let target = written;
    let announce_first = worse(instance.used, written) != (broken == Break::LateAnnouncement);
    Some(if announce_first {
        Instance {
            announced: written,
            target,
            ..instance
        }
    } else {
        Instance {
            used: written,
            target,
            ..instance
        }
    })
}

fn wishes(world: &World, next: &mut Vec<World>) {
    if let [wish, rest @ ..] = world.wishes_left.as_slice() {
        let mut after = world.clone();
        after.wanted = *wish;
        after.generation += 1;
        after.wishes_left = rest.to_vec();
        next.push(after);
    }
    if let Some(owner) = world.second {
        let mut after = world.clone();
        after.second = None;
        after.writers.push(Writer {
            owner,
            holder: 1,
            slow: false,
            at: At::Start,
        });
        next.push(after);
    }
}

fn rounds(world: &World, made: &mut Decisions, next: &mut Vec<World>) {
    let broken = made.broken;
    for index in 0..world.writers.len() {
        let writer = &world.writers[index];
        let mut go = |at: At| {
            let mut after = world.clone();
            after.writers[index].at = at;
            next.push(after);
        };
        let foreign = |ledger: &LedgerModel| ledger.claim.is_some_and(|claim| claim.0 != writer.owner);
        match &writer.at {
            At::Start if !writer.slow => {
                if foreign(&world.ledger) {
                    continue;
                }
                let mut reading = world.clone();
                reading.writers[index].at = At::Written(
                    world.config(writer.owner).clone(),
                    world.ledger.clone(),
                    world.ledger_version,
                    world.wanted,
                    world.generation,
                    [world.reports.value, world.grace.value, world.tolerations.value],
                );
                decisions(&reading, index, made, next);
            }
            At::Start if broken == Break::ReadOrder => {
                let own = Config {
                    value: 9,
                    epoch: 0,
                    version: 0,
                };
                if !foreign(&world.ledger) {
                    go(At::Ledger(own, world.ledger.clone(), world.ledger_version));
                }
            }
            At::Start => go(At::Own(world.config(writer.owner).clone())),
            // Somebody else's turn: the round ends here without consequences.
            At::Own(_) if foreign(&world.ledger) && broken != Break::NoClaim => go(At::Start),
            At::Own(own) => go(At::Ledger(
                own.clone(),
                world.ledger.clone(),
                world.ledger_version,
            )),
            At::Ledger(own, ledger, version) => {
                let own = match broken {
                    Break::ReadOrder => world.config(writer.owner).clone(),
                    _ => own.clone(),
                };
                let mut values = [world.reports.value, world.grace.value, world.tolerations.value];
                values[writer.owner as usize] = own.value;
                go(At::Written(
                    own,
                    ledger.clone(),
                    *version,
                    world.wanted,
                    world.generation,
                    values,
                ));
            }
            At::Written(..) => decisions(world, index, made, next),
            At::Send(pending) => next.push(deliver(world, index, pending)),
        }
    }
}

/// What decisions depend on.
type Question = (
    u8,
    u8,
    LedgerModel,
    (Value, i64),
    [Value; 3],
    u64,
    Vec<Value>,
    [Value; 2],
    bool,
);

/// Decisions are pure, so each is made once.
struct Decisions {
    broken: Break,
    known: HashMap<Question, Answer>,
}

#[derive(Clone)]
enum Answer {
    Wait,
    Ledger(LedgerModel),
    Component(Option<Value>, u64),
}

/// Reads what components announce, decides, and gets ready to send.
fn decisions(world: &World, index: usize, decisions: &mut Decisions, next: &mut Vec<World>) {
    let writer = &world.writers[index];
    let At::Written(own, ledger, version, wanted, generation, values) = &writer.at else {
        unreachable!("called in this place only");
    };
    let late = ledger.claim.is_some() && world.timeouts_left > 0;
    for late in [Some(false), late.then_some(true)].into_iter().flatten() {
        let question: Question = (
            writer.owner,
            writer.holder,
            ledger.clone(),
            (*wanted, *generation),
            *values,
            own.epoch,
            world.nodes.iter().map(|node| node.announced).collect(),
            [world.manager.announced, world.server.announced],
            late,
        );
        let answer = match decisions.known.get(&question) {
            Some(answer) => answer.clone(),
            None => {
                let answer = answer(&question, decisions.broken);
                decisions.known.insert(question, answer.clone());
                answer
            }
        };
        let mut after = world.clone();
        if let Answer::Ledger(record) = &answer {
            let holders = [ledger, record].map(|ledger| ledger.claim.map(|claim| claim.1));
            if holders[0].is_some() && holders[1].is_some() && holders[0] != holders[1] {
                if after.takeovers_left == 0 {
                    continue;
                }
                after.takeovers_left -= 1;
            }
        }
        if late {
            let failed = matches!(&answer, Answer::Ledger(record) if record.failed != ledger.failed);
            if !failed {
                continue;
            }
            after.timeouts_left -= 1;
        }
        after.writers[index].at = match answer {
            Answer::Wait => At::Start,
            Answer::Ledger(record) => At::Send(Pending::Ledger(record, *version)),
            Answer::Component(value, epoch) => At::Send(Pending::Component(value, epoch, own.version)),
        };
        next.push(after);
    }
}

fn answer(question: &Question, broken: Break) -> Answer {
    let (owner, holder, _, _, _, _, _, _, late) = question;
    let view = view(question, broken);
    let policy = Policy {
        catalog: Catalog::standard(),
        step_timeout: Duration::from_secs(100),
        patience: Duration::ZERO,
    };
    let owner = Owner::ALL[*owner as usize];
    let now = at(if *late { 100 } else { 0 });
    let mut act = decide(owner, &holder.to_string(), &view, &policy, now).act;
    if broken == Break::NoClaim {
        act = without_claims(act, &view, owner, &policy);
    }
    match act {
        Act::Wait(_) => Answer::Wait,
        Act::Record(ledger) => Answer::Ledger(to_model(&ledger)),
        Act::Write { epoch, change } => Answer::Component(change.map(|change| index_of(&change)), epoch),
    }
}

/// The broken variant in which every owner follows the plan as soon as it is its turn.
fn without_claims(act: Act, view: &View, owner: Owner, policy: &Policy) -> Act {
    let Act::Record(_) = act else { return act };
    let mut view = view.clone();
    view.ledger.claim = Some(Claim {
        owner,
        holder: "x".into(),
        epoch: 1,
        taken_over: false,
        generation: 1,
        since: at(0),
        held_since: at(0),
    });
    match decide(owner, "x", &view, policy, at(0)).act {
        Act::Write {
            change: Some(change), ..
        } => Act::Write {
            epoch: 0,
            change: Some(change),
        },
        _ => Act::Wait(None),
    }
}

fn view(question: &Question, broken: Break) -> View {
    let (owner, _, ledger, (wanted, generation), values, epoch, nodes, announced, _) = question;
    let mut epochs = [None; 3];
    epochs[*owner as usize] = Some(*epoch);
    let nodes = nodes.iter().enumerate().map(|(index, announced)| {
        let reading = NodeReading {
            pool: Pool::default(),
            announced: Some(report(*announced)),
            silent: false,
        };
        (index.to_string(), reading)
    });
    let mut ledger = from_model(ledger);
    if broken == Break::NoFence
        && let Some(claim) = &mut ledger.claim
    {
        claim.taken_over = false;
    }
    View {
        spec: Some(Spec {
            generation: *generation,
            profile: PROFILES[*wanted as usize].name.into(),
            pools: BTreeMap::new(),
        }),
        ledger,
        readings: Readings {
            nodes: NodesReading {
                configured: BTreeMap::from([(Pool::default(), report(values[0]))]),
                nodes: nodes.collect(),
                epoch: epochs[0],
                problem: None,
            },
            grace: Single {
                configured: Some(grace(values[1])),
                announced: Some(grace(announced[0])),
                epoch: epochs[1],
                problem: None,
            },
            tolerations: Single {
                configured: Some(tolerations(values[2])),
                announced: Some(tolerations(announced[1])),
                epoch: epochs[2],
                problem: None,
            },
        },
        refused: None,
    }
}

fn deliver(world: &World, index: usize, pending: &Pending) -> World {
    let mut after = world.clone();
    let owner = world.writers[index].owner;
    match pending {
        Pending::Ledger(ledger, version) if *version == world.ledger_version => {
            after.ledger = ledger.clone();
            after.ledger_version += 1;
        }
        Pending::Component(value, epoch, version) if *version == world.config(owner).version => {
            let config = after.config_mut(owner);
            config.value = value.unwrap_or(config.value);
            config.epoch = *epoch;
            config.version += 1;
        }
        // Somebody else wrote meanwhile: the write is refused, and the round starts again.
        Pending::Ledger(..) | Pending::Component(..) => {}
    }
    after.writers[index].at = At::Start;
    after
}

fn index_of(change: &Change) -> Value {
    let index = PROFILES.iter().position(|profile| match change {
        Change::Reports(periods) => periods.values().all(|period| *period == profile.values.report),
        Change::Grace(grace) => *grace == profile.values.grace,
        Change::Tolerations(tolerations) => *tolerations == profile.values.tolerations,
    });
    index.expect("plans use values of profiles") as Value
}

fn to_model(ledger: &Ledger) -> LedgerModel {
    LedgerModel {
        epoch: ledger.epoch,
        claim: ledger.claim.as_ref().map(|claim| {
            let owner = Owner::ALL.iter().position(|owner| *owner == claim.owner).unwrap() as u8;
            (
                owner,
                claim.holder.parse().unwrap(),
                claim.epoch,
                claim.taken_over,
                claim.generation,
            )
        }),
        failed: ledger
            .failure
            .as_ref()
            .map(|failure| (failure.generation, named(&failure.profile))),
        settled: ledger
            .settled
            .as_ref()
            .map(|settled| (settled.generation, named(&settled.profile))),
    }
}

fn from_model(model: &LedgerModel) -> Ledger {
    Ledger {
        epoch: model.epoch,
        claim: model
            .claim
            .map(|(owner, holder, epoch, taken_over, generation)| Claim {
                owner: Owner::ALL[owner as usize],
                holder: holder.to_string(),
                epoch,
                taken_over,
                generation,
                since: at(0),
                held_since: at(0),
            }),
        failure: model.failed.map(|(generation, profile)| Failure {
            owner: Owner::MachineConfigOperator,
            generation,
            profile: PROFILES[profile as usize].name.into(),
            reason: String::new(),
            message: String::new(),
            at: at(0),
        }),
        settled: model.settled.map(|(generation, profile)| Settled {
            generation,
            profile: PROFILES[profile as usize].name.into(),
        }),
    }
}

fn named(name: &str) -> Value {
    PROFILES.iter().position(|profile| profile.name == name).unwrap() as Value
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
        wishes(&world, &mut next);
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
        wishes_left: Vec::new(),
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

fn check(name: &str, from: Value, wishes: &[Value], size: Size) -> usize {
    let explored = explore(World::new(from, wishes, size), Break::Nothing);
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
    for (from, wishes) in [(1, [2, 1]), (2, [1, 2])] {
        states += check("change of mind", from, &wishes, size);
    }
    eprintln!("{states} states of transitions that are taken back at any point");
}

#[test]
fn a_crash_or_a_second_instance_at_any_point_is_harmless() {
    let mut states = 0;
    // The first instance is stopped before it lengthens reports, or shortens patience, and goes on when
    // the wish was taken back: the two ways in which a late write would hurt.
    for (second, from, wishes) in [(0, 1, [2, 1]), (1, 2, [1, 2])] {
        let size = Size {
            nodes: 1,
            owners: 2,
            second: Some(second),
            timeouts: 0,
        };
        states += check("second instance", from, &wishes, size);
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
        let worlds = [(1, [2, 1]), (2, [1, 2])].into_iter().flat_map(|(from, wishes)| {
            let worlds = seconds
                .iter()
                .map(move |second| World::new(from, &wishes, size(*second)));
            worlds.collect::<Vec<_>>()
        });
        let found = worlds
            .into_iter()
            .any(|world| explore(world, broken).unsafe_state.is_some());
        assert!(found, "{name} goes unnoticed");
    }
}
