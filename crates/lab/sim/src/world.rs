//! One run: nodes, links, an API server, the controller and the operators under one clock.

mod node;
mod verdicts;

use crate::events::{Events, Millis, seconds};
use crate::link::{Failure, Link, Outage, Weather};
use crate::rollout::{Move, Rollout};
use crate::scenario::{Heartbeats, Scenario, size};
use fastrand::Rng;
use node::SimNode;
use pointsman_latency_profile::{ReportPeriod, Values};
use pointsman_model::Moment;
use pointsman_node_health::evict::Evictor;
use pointsman_node_health::{Monitor, Now, Settings};
use std::time::Duration;

/// Faults are prepared up to here; no run takes as long.
const HORIZON: Millis = seconds(4000);
/// Nodes change their report period within so long.
const SPREAD: Millis = seconds(60);
/// Kubelets renew leases this often, and give a request at most the duration of a lease.
const RENEWAL: Millis = seconds(10);
const LEASE: Millis = seconds(40);
/// When decisions about nodes that never reported are made, it is this late; no node here is one.
const EPOCH: Moment = Moment::from_seconds(0);

/// What became of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Index of the scenario.
    pub scenario: usize,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Verdicts that a living node is unreachable; each taints it against new pods.
    pub false_unreachable: u32,
    /// Living nodes tainted for eviction.
    pub false_evicting: u32,
    /// Pods evicted from living nodes.
    pub false_evicted: u32,
    /// From the last sign of life of a dead node to the verdict.
    pub detected: Option<Millis>,
    /// From the same to the eviction of its pod.
    pub evicted: Option<Millis>,
    /// A node died, and was not found or its pod not evicted; or the rollout did not end.
    pub missed: bool,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
}

impl Outcome {
    /// Whether a living node was harmed.
    pub fn harmed(&self) -> bool {
        self.false_unreachable > 0
    }
}

#[derive(Debug)]
enum Event {
    /// A node's turn to report.
    Report(usize),
    /// The controller sees a report, which tells the period in use.
    Reported(usize, ReportPeriod),
    /// A node's turn to renew its lease.
    Renew(usize),
    /// The controller sees the renewal.
    Renewed(usize),
    /// A node takes on the report period that is written.
    Switch(usize),
    /// The controller's turn to look at all nodes.
    Check,
    /// The controller has something due.
    Wake,
    /// The operators' turn to look.
    Operate,
    /// The controller dies and another one takes over.
    Restart,
    /// A node dies.
    Die(usize),
    /// Enough was seen.
    End,
}

/// Runs a seed to its end.
pub fn run(seed: u64, trace: bool) -> Outcome {
    let mut world = World::new(seed, trace);
    while let Some((at, event)) = world.events.pop() {
        world.now = at;
        if let Event::End = event {
            break;
        }
        world.happen(event);
    }
    let Outcome {
        detected, evicted, ..
    } = world.outcome;
    let unfinished = world.victim.is_some() && (detected.is_none() || evicted.is_none());
    world.outcome.missed = unfinished || !world.over;
    world.outcome
}

struct World {
    now: Millis,
    rng: Rng,
    events: Events<Event>,
    heartbeats: Heartbeats,
    nodes: Vec<SimNode>,
    server_down: Vec<Outage>,
    /// From the API server to the controller.
    watch_lag: Millis,
    settings: Settings,
    monitor: Monitor,
    evictor: Evictor,
    /// The controller's next wake-up, so that it is not asked for twice.
    woken: Option<Millis>,
    rollout: Rollout,
    over: bool,
    victim: Option<usize>,
    outcome: Outcome,
    tracing: bool,
}

impl World {
    fn new(seed: u64, tracing: bool) -> Self {
        let (index, scenario) = Scenario::of_seed(seed);
        let mut rng = Rng::with_seed(seed);
        let count = size(&mut rng);
        let weather = [Weather::Calm, Weather::Changing, Weather::Rough, Weather::Rough][rng.usize(..4)];
        let server_down = server_outages(&mut rng);
        let start = scenario.start();
        let settings = Settings {
            grace_period: start.grace.0,
            ..Settings::default()
        };
        let zones = rng.usize(1..=3);
        let nodes = (0..count)
            .map(|number| {
                let link = Link::new(&mut rng, weather, &server_down, HORIZON);
                SimNode::new(number, number % zones, start, link)
            })
            .collect();
        let mut world = Self {
            now: 0,
            events: Events::default(),
            heartbeats: scenario.heartbeats,
            nodes,
            server_down,
            watch_lag: rng.u64(5..=500),
            settings,
            monitor: Monitor::new(settings),
            evictor: Evictor::default(),
            woken: None,
            rollout: Rollout::new(&scenario, &mut rng),
            over: false,
            victim: None,
            outcome: Outcome {
                scenario: index,
                nodes: count,
                ..Outcome::default()
            },
            tracing,
            rng,
        };
        world.trace(|| {
            format!(
                "seed {seed}: {} ({}), {count} nodes, {weather:?}",
                scenario.route, scenario.heartbeats
            )
        });
        for down in world.server_down.clone() {
            let second = |at: Millis| at as f64 / 1000.0;
            world.trace(|| {
                let (from, to) = (second(down.from), second(down.to));
                format!("the API server will be down from {from:.3} s to {to:.3} s")
            });
        }
        world.start_controller();
        world.schedule_first(start);
        world
    }

