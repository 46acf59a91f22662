//! How does one thread make all checks of a node?
//!
//! The loop waits for sockets, commands and the next due time. All state is in three slabs:
//! containers decide, workers are their probes, connections are exchanges under way.

mod checks;
mod pods;

use crate::connection::Connection;
use crate::exec::ExecRequest;
use crate::metrics::{Metrics, ProbeMetrics};
use crate::prober::{Command, Config, Inbox, Ticket, Wake};
use crate::report::Report;
use crate::target::Check;
use crate::timers::Timers;
use crate::url::Url;
use pointsman_probe::{Budget, Container, Kind, Pace, Tick, Window};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, Timespec, clock_gettime};
use rustls::ClientConfig;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Marks the descriptor that commands wake us by.
const WAKE: u64 = u64::MAX;
/// How long a server that was asked to close may take before we do, as long as upstream's
/// sockets linger.
const LINGER: Duration = Duration::from_secs(1);
/// How often the budget is looked at.
const WINDOW: Duration = Duration::from_secs(1);
/// With more checks per second than this, sockets are looked at once per [`NAP`]: several answers then cost one
/// wake-up.
const BUSY: u32 = 1000;
const NAP: Duration = Duration::from_millis(1);
/// How many checks begin before sockets get their turn again.
const BEGIN_AT_ONCE: usize = 128;
const EVENTS: usize = 512;
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;
/// Sockets of each family that are kept to be used again.
const MAX_IDLE: usize = 256;
const SCRATCH: usize = 16 << 10;

/// Everything that an engine is made of.
pub(crate) struct Parts {
    pub config: Config,
    pub metrics: Metrics,
    pub tls: Arc<ClientConfig>,
    pub wake: Arc<Wake>,
    pub commands: Receiver<Command>,
    pub inbox: Inbox,
    pub reports: UnboundedSender<Report>,
    pub exec: UnboundedSender<(Ticket, ExecRequest)>,
    pub runtime: tokio::runtime::Handle,
}

/// The probing thread's state.
pub(crate) struct Engine {
    parts: Parts,
    epoll: OwnedFd,
    pods: HashMap<Arc<str>, Pod>,
    containers: Slab<ContainerEntry>,
    workers: Slab<Worker>,
    connections: Slab<Exchange>,
    timers: Timers,
    /// Workers that wait for a connection to become free, with their generations.
    backlog: VecDeque<(usize, u32)>,
    /// Sockets that were used and can be used again, for IPv4 and IPv6, and how many were never needed in this window.
    idle: [Vec<OwnedFd>; 2],
    unneeded: [usize; 2],
    /// Connections that wait for their server to close, oldest first.
    lingering: VecDeque<(Tick, usize, u32)>,
    generation: u32,
    pace: Pace,
    budget: Budget,
    window: (Tick, Duration),
    /// Checks begun in this window, and whether there were many in the last.
    begun: u32,
    busy: bool,
    started: Tick,
    scratch: Box<[u8]>,
}

struct Pod {
    namespace: Arc<str>,
    name: Arc<str>,
    containers: Vec<usize>,
    terminating: bool,
}

struct ContainerEntry {
    pod_uid: Arc<str>,
    target: crate::target::ContainerTarget,
    container: Container,
    /// When it began to run, if it runs.
    running: Option<Tick>,
    workers: [Option<usize>; 3],
}

struct Worker {
    container: usize,
    kind: Kind,
    check: Arc<Check>,
    generation: u32,
    under_way: Option<UnderWay>,
    checks: u32,
    metrics: ProbeMetrics,
}

/// A check that has begun.
struct UnderWay {
    began: Tick,
    deadline: Tick,
    timeout: Duration,
    connection: Option<usize>,
    /// Where redirects have led, and how many.
    redirected: Option<Url>,
    redirects: u8,
    /// The address of a host that is a name.
    address: Option<std::net::IpAddr>,
}

struct Exchange {
    connection: Connection,
    /// Who waits for it; nobody waits for one that is only to be closed.
    worker: Option<usize>,
    generation: u32,
    /// 0 for IPv4, 1 for IPv6.
    family: usize,
}

