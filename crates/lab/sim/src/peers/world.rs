//! Nodes, links, Leases and the controller, under one clock.

use super::Outcome;
use super::plan::{Kind, Plan};
use pointsman_model::Text;
use pointsman_node_health::peers::{Change, Limits, Observer, Reachability, Rings, Thresholds};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

const HEARTBEAT: Duration = Duration::from_secs(10);
/// Nodes get to know each other before anything happens to them.
const SETTLED: Duration = Duration::from_secs(5);
/// How long nodes that are cut stay away.
const AWAY: Duration = Duration::from_secs(5);
/// A node that is away for this long has to be found.
const MUST_FIND: Duration = Duration::from_millis(4900);

/// Peers of a node, as bits in the order of its observer.
type Peers = u64;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A node looks at its peers.
    Wake(usize),
    /// An answer to the node's ask of the peer, sent then.
    Answer(usize, usize, Duration),
    Beat(usize),
    /// A write of a Lease reached the API server.
    Written(usize, Peers),
    /// The controller's watch shows what was written at that time.
    Shown(usize, Peers, Duration),
    Pause(usize, Duration),
    Cut(usize),
    Back(usize),
    /// A link carries nothing any more: from, to.
    Break(usize, usize),
    Takeover,
    Tick,
}

/// What happens when; of two events at once the one that was planned first comes first.
struct Planned {
    at: Duration,
    sequence: u64,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest is the first.
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

struct Node {
    observer: Observer,
    /// The numbers of its peers, in the observer's order.
    peers: Vec<usize>,
    paused_until: Duration,
    cut: Option<Duration>,
    back: Option<Duration>,
    /// Withdrawn once since it was cut, by whichever controller.
    found: bool,
    writing: bool,
    written: Peers,
    /// What the API server has.
    lease: Peers,
}

pub struct World {
    plan: Plan,
    random: fastrand::Rng,
    names: Vec<Text>,
    numbers: BTreeMap<Text, usize>,
    nodes: Vec<Node>,
    /// One-way links that carry nothing: from, to.
    broken: BTreeSet<(usize, usize)>,
    controller: Reachability,
    /// Since when the controller has a node withdrawn.
    withdrawn: BTreeMap<usize, Duration>,
    /// When the watch shows the last change that it has: it shows them in their order.
    shown: Duration,
    /// When the controller listed all Leases.
    listed: Duration,
    /// Since when nodes are withdrawn that are there.
    wronged: BTreeMap<usize, Duration>,
    queue: BinaryHeap<Planned>,
    sequence: u64,
    now: Duration,
    asks: u64,
    told: bool,
    outcome: Outcome,
}

impl World {
    pub fn new(plan: Plan, seed: u64, told: bool) -> Self {
        let names: Vec<Text> = (0..plan.nodes)
            .map(|index| format!("node-{index}").into())
            .collect();
        let numbers = names.iter().cloned().zip(0..).collect::<BTreeMap<Text, usize>>();
        let mut rings = Rings::default();
        for name in &names {
            rings.insert(name);
        }
        let node = |name: &Text| {
            let mut observer = Observer::new(Thresholds::default());
            let peers = rings.peers(name);
            observer.set_peers(&peers, Duration::ZERO);
            Node {
                peers: peers.iter().map(|peer| numbers[peer]).collect(),
                observer,
                paused_until: Duration::ZERO,
                cut: None,
                back: None,
                found: false,
                writing: false,
                written: 0,
                lease: 0,
            }
        };
        let nodes = names.iter().map(node).collect();
        let outcome = Outcome {
            plan,
            found: Vec::new(),
            missed: 0,
            restored: Vec::new(),
            wrong: 0,
            lasted: Vec::new(),
            over_limit: 0,
            writes: 0,
            opinions: 0,
            asks: 0.0,
            trace: Vec::new(),
        };
        let mut world = Self {
            random: fastrand::Rng::with_seed(seed),
            nodes,
            names,
            numbers,
            broken: BTreeSet::new(),
            controller: Reachability::default(),
            withdrawn: BTreeMap::new(),
            shown: Duration::ZERO,
            listed: Duration::ZERO,
            wronged: BTreeMap::new(),
            queue: BinaryHeap::new(),
            sequence: 0,
            now: Duration::ZERO,
            asks: 0,
            told,
            outcome,
            plan,
        };
        world.prepare();
        world
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.queue.push(Planned { at, sequence, event });
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    fn prepare(&mut self) {
        for node in 0..self.plan.nodes {
            let phase = self.millis(0..250);
            self.at(phase, Event::Wake(node));
            let beat = self.millis(0..10_000);
            self.at(beat, Event::Beat(node));
        }
        self.take_over();
        self.at(Duration::ZERO, Event::Tick);
        if self.plan.takeover {
            let at = self.millis(5_000..15_000);
            self.at(at, Event::Takeover);
        }
        self.plan_pauses();
        self.plan_faults();
    }

    /// Every node pauses about once in ten seconds, up to the plan's longest.
    fn plan_pauses(&mut self) {
        let longest = self.plan.pause.as_millis() as u64;
        let many = self.plan.nodes * self.plan.length.as_secs() as usize / 10;
        for _ in 0..if longest > 0 { many } else { 0 } {
            let node = self.random.usize(0..self.plan.nodes);
            let length = self.millis(1..longest + 1);
            let at = self.millis(3_000..self.plan.length.as_millis() as u64);
            self.at(at, Event::Pause(node, length));
        }
    }

    fn plan_faults(&mut self) {
        let nodes = self.plan.nodes;
        let limit = Limits::default().of_cluster(nodes);
        let mut order: Vec<usize> = (0..nodes).collect();
        self.random.shuffle(&mut order);
        let begin = SETTLED + self.millis(0..1000);
        let count = match self.plan.kind {
            Kind::Cut | Kind::Asymmetric | Kind::SlowServer => 1,
            // A quarter, so that no zone loses half by chance.
            Kind::Several | Kind::Partition => (nodes / 4).clamp(1, limit),
            Kind::Most => self.random.usize(nodes.div_ceil(2)..=nodes),
            Kind::Reboots | Kind::Calm => 0,
        };
        for node in order.iter().take(count) {
            self.at(begin, Event::Cut(*node));
            self.at(begin + AWAY, Event::Back(*node));
        }
        if self.plan.kind == Kind::Reboots {
            for (turn, node) in order.iter().take(4).enumerate() {
                let at = begin + Duration::from_secs(2) * turn as u32;
                self.at(at, Event::Cut(*node));
                self.at(at + Duration::from_millis(1500), Event::Back(*node));
            }
        }
        if self.plan.kind == Kind::Asymmetric {
            for asker in 0..nodes {
                // One link of every third node, one way.
                if self.random.u32(0..3) == 0 {
                    let peers = &self.nodes[asker].peers;
                    let peer = peers[self.random.usize(0..peers.len())];
                    let link = if self.random.bool() {
                        (asker, peer)
                    } else {
                        (peer, asker)
                    };
                    if self.random.bool() {
                        self.broken.insert(link);
                    } else {
                        let at = self.millis(5_000..8_000);
                        self.at(at, Event::Break(link.0, link.1));
                    }
                }
            }
        }
    }

    pub fn run(mut self) -> Outcome {
        while let Some(Planned { at, event, .. }) = self.queue.pop() {
            if at > self.plan.length {
                break;
            }
            self.now = at;
            self.happen(event);
        }
        self.end_wrongs(|_| true);
        let node_seconds = self.plan.nodes as f64 * self.plan.length.as_secs_f64();
        self.outcome.asks = self.asks as f64 / node_seconds;
        self.outcome
    }

    fn tell(&mut self, words: impl FnOnce(&Self) -> String) {
        if self.told {
            let line = format!("{:>9.3} s  {}", self.now.as_secs_f64(), words(self));
            self.outcome.trace.push(line);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(node) => self.wake(node),
            Event::Answer(node, peer, sent) => self.answered(node, peer, sent),
            Event::Beat(node) => {
                let next = self.now + HEARTBEAT;
                self.at(next, Event::Beat(node));
                if !self.nodes[node].writing {
                    self.write(node);
                }
            }
            Event::Written(node, opinions) => self.written(node, opinions),
            // What its first list had, the watch does not repeat.
            Event::Shown(_, _, written) if written < self.listed => {}
            Event::Shown(node, opinions, _) => {
                self.show(node, opinions);
                self.decide();
            }
            Event::Pause(node, length) => {
                self.tell(|world| format!("{} pauses for {length:?}", world.names[node]));
                let until = self.now + length;
                let node = &mut self.nodes[node];
                node.paused_until = node.paused_until.max(until);
            }
            Event::Cut(node) => {
                self.tell(|world| format!("{} is cut off", world.names[node]));
                let cut = &mut self.nodes[node];
                (cut.cut, cut.back, cut.found) = (Some(self.now), None, false);
            }
            Event::Back(node) => self.back(node),
            Event::Break(from, to) => {
                self.tell(|world| format!("{} no longer reaches {}", world.names[from], world.names[to]));
                self.broken.insert((from, to));
            }
            Event::Takeover => {
                self.tell(|_| "another controller takes over".into());
                self.take_over();
            }
            Event::Tick => {
                self.decide();
                self.at(self.now + Duration::from_millis(50), Event::Tick);
            }
        }
    }

    fn back(&mut self, node: usize) {
        self.tell(|world| format!("{} is back", world.names[node]));
        let away = self.nodes[node].cut.take();
        self.nodes[node].back = Some(self.now);
        // An agent that could not write has something to say now.
        self.write_if_changed(node);
        let long = away.is_some_and(|since| self.now - since >= MUST_FIND);
        if long && self.plan.kind != Kind::Most && !self.withdrawn.contains_key(&node) {
            self.outcome.missed += 1;
        }
    }

    fn wake(&mut self, node: usize) {
        let paused = self.nodes[node].paused_until;
        if paused > self.now {
            // What has arrived meanwhile is read first.
            self.at(paused + Duration::from_micros(1), Event::Wake(node));
            return;
        }
        let mut asked = Vec::new();
        let now = self.now;
        let changed = self.nodes[node].observer.look(now, |index| asked.push(index));
        for index in asked {
            let peer = self.nodes[node].peers[index];
            self.ask(node, peer);
        }
        if changed {
            self.opinion_changed(node);
        }
        let next = self.nodes[node].observer.wake_at();
        let next = next
            .unwrap_or(now + HEARTBEAT)
            .max(now + Duration::from_micros(100));
        self.at(next, Event::Wake(node));
    }

    fn ask(&mut self, node: usize, peer: usize) {
        self.asks += 1;
        if !self.carried(node, peer) {
            return;
        }
        let way = self.way();
        let there = (self.now + way).max(self.nodes[peer].paused_until);
        if self.carried(peer, node) {
            let back = there + self.way();
            let sent = self.now;
            self.at(back, Event::Answer(node, peer, sent));
        }
    }

    /// Half of a round trip, with a tail.
    fn way(&mut self) -> Duration {
        let tail = -(1.0 - self.random.f64()).ln() * 0.2;
        self.plan.trip.mul_f64(0.5 + tail)
    }

    fn carried(&mut self, from: usize, to: usize) -> bool {
        let apart = self.nodes[from].cut.is_some() != self.nodes[to].cut.is_some();
        let dead = self.plan.kind != Kind::Partition
            && (self.nodes[from].cut.is_some() || self.nodes[to].cut.is_some());
        let lost = self.random.u32(0..100) < self.plan.loss;
        !(apart || dead || lost || self.broken.contains(&(from, to)))
    }

    fn answered(&mut self, node: usize, peer: usize, sent: Duration) {
        let paused = self.nodes[node].paused_until;
        if paused > self.now {
            self.at(paused, Event::Answer(node, peer, sent));
            return;
        }
        let name = &self.names[peer];
        if self.nodes[node].observer.answered(name, sent, self.now) {
            self.opinion_changed(node);
        }
    }

    fn opinion_changed(&mut self, node: usize) {
        self.outcome.opinions += 1;
        self.tell(|world| {
            let names: Vec<&str> = world.nodes[node]
                .observer
                .opinions()
                .map(|name| &**name)
                .collect();
            format!("{} does not reach [{}]", world.names[node], names.join(" "))
        });
        self.write_if_changed(node);
    }

    fn opinions(&self, node: usize) -> Peers {
        let peers = self.nodes[node].observer.peers().enumerate();
        peers.fold(0, |bits, (index, (_, known))| {
            bits | Peers::from(known.unreachable()) << index
        })
    }

    /// The controller sees what a Lease says.
    fn show(&mut self, node: usize, opinions: Peers) {
        let peers = self.nodes[node].peers.iter().enumerate();
        let accused = peers.filter(|(index, _)| opinions >> index & 1 == 1);
        let accused = accused.map(|(_, peer)| &*self.names[*peer]);
        self.controller
            .observe_opinions(&self.names[node], accused, self.now);
    }

    fn write_if_changed(&mut self, node: usize) {
        if !self.nodes[node].writing && self.opinions(node) != self.nodes[node].written {
            self.write(node);
        }
    }

    /// A write goes out, if the API server can be reached.
    fn write(&mut self, node: usize) {
        if self.nodes[node].cut.is_some() && self.plan.kind != Kind::Partition {
            return;
        }
        let slow = self.plan.kind == Kind::SlowServer;
        let takes = self.millis(if slow { 5..2000 } else { 3..25 });
        let opinions = self.opinions(node);
        self.outcome.writes += u64::from(opinions != self.nodes[node].written);
        self.nodes[node].writing = true;
        self.nodes[node].written = opinions;
        self.at(self.now + takes, Event::Written(node, opinions));
    }

    fn written(&mut self, node: usize, opinions: Peers) {
        self.nodes[node].writing = false;
        self.nodes[node].lease = opinions;
        let lag = self.millis(1..25);
        self.shown = self.shown.max(self.now + lag);
        self.at(self.shown, Event::Shown(node, opinions, self.now));
        self.write_if_changed(node);
    }

    fn take_over(&mut self) {
        self.controller = Reachability::new(Limits::default());
        self.listed = self.now;
        for (index, name) in self.names.iter().enumerate() {
            let zone = format!("zone-{}", index % self.plan.zones);
            self.controller.observe_node(name, &zone.into());
        }
        for node in 0..self.nodes.len() {
            self.show(node, self.nodes[node].lease);
        }
        self.withdrawn.clear();
        self.decide();
        let withdrawn = self.withdrawn.clone();
        self.end_wrongs(|node| !withdrawn.contains_key(&node));
    }

    /// Wrong withdrawals of these nodes are over.
    fn end_wrongs(&mut self, of: impl Fn(usize) -> bool) {
        let now = self.now;
        let ended = self.wronged.extract_if(.., |node, _| of(*node));
        let lasted = ended.map(|(_, since)| (now - since).as_millis() as u64);
        self.outcome.lasted.extend(lasted);
    }

    fn decide(&mut self) {
        for change in self.controller.decide(self.now) {
            match change {
                Change::Withdrawn { node, votes } => {
                    self.tell(|_| format!("{node} is withdrawn: {votes}"));
                    self.judge(self.numbers[&node]);
                }
                Change::Restored { node, votes } => {
                    self.tell(|_| format!("{node} is restored: {votes}"));
                    let number = self.numbers[&node];
                    self.withdrawn.remove(&number);
                    if self.wronged.contains_key(&number) {
                        self.end_wrongs(|node| node == number);
                    } else if let Some(back) = self.nodes[number].back {
                        self.outcome.restored.push((self.now - back).as_millis() as u64);
                    }
                }
            }
        }
        let limits = Limits::default();
        let mut zones: BTreeMap<usize, usize> = BTreeMap::new();
        for node in self.withdrawn.keys() {
            *zones.entry(node % self.plan.zones).or_default() += 1;
        }
        let over = zones.iter().any(|(zone, count)| {
            let size = (self.plan.nodes - zone).div_ceil(self.plan.zones);
            *count > limits.of_zone(size)
        });
        let over = over || self.withdrawn.len() > limits.of_cluster(self.plan.nodes);
        self.outcome.over_limit += u32::from(over);
    }

    /// How long an opinion may take to the controller, and the opposite one behind it.
    fn under_way(&self) -> Duration {
        Duration::from_secs(if self.plan.kind == Kind::SlowServer { 4 } else { 1 })
    }

    fn judge(&mut self, node: usize) {
        self.withdrawn.insert(node, self.now);
        match (self.nodes[node].cut, self.nodes[node].back) {
            (Some(_), _) if self.nodes[node].found => {}
            (Some(since), _) => {
                self.nodes[node].found = true;
                self.outcome.found.push((self.now - since).as_millis() as u64);
            }
            // The verdict was under way when it came back.
            (None, Some(back)) if self.now - back < self.under_way() => {}
            (None, _) if self.out_of_reach(node) => {}
            (None, _) => {
                self.outcome.wrong += 1;
                self.wronged.entry(node).or_insert(self.now);
            }
        }
    }

    /// Whether broken links part a node from as many of its living observers as it has left, or more.
    fn out_of_reach(&self, node: usize) -> bool {
        let asks = |(_, other): &(usize, &Node)| other.cut.is_none() && other.peers.contains(&node);
        let observers = self.nodes.iter().enumerate().filter(asks);
        let apart =
            |observer| self.broken.contains(&(observer, node)) || self.broken.contains(&(node, observer));
        let (apart, reach): (Vec<usize>, Vec<usize>) = observers
            .map(|(observer, _)| observer)
            .partition(|observer| apart(*observer));
        !apart.is_empty() && apart.len() >= reach.len()
    }
}