    fn schedule_first(&mut self, start: Values) {
        let period = millis(start.report.get());
        for node in 0..self.nodes.len() {
            let at = self.rng.u64(..period);
            self.events.add(at, Event::Report(node));
            if self.heartbeats == Heartbeats::Leases {
                let at = self.rng.u64(..RENEWAL);
                self.events.add(at, Event::Renew(node));
            }
        }
        let first_check = self.rng.u64(..seconds(5));
        self.events.add(first_check, Event::Check);
        self.events.add(seconds(1), Event::Operate);
        self.events.add(HORIZON, Event::End);
        if self.rng.u8(..4) == 0 {
            let at = self.rng.u64(..seconds(600));
            self.events.add(at, Event::Restart);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Report(node) => self.report(node),
            Event::Reported(node, period) => self.reported(node, period),
            Event::Renew(node) => self.renew(node),
            Event::Renewed(node) => self.renewed(node),
            Event::Switch(node) => self.nodes[node].period = self.rollout.written().report,
            Event::Check => self.check(),
            Event::Wake => {
                self.woken = None;
                self.pace();
            }
            Event::Operate => self.operate(),
            // A new controller gives everybody their whole time again, which is not what a death measures.
            Event::Restart if self.victim.is_some() => {}
            Event::Restart => {
                self.trace(|| "the controller is replaced".into());
                self.start_controller();
            }
            Event::Die(node) => {
                self.trace(|| format!("n{node} dies"));
                self.nodes[node].alive = false;
                self.victim = Some(node);
            }
            Event::End => {}
        }
    }

    fn report(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if !node.alive {
            return;
        }
        let period = millis(node.period.get());
        let sent = node.link.send(self.now, period.min(LEASE), &mut self.rng);
        if let Some(at) = sent.arrives {
            node.report_arrives = at;
            node.report_shown = false;
            self.events
                .add(at + self.watch_lag, Event::Reported(number, node.period));
        } else if self.tracing {
            self.trace(|| format!("a report of n{number} is lost"));
        }
        let next = sent.done + jittered(period, &mut self.rng);
        self.events.add(next, Event::Report(number));
    }

    fn renew(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if !node.alive {
            return;
        }
        let timeout = millis(node.period.get()).min(LEASE);
        let sent = node.link.send(self.now, timeout, &mut self.rng);
        if let Some(at) = sent.arrives {
            node.lease_arrives = at;
            node.revision += 1;
            self.events.add(at + self.watch_lag, Event::Renewed(number));
        }
        let next = sent.done + jittered(RENEWAL, &mut self.rng);
        self.events.add(next, Event::Renew(number));
    }

    /// The operators look, and write what the rollout says.
    fn operate(&mut self) {
        let pause = self.rng.u64(seconds(2)..=seconds(10));
        let seen = self.nodes.iter().map(|node| node.seen_period);
        match self.rollout.look(self.now, seen) {
            Move::Wait => {}
            Move::Write(values) => self.write(values),
            Move::Done if !self.over => {
                self.over = true;
                self.trace(|| "the rollout is over".into());
                self.epilogue();
            }
            Move::Done => {}
        }
        if !self.over {
            self.events.add(self.now + pause, Event::Operate);
        }
    }

    fn write(&mut self, values: Values) {
        self.trace(|| {
            format!(
                "written: report {}, grace {}, tolerations {}",
                values.report, values.grace, values.tolerations
            )
        });
        for node in 0..self.nodes.len() {
            let at = self.now + self.rng.u64(..SPREAD);
            self.events.add(at, Event::Switch(node));
        }
        if self.settings.grace_period != values.grace.0 {
            self.settings.grace_period = values.grace.0;
            self.monitor.set_settings(self.settings, self.clock());
        }
    }

    /// After the rollout one node dies, if that can be measured.
    fn epilogue(&mut self) {
        let values = self.rollout.written();
        let tick = self.tick();
        for node in &mut self.nodes {
            node.replace_pod(values);
            self.evictor.pod_seen(&node.pod, tick);
        }
        if !self.rollout.measures_death() {
            self.events.add(self.now + seconds(60), Event::End);
            return;
        }
        let dies = self.now + self.rng.u64(seconds(30)..=seconds(90));
        let node = self.rng.usize(..self.nodes.len());
        self.events.add(dies, Event::Die(node));
        // It must be found out by then.
        let late = dies + millis(values.time_to_evict()) + seconds(120);
        self.events.add(late, Event::End);
    }

    fn clock(&self) -> Now {
        Now {
            tick: self.tick(),
            wall: EPOCH,
        }
    }

    fn tick(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn server_is_down(&self) -> bool {
        self.server_down
            .iter()
            .any(|outage| (outage.from..outage.to).contains(&self.now))
    }

    fn trace(&mut self, text: impl FnOnce() -> String) {
        if self.tracing {
            let line = format!("{:>9.3} s  {}", self.now as f64 / 1000.0, text());
            self.outcome.trace.push(line);
        }
    }
}

/// In a quarter of the runs the API server restarts once.
fn server_outages(rng: &mut Rng) -> Vec<Outage> {
    if rng.u8(..4) != 0 {
        return Vec::new();
    }
    let from = rng.u64(seconds(60)..seconds(600));
    vec![Outage {
        from,
        to: from + rng.u64(seconds(3)..=seconds(8)),
        failure: Failure::Refused,
    }]
}

fn jittered(period: Millis, rng: &mut Rng) -> Millis {
    // Kubelets add up to 4 %.
    period + (period as f64 * 0.04 * rng.f64()) as Millis
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