impl Engine {
    pub fn new(parts: Parts) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &parts.wake.descriptor, data, epoll::EventFlags::IN)?;
        let now = tick();
        let config = parts.config;
        parts.metrics.stretch.set(1.0);
        Ok(Self {
            parts,
            epoll,
            pods: HashMap::new(),
            containers: Slab::new(),
            workers: Slab::new(),
            connections: Slab::new(),
            timers: Timers::default(),
            backlog: VecDeque::new(),
            idle: Default::default(),
            unneeded: [0; 2],
            lingering: VecDeque::new(),
            generation: 0,
            pace: Pace {
                policy: config.policy,
                stretch: 1.0,
            },
            budget: Budget::new(config.limits),
            window: (now, Duration::ZERO),
            begun: 0,
            busy: false,
            started: now,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
        })
    }

    /// Runs until it is asked to end.
    pub fn run(mut self) {
        self.window = (tick(), cpu_time());
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let mut looked = tick();
        loop {
            if self.busy {
                nap(NAP.saturating_sub(tick().since(looked)));
                looked = tick();
            }
            let wait = self.wait();
            let ready = match epoll::wait(&self.epoll, &mut buffer, wait.as_ref()) {
                Ok((ready, _)) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the prober cannot wait for sockets; probing ends");
                    return;
                }
            };
            let mut woken = false;
            for event in &*ready {
                match event.data.u64() {
                    WAKE => woken = true,
                    token => self.socket_ready(token, event.flags),
                }
            }
            if woken && !self.obey() {
                return;
            }
            self.fire();
            self.measure();
        }
    }

    /// How long nothing is to do. The kernel counts in milliseconds, which also gathers checks
    /// that are due at almost the same time into one wake-up.
    fn wait(&self) -> Option<Timespec> {
        let now = tick();
        let lingering = self.lingering.front().map(|(until, _, _)| *until);
        let mut next = self.window.0 + WINDOW;
        for other in [self.timers.earliest(), lingering].into_iter().flatten() {
            next = next.min(other);
        }
        let idle = self.timers.earliest().is_none() && lingering.is_none();
        let pooled = self.idle.iter().any(|sockets| !sockets.is_empty());
        if idle && self.workers.is_empty() && !pooled && self.pace.stretch == 1.0 {
            return None;
        }
        let room = self.connections.len() < self.parts.config.max_connections.max(1);
        let wait = if room && !self.backlog.is_empty() {
            Duration::ZERO
        } else {
            next.since(now)
        };
        Some(Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        })
    }

    /// Carries out what was sent; false to end.
    fn obey(&mut self) -> bool {
        self.parts.wake.clear();
        loop {
            match self.parts.commands.try_recv() {
                Ok(Command::End) | Err(TryRecvError::Disconnected) => return false,
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Begins checks that are due and gives up those whose time is over.
    fn fire(&mut self) {
        let now = tick();
        while self.lingering.front().is_some_and(|(until, _, _)| *until <= now) {
            self.close_oldest_lingering();
        }
        for _ in 0..BEGIN_AT_ONCE {
            if let Some((worker, generation)) = self.next_in_backlog() {
                if self
                    .workers
                    .get(worker)
                    .is_some_and(|entry| entry.generation == generation)
                {
                    self.begin(worker);
                }
                continue;
            }
            let Some(worker) = self.timers.pop(now) else {
                break;
            };
            match self.workers[worker]
                .under_way
                .as_ref()
                .map(|check| (check.deadline, check.timeout))
            {
                Some((deadline, timeout)) if deadline <= now => {
                    self.conclude(worker, crate::finding::Finding::TimedOut(timeout));
                }
                Some((deadline, _)) => self.timers.set(worker, deadline),
                None if self.has_room() => self.begin(worker),
                None => self.backlog.push_back((worker, self.workers[worker].generation)),
            }
        }
    }

    fn next_in_backlog(&mut self) -> Option<(usize, u32)> {
        if self.backlog.is_empty() || !self.has_room() {
            return None;
        }
        self.backlog.pop_front()
    }

    /// Whether one more connection may be opened. Those that only wait to be closed make room.
    fn has_room(&mut self) -> bool {
        let limit = self.parts.config.max_connections.max(1);
        while self.connections.len() >= limit && !self.lingering.is_empty() {
            self.close_oldest_lingering();
        }
        self.connections.len() < limit
    }

    fn close_oldest_lingering(&mut self) {
        if let Some((_, connection, generation)) = self.lingering.pop_front()
            && self
                .connections
                .get(connection)
                .is_some_and(|entry| entry.generation == generation)
        {
            self.connections.remove(connection);
        }
    }

    fn measure(&mut self) {
        let now = tick();
        let (since, cpu_before) = self.window;
        let elapsed = now.since(since);
        if elapsed < WINDOW {
            return;
        }
        let cpu = cpu_time();
        let used = cpu.saturating_sub(cpu_before);
        let pace = Pace {
            stretch: 1.0,
            ..self.pace
        };
        let rate = |worker: &Worker| {
            let probe = self.containers[worker.container].container.probe(worker.kind);
            probe
                .and_then(|probe| probe.period(pace))
                .map_or(0.0, |period| 1.0 / period.as_secs_f64())
        };
        let demand = self.workers.iter().map(|(_, worker)| rate(worker)).sum();
        let before = self.pace.stretch;
        self.pace.stretch = self.budget.measure(Window {
            elapsed,
            cpu: used,
            demand,
        });
        self.window = (now, cpu);
        self.busy = f64::from(std::mem::take(&mut self.begun)) > f64::from(BUSY) * elapsed.as_secs_f64();
        self.rescale(self.pace.stretch / before, now);
        self.shrink();
        let metrics = &self.parts.metrics;
        if self.pace.stretch > 1.0 {
            metrics.throttled.inc();
        }
        metrics.stretch.set(self.pace.stretch);
        metrics.cpu_share.set(used.as_secs_f64() / elapsed.as_secs_f64());
        metrics.demand.set(demand);
        metrics.connections.set(self.connections.len() as f64);
    }

    /// Closes idle sockets that nobody needed in the last window.
    fn shrink(&mut self) {
        for (sockets, unneeded) in self.idle.iter_mut().zip(&mut self.unneeded) {
            sockets.truncate(sockets.len() - (*unneeded).min(sockets.len()));
            *unneeded = sockets.len();
        }
    }

    /// Spreads the checks that wait over the new periods.
    fn rescale(&mut self, ratio: f64, now: Tick) {
        if (0.99..1.01).contains(&ratio) {
            return;
        }
        for (slot, entry) in &mut self.containers {
            // Multiples of the golden ratio, taken around a circle, are nearly evenly spread however many there are.
            let place = (slot as f64 * GOLDEN_RATIO).fract();
            entry.container.rescale(ratio, place, now, self.pace);
        }
        let containers: Vec<usize> = self.containers.iter().map(|(slot, _)| slot).collect();
        for container in containers {
            self.reschedule(container);
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

fn nap(length: Duration) {
    if !length.is_zero() {
        std::thread::sleep(length);
    }
}

/// Now, by the clock that never jumps.
fn tick() -> Tick {
    Tick(nanos(clock_gettime(ClockId::Monotonic)))
}

fn cpu_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
