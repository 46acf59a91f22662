//! Nodes with opinions, Leases that carry them, a watch that lags, and a controller that folds them.

use pointsman_model::{Moment, Text};
use pointsman_node_health::peers::{Limits, Reachability, Renewals, Rings};
use std::collections::BTreeSet;
use std::time::Duration;

pub const LIMITS: Limits = Limits {
    fresh: Duration::from_secs(15),
    zone_share: 0.5,
    cluster_share: 0.5,
    hold: Duration::from_secs(5),
    regain: Duration::from_secs(2),
};

/// What the clock of everybody says in the beginning.
const START: Moment = Moment::from_seconds(1_000_000);

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// A node comes to another opinion of a peer.
    Flip(usize, usize),
    /// It writes its Lease, if that says something else.
    Write(usize),
    /// The watch shows the controller the Lease.
    Deliver(usize),
    /// A node's agent starts anew: it has no opinions, and its first Lease says so.
    Restart(usize),
    /// A node is gone for good; its Lease stays as it is.
    Die(usize),
    /// The controller's watch breaks, and it lists again what the API server has.
    Relist,
    /// Another controller takes over; it lists what the API server has.
    Takeover,
    /// Ten seconds pass, in which the living renew their Leases and the watch catches up.
    Pass,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub alive: bool,
    pub unreachable: BTreeSet<usize>,
    pub lease: BTreeSet<usize>,
    pub shown: BTreeSet<usize>,
    /// When the Lease was renewed last, by the agent's clock; passes since then.
    renewed: Moment,
    since: u32,
    /// The controller has not seen that yet.
    unseen: bool,
    /// Passes since the controller saw the Lease renewed.
    pub age: u32,
}

#[derive(Clone, Debug)]
pub struct World {
    pub names: Vec<Text>,
    pub agents: Vec<Agent>,
    pub observers: Vec<Vec<usize>>,
    pub halves: Vec<usize>,
    pub controller: Reachability,
    renewals: Renewals,
    now: Duration,
    writes: i64,
}

impl Agent {
    fn write(&mut self, now: Moment) {
        self.lease = self.unreachable.clone();
        (self.renewed, self.since, self.unseen) = (now, 0, true);
    }
}

impl World {
    pub fn new(count: usize) -> Self {
        let names: Vec<Text> = (0..count).map(|index| format!("n{index}").into()).collect();
        let mut rings = Rings::default();
        for name in &names {
            rings.insert(name);
        }
        let number = |name: &Text| names.iter().position(|known| known == name).expect("known");
        let observers = names.iter().map(|name| rings.observers(name));
        let (observers, halves) = observers
            .map(|found| (found.all().iter().map(number).collect(), found.first().len()))
            .unzip();
        let agent = Agent {
            alive: true,
            unreachable: BTreeSet::new(),
            lease: BTreeSet::new(),
            shown: BTreeSet::new(),
            renewed: START,
            since: 0,
            unseen: true,
            age: 0,
        };
        let mut world = Self {
            agents: vec![agent; count],
            observers,
            halves,
            controller: Reachability::default(),
            names,
            renewals: Renewals::default(),
            now: Duration::ZERO,
            writes: 0,
        };
        world.step(Move::Takeover);
        world
    }

    /// No two writes are of one moment.
    fn clock(&mut self) -> Moment {
        self.writes += 1;
        Moment(START.0 + self.writes).after(self.now)
    }

    pub fn step(&mut self, next: Move) {
        let clock = self.clock();
        match next {
            Move::Flip(node, peer) => {
                let agent = &mut self.agents[node];
                if agent.alive && !agent.unreachable.remove(&peer) {
                    agent.unreachable.insert(peer);
                }
            }
            Move::Write(node) => {
                let agent = &mut self.agents[node];
                if agent.alive && agent.lease != agent.unreachable {
                    agent.write(clock);
                }
            }
            Move::Deliver(node) => {
                if self.agents[node].unseen {
                    self.deliver(node);
                }
            }
            Move::Restart(node) => {
                let agent = &mut self.agents[node];
                if agent.alive {
                    agent.unreachable.clear();
                    agent.write(clock);
                }
            }
            Move::Die(node) => self.agents[node].alive = false,
            Move::Relist => (0..self.agents.len()).for_each(|node| self.deliver(node)),
            Move::Takeover => {
                self.controller = Reachability::new(LIMITS);
                self.renewals = Renewals::default();
                for name in &self.names {
                    self.controller.observe_node(name, &"zone".into());
                }
                for node in 0..self.agents.len() {
                    // What was renewed long ago says nothing to one that sees it for the first time.
                    let agent = &mut self.agents[node];
                    (agent.age, agent.unseen) = (2, agent.since < 2);
                    self.deliver(node);
                }
            }
            Move::Pass => self.pass(),
        }
        self.controller.decide(self.now);
    }

    fn pass(&mut self) {
        self.now += Duration::from_secs(10);
        for node in 0..self.agents.len() {
            let clock = self.clock();
            let agent = &mut self.agents[node];
            agent.age = (agent.age + 1).min(2);
            agent.since = (agent.since + 1).min(2);
            if agent.alive {
                agent.write(clock);
            }
            if agent.unseen {
                self.deliver(node);
            }
        }
    }

    fn deliver(&mut self, node: usize) {
        let clock = self.clock();
        let agent = &mut self.agents[node];
        let (name, renewed) = (&self.names[node], Some(agent.renewed));
        agent.shown = agent.lease.clone();
        if std::mem::take(&mut agent.unseen) {
            agent.age = 0;
        }
        if !self.renewals.observe(name, renewed, clock, LIMITS.fresh) {
            return;
        }
        let accused = agent.shown.iter().map(|peer| &*self.names[*peer]);
        self.controller
            .observe_opinions(&self.names[node], accused, self.now);
    }

    pub fn withdrawn(&self, node: usize) -> bool {
        self.controller.withdrawn().any(|name| *name == self.names[node])
    }

    /// What decides what can happen next, apart from the time.
    pub fn key(&self) -> String {
        let mut key = String::new();
        for agent in &self.agents {
            key += &format!(
                "{}{:?}{:?}{:?}{}{}{} ",
                agent.alive,
                agent.unreachable,
                agent.lease,
                agent.shown,
                agent.age,
                agent.since,
                agent.unseen
            );
        }
        for node in 0..self.names.len() {
            key += &format!("{} ", self.withdrawn(node));
        }
        key + &format!("{}{}", self.controller.seem_gone(), self.controller.holds())
    }
}
