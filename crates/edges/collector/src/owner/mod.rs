//! Who owns the state, and in what order do events reach it?

mod programmers;
mod publish;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::Event;
use pointsman_api_client::events::Recorder;
use pointsman_model::Moment;
use pointsman_objects::{ConfigNode, EndpointSlice, Lease, Node, Pod};
use pointsman_sli::fold::{Milestone, ProgrammerId};
use pointsman_sli::history::{self, History};
use pointsman_sli::judgement::{self, Level};
use pointsman_sli::measure::Measure;
use pointsman_sli::slo::Day;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::durable::{self, Store};
use crate::facts::Described;
use crate::follow::{Key, Observation};
use crate::gates::deletions::Reader;
use crate::gates::{GateId, Gates, Question};
use crate::metrics::Metrics;
use crate::now;
use crate::traces::Traces;
use crate::view;
use crate::world::World;

pub(crate) use programmers::Followed;

/// How often the state is looked at, whatever happens.
const TICK: Duration = Duration::from_millis(250);
/// How often the measurement is written down.
const SAVE: Duration = Duration::from_secs(10);
/// Events that are taken in at once.
const BATCH: usize = 4096;
/// Metrics that are read at the same time.
const SCRAPES: usize = 64;
/// How often pages that are open are updated.
const PAGE: Duration = Duration::from_millis(500);

/// What the watches deliver.
#[derive(Debug)]
pub(crate) enum Input {
    Slice(Box<Event<EndpointSlice>>),
    Service(Box<Event<Described>>),
    Pod(Box<Event<Pod>>),
    Node(Box<Event<Node>>),
    ConfigNode(Box<Event<ConfigNode>>),
    /// The list of withdrawn nodes.
    Withdrawn(Box<Event<Lease>>),
}

/// What others want of the state.
#[derive(Debug)]
pub(crate) enum Request {
    /// May a pod be stopped?
    Gate(Question),
    /// Whoever asked that does not wait any more.
    HungUp(GateId),
    /// What the page shows.
    State(oneshot::Sender<String>),
    /// A part of it, closer.
    Detail(view::Detail, oneshot::Sender<Option<String>>),
    /// The SLI for perf-dash.
    PerfDash(oneshot::Sender<String>),
}

/// What the owner receives.
pub(crate) struct Lines {
    pub inputs: mpsc::Receiver<Input>,
    pub observed: mpsc::Receiver<Observation>,
    pub requests: mpsc::Receiver<Request>,
    pub stop: watch::Receiver<bool>,
}

/// The state and everything around it.
pub(crate) struct Owner {
    config: Config,
    pub world: World,
    pub gates: Gates,
    pub measure: Measure,
    /// Finished days, oldest first.
    pub days: VecDeque<Day>,
    pub history: History,
    pub followed: BTreeMap<Key, Followed>,
    /// Programmers that relays speak for.
    relayed: HashMap<Key, ProgrammerId>,
    metrics: Metrics,
    traces: Option<Traces>,
    recorder: Recorder,
    observed: mpsc::Sender<Observation>,
    /// Asks the API server for what gates have to know for certain.
    reader: Arc<Reader>,
    turns: Arc<Semaphore>,
    store: Option<Store>,
    page: watch::Sender<Arc<str>>,
    next_tick: Instant,
    next_save: Instant,
    next_page: Instant,
    next_history: Instant,
    /// Whether anything happened since pages were updated.
    changed: bool,
}

/// What an owner is made of.
pub(crate) struct Parts {
    pub config: Config,
    pub metrics: Metrics,
    pub traces: Option<Traces>,
    pub recorder: Recorder,
    pub observed: mpsc::Sender<Observation>,
    pub reader: Arc<Reader>,
    pub store: Option<Store>,
    pub found: durable::Found,
    pub page: watch::Sender<Arc<str>>,
}

impl Owner {
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            metrics,
            traces,
            recorder,
            observed,
            reader,
            store,
            found,
            page,
        } = parts;
        metrics.prepare();
        let at = Instant::now();
        let measure = match found.measure {
            Some(measure) => measure.with_objective(config.objective),
            None => Measure::new(config.objective, now()),
        };
        let mut owner = Self {
            world: World::new(),
            gates: Gates::default(),
            measure,
            days: found.days.into(),
            history: History::default(),
            followed: BTreeMap::new(),
            relayed: HashMap::new(),
            metrics,
            traces,
            recorder,
            observed,
            reader,
            turns: Arc::new(Semaphore::new(SCRAPES)),
            store,
            page,
            next_tick: at + TICK,
            next_save: at + SAVE,
            next_page: at,
            next_history: at,
            changed: true,
            config,
        };
        for listed in owner.config.programmers.clone() {
            owner.follow(&listed.name, listed.url, true);
        }
        owner
    }

    /// The longest wait of a gate, unless asked for another.
    pub fn gate_bound(&self) -> Duration {
        self.config.gate_bound
    }

    /// Runs until it is stopped; then everything is written down.
    pub async fn run(mut self, mut lines: Lines) {
        let (mut inbox, mut observed) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        loop {
            let wake = self.wake();
            tokio::select! {
                biased;
                _ = lines.stop.wait_for(|stop| *stop) => break,
                request = lines.requests.recv() => match request {
                    Some(request) => self.answer(request),
                    None => break,
                },
                count = lines.inputs.recv_many(&mut inbox, BATCH) => {
                    if count == 0 {
                        break;
                    }
                    let now = now();
                    inbox.drain(..).for_each(|input| self.take(input, now));
                    self.changed = true;
                    if self.world.history_lost {
                        // A new process measures the new history; programmers do likewise.
                        tracing::error!("the API server was restored to an older version: starting over");
                        break;
                    }
                }
                _ = lines.observed.recv_many(&mut observed, BATCH) => {
                    observed.drain(..).for_each(|seen| self.observe(seen));
                    self.changed = true;
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            self.open_gates();
            if Instant::now() >= self.next_tick {
                self.tick();
            }
        }
        if let Some(store) = self.store.take()
            && let Err(error) = store.save(&self.measure)
        {
            tracing::error!(%error, "cannot save the measurement");
        }
    }

    fn wake(&self) -> Instant {
        let gate = self.gates.wake();
        gate.map_or(self.next_tick, |gate| gate.min(self.next_tick))
    }

    fn answer(&mut self, request: Request) {
        // Whoever asked may be gone.
        match request {
            Request::Gate(question) => {
                self.gates.ask(question, Instant::now());
            }
            Request::HungUp(gate) => self.gates.hung_up(gate),
            Request::State(reply) => {
                let _ = reply.send(view::state(self, now()).to_string());
            }
            Request::Detail(detail, reply) => {
                let found = view::detail(self, &detail, now());
                let _ = reply.send(found.map(|it| it.to_string()));
            }
            Request::PerfDash(reply) => {
                let _ = reply.send(self.perf_dash(now()));
            }
        }
    }

    fn perf_dash(&self, now: Moment) -> String {
        crate::export::perf_dash(&self.measure, &self.judge(now).unfinished, now)
    }

    fn take(&mut self, input: Input, now: Moment) {
        match input {
            Input::Slice(event) => self.world.slice(*event, now),
            Input::Service(event) => self.world.service(*event, now),
            Input::Pod(event) => self.world.pod(*event, now),
            Input::ConfigNode(event) => self.world.node_config(*event),
            Input::Withdrawn(event) => self.world.withdrawn.observe(*event, now),
            Input::Node(event) => {
                let name = match &*event {
                    Event::Applied { key, .. } | Event::Deleted { key, .. } => Some(key.name().to_owned()),
                    _ => None,
                };
                self.world.node(*event);
                if let Some(name) = name.filter(|_| self.config.discover) {
                    self.discover(&name);
                }
            }
        }
    }

    fn tick(&mut self) {
        let (at, wall) = (Instant::now(), now());
        self.next_tick = at + TICK;
        self.world.fold.review(wall);
        self.take_in_done(wall);
        let circumstances = self.circumstances();
        let judgement = judgement::judge(&self.world.fold, circumstances, wall);
        self.history.observe(judgement.impact.as_ref(), wall);
        let (level, unfinished) = (judgement.level, judgement.unfinished);
        if let Some(day) = self.measure.tick(wall, &unfinished) {
            self.finish_day(day);
        }
        if at >= self.next_history {
            self.next_history = at + history::STEP;
            self.remember(wall);
        }
        if at >= self.next_save {
            self.next_save = at + SAVE;
            self.save();
        }
        // What is not everywhere grows older even if nothing happens.
        let stale = std::mem::take(&mut self.changed) || level != Level::Ok;
        self.changed = stale;
        if at >= self.next_page && self.page.receiver_count() > 0 && stale {
            self.changed = false;
            self.next_page = at + PAGE;
            self.page.send_replace(view::state(self, wall).to_string().into());
        }
        self.publish(wall);
    }

    /// Changes that most programmers have become samples of the exact form.
    fn take_in_done(&mut self, wall: Moment) {
        for (milestone, change) in self.world.fold.drain_done() {
            let (at, share) = match milestone {
                Milestone::Most => (change.most, "0.99"),
                Milestone::All => (change.all, "1"),
            };
            let Some(latency) = at.map(|at| at.since(change.began())) else {
                continue;
            };
            let trace = match (milestone, &self.traces) {
                (Milestone::All, Some(traces)) => {
                    traces.offer(&change, &self.world.fold, self.measure.day().objective())
                }
                _ => None,
            };
            self.metrics
                .reached(share, latency, trace.map(|trace| (trace, wall)));
            match milestone {
                Milestone::Most => {
                    self.metrics.sli.change(&change.what);
                    self.measure.reached_most(latency, wall);
                }
                Milestone::All => {
                    self.history.done(&change, wall);
                    self.metrics.everywhere(&change);
                }
            }
        }
    }

    fn finish_day(&mut self, day: Day) {
        tracing::info!(
            date = view::date(day.number),
            verdict = day.verdict().as_str(),
            coverage = day.coverage(),
            "a cluster-day is over"
        );
        if let Some(store) = self.store.clone() {
            let written = day.clone();
            tokio::task::spawn_blocking(move || {
                if let Err(error) = store.append(&written) {
                    tracing::error!(%error, "cannot save a finished day");
                }
            });
        }
        self.days.push_back(day);
        while self.days.len() > durable::DAYS {
            self.days.pop_front();
        }
    }

    fn save(&self) {
        let Some(store) = self.store.clone() else { return };
        let measure = self.measure.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = store.save(&measure) {
                tracing::error!(%error, "cannot save the measurement");
            }
        });
    }
}
