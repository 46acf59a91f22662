//! Which actions follow from what is known of a pod?

use crate::spec::{Pod, PodSpec, Reported};
use crate::status::{Memory, Phase};
use crate::stop;
use crate::unit::{Doom, Ended, Exit, ProbeKind, Role, Run, Unit};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Grace where nobody set one (the API's default).
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Grace of a pod that was removed by force: the signal, and little more.
const FORCED_GRACE: Duration = Duration::from_secs(2);
/// Waits before a sandbox is tried again.
const SANDBOX_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Patience with a gate beyond the bound that it was asked to keep.
const GATE_SLACK: Duration = Duration::from_secs(2);

/// Both clocks: the wall's for what people read, and one that never jumps for waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Wall clock.
    pub wall: Timestamp,
    /// Time since the agent started.
    pub mono: Duration,
}

/// What holds for all pods of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The bound of the shutdown gate, if there is a gate to ask.
    pub gate: Option<Duration>,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Whether somebody should look.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl News {
    pub(crate) fn normal(reason: &'static str, message: String) -> Self {
        Self {
            warning: false,
            reason,
            message,
        }
    }

    fn warning(reason: &'static str, message: String) -> Self {
        Self {
            warning: true,
            reason,
            message,
        }
    }
}

/// What the edge has to do. Each is answered by a [`Fact`], except for `Signal` and `Kill`, which are
/// answered by the container's exit, and `Tell`.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the network namespace, the cgroup and the volumes.
    MakeSandbox,
    /// Start a container.
    Start {
        /// Which.
        container: String,
        /// Which run of it, counted from 0.
        run: u32,
    },
    /// Run the post-start hook.
    PostStart {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
    },
    /// Wait until every node has taken the pod out of its rules.
    AskGate,
    /// Run the pre-stop hook.
    PreStop {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// It may take this long.
        within: Duration,
    },
    /// Send the stop signal.
    Signal {
        /// To which container.
        container: String,
        /// To which run.
        run: u32,
    },
    /// Kill everything of a container.
    Kill {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
    },
    /// Remove everything that the node has of the pod.
    TearDown,
    /// Record an Event.
    Tell(News),
}

/// What became known.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The sandbox is there.
    SandboxUp {
        /// The pod's addresses, the primary one first.
        ips: Vec<IpAddr>,
    },
    /// The sandbox could not be made.
    SandboxFailed {
        /// Why.
        message: String,
    },
    /// A container runs.
    Started {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// Since when.
        at: Timestamp,
    },
    /// A container cannot be started as things are; the attempt does not count.
    Refused {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// A container could not be started; the attempt counts as a run that failed.
    StartFailed {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// The exit code to show.
        code: i32,
        /// A sentence.
        message: String,
    },
    /// A container has ended.
    Exited {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// How.
        exit: Exit,
    },
    /// The post-start hook is over.
    PostStart {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// What went wrong, if anything.
        outcome: Result<(), String>,
    },
    /// The pre-stop hook is over.
    PreStop {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// What went wrong, if anything.
        outcome: Result<(), String>,
    },
    /// A probe has a verdict.
    Probed {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// Which probe.
        kind: ProbeKind,
        /// The verdict.
        healthy: bool,
        /// When it was reached.
        at: Timestamp,
    },
    /// The gate answered, or failed to.
    GateOpened,
    /// The sandbox is gone.
    TornDown,
    /// The sandbox could not be removed.
    TearDownFailed {
        /// Why.
        message: String,
    },
}

/// What the runtime has of a pod when an agent starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The addresses of the sandbox, if there is one.
    pub ips: Option<Vec<IpAddr>>,
    /// The last run of each container.
    pub containers: Vec<FoundContainer>,
}

/// A run that the runtime remembers.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundContainer {
    /// Name.
    pub name: String,
    /// Which run, counted from 0.
    pub run: u32,
    /// Start.
    pub started_at: Timestamp,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, PartialEq)]
enum Sandbox {
    None,
    Making,
    Failed { retry_at: Duration },
    Up { ips: Vec<IpAddr> },
}

/// Why the whole pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its containers are done.
    Completed,
    /// It was active for too long.
    Deadline,
    /// Somebody asked for its end.
    Deleted,
    /// Its object is gone.
    Vanished,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gate {
    Unasked,
    Asked { until: Duration },
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Torn {
    NotYet { retry_at: Duration },
    Asked,
    Done,
}

/// The end of the whole pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) why: Why,
    /// Nobody wants to see it any more.
    deleted: bool,
    grace: Duration,
    gate: Gate,
    /// When the first container was told to stop.
    begun: Option<Duration>,
    torn: Torn,
}

/// One pod on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    settings: Settings,
    pub(crate) uid: String,
    pub(crate) label: String,
    pub(crate) spec: PodSpec,
    pub(crate) generation: i64,
    pub(crate) start_time: Timestamp,
    /// When the pod has been active for too long.
    deadline_at: Option<Duration>,
    pub(crate) units: Vec<Unit>,
    /// Init containers are over, so containers may start.
    pub(crate) initialized: bool,
    sandbox: Sandbox,
    sandbox_failures: u32,
    pub(crate) ending: Option<Ending>,
    pub(crate) final_phase: Option<Phase>,
    /// Conditions that others write.
    pub(crate) gates: BTreeMap<String, String>,
    pub(crate) memory: Memory,
    /// When the last fact came to be.
    pub(crate) cause: Timestamp,
}

impl Machine {
    /// A pod that this node just got to know, or knows again after a restart of the agent.
    pub fn new(pod: &Pod, settings: Settings, found: &Found, now: Now) -> Self {
        let spec = &pod.spec;
        let inits = spec.init_containers.iter().map(|c| Unit::new(c, true, spec));
        let mains = spec.containers.iter().map(|c| Unit::new(c, false, spec));
        let metadata = &pod.metadata;
        let mut machine = Self {
            settings,
            uid: metadata.uid.clone(),
            label: format!("{}_{}({})", metadata.name, metadata.namespace, metadata.uid),
            spec: spec.clone(),
            generation: metadata.generation,
            start_time: pod.status.start_time.unwrap_or(now.wall),
            deadline_at: None,
            units: inits.chain(mains).collect(),
            initialized: false,
            sandbox: match &found.ips {
                Some(ips) => Sandbox::Up { ips: ips.clone() },
                None => Sandbox::None,
            },
            sandbox_failures: 0,
            ending: None,
            final_phase: None,
            gates: BTreeMap::new(),
            memory: Memory::recall(&pod.status),
            cause: now.wall,
        };
        machine.take_over(&pod.status, found, now);
        let ran = machine.mains().any(|unit| unit.run != Run::Idle);
        machine.initialized = ran;
        machine.update(pod, now);
        machine
    }

    fn take_over(&mut self, reported: &Reported, found: &Found, now: Now) {
        let known = |name: &str| {
            let all = reported.init_container_statuses.iter();
            all.chain(&reported.container_statuses)
                .find(|status| status.name == name)
        };
        for unit in &mut self.units {
            let reported = known(&unit.name);
            if let Some(reported) = reported {
                unit.take_over(reported, now.mono);
            }
            let Some(run) = found.containers.iter().find(|run| run.name == unit.name) else {
                continue;
            };
            // A start that failed leaves no run behind, so that the report may be ahead.
            if run.exit.is_some() && reported.is_some_and(|reported| reported.restart_count > run.run) {
                continue;
            }
            unit.resume(run.run, run.started_at, reported);
            if let (Some(exit), Run::Running(running)) = (&run.exit, &unit.run) {
                let ended = Ended::of(running, exit);
                unit.end(ended, now.mono);
            }
        }
        // A pod that had ended does not come back, whatever else was found.
        self.final_phase = reported.phase.as_deref().and_then(Phase::final_of);
        if self.final_phase.is_some() {
            self.begin_ending(Why::Completed);
        }
    }

    /// Takes in the pod's object as it is now.
    pub fn update(&mut self, pod: &Pod, now: Now) {
        self.generation = pod.metadata.generation;
        self.gates = crate::status::foreign(&pod.status);
        self.deadline_at = pod.spec.active_deadline_seconds.map(|seconds| {
            let end = self
                .start_time
                .as_microsecond()
                .saturating_add(seconds.max(0).saturating_mul(1_000_000));
            let left = end.saturating_sub(now.wall.as_microsecond());
            now.mono + Duration::from_micros(u64::try_from(left).unwrap_or(0))
        });
        let specs = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for (unit, spec) in self.units.iter_mut().zip(specs) {
            // Images are all that may change; one that was refused may do now.
            if unit.image != spec.image {
                unit.image.clone_from(&spec.image);
                unit.trouble = None;
            }
        }
        if pod.metadata.deletion_timestamp.is_some() {
            let seconds = pod.metadata.deletion_grace_period_seconds;
            self.delete(seconds.map_or(self.grace(), seconds_to_duration));
        }
    }

    /// The pod's object is gone: whatever runs has to end now.
    pub fn vanish(&mut self) {
        self.begin_ending(Why::Vanished);
        if let Some(ending) = &mut self.ending {
            ending.why = Why::Vanished;
            ending.deleted = true;
            ending.gate = Gate::Open;
        }
        self.shorten(FORCED_GRACE);
    }

    fn delete(&mut self, grace: Duration) {
        match &mut self.ending {
            None => {
                self.begin_ending(Why::Deleted);
                if let Some(ending) = &mut self.ending {
                    ending.grace = grace;
                }
            }
            Some(ending) if ending.why == Why::Deleted => self.shorten(grace),
            Some(ending) => {
                // Nothing of it serves any more, so nobody has to be waited for.
                if ending.why != Why::Vanished {
                    ending.deleted = true;
                    ending.gate = Gate::Open;
                }
                self.shorten(grace);
            }
        }
    }

    /// A second request may leave less time, never more.
    fn shorten(&mut self, grace: Duration) {
        let Some(ending) = &mut self.ending else { return };
        ending.grace = ending.grace.min(grace);
        let Some(begun) = ending.begun else { return };
        let deadline = begun + ending.grace;
        for unit in &mut self.units {
            if let Run::Running(running) = &mut unit.run
                && let Some(stop) = &mut running.stop
            {
                stop.shorten(deadline);
            }
        }
    }

    fn begin_ending(&mut self, why: Why) {
        if self.ending.is_none() {
            self.ending = Some(Ending {
                why,
                deleted: matches!(why, Why::Deleted | Why::Vanished),
                grace: self.grace(),
                gate: Gate::Unasked,
                begun: None,
                torn: Torn::NotYet {
                    retry_at: Duration::ZERO,
                },
            });
        }
    }

    fn grace(&self) -> Duration {
        let seconds = self.spec.termination_grace_period_seconds;
        seconds.map_or(DEFAULT_GRACE, seconds_to_duration)
    }

    /// Whether everything of the pod is gone from the node.
    pub fn is_over(&self) -> bool {
        self.ending
            .as_ref()
            .is_some_and(|ending| ending.torn == Torn::Done)
    }

    /// Whether the pod is being ended, by whomever.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether somebody asked for the pod's end.
    pub fn is_deleted(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.deleted)
    }

    /// The pod's addresses, once it has some.
    pub fn ips(&self) -> &[IpAddr] {
        match &self.sandbox {
            Sandbox::Up { ips } => ips,
            _ => &[],
        }
    }

    pub(crate) fn sandbox_is_up(&self) -> bool {
        matches!(self.sandbox, Sandbox::Up { .. }) && !self.is_over()
    }

    pub(crate) fn mains(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(|unit| unit.role == Role::Main)
    }

    /// Containers to probe: name, run, start, and whether it was ready when the agent found it.
    pub fn probed(&self) -> impl Iterator<Item = Probed<'_>> {
        self.units.iter().filter_map(|unit| {
            let running = unit.running().filter(|running| !running.hook_pending)?;
            Some(Probed {
                container: &unit.name,
                run: running.run,
                role: unit.role,
                started_at: running.started_at,
                started: running.startup,
                ready: running.readiness,
                found: running.found,
            })
        })
    }

    /// The run of a container that is alive now.
    pub fn running(&self, container: &str) -> Option<u32> {
        let unit = self.units.iter().find(|unit| unit.name == container)?;
        unit.running().map(|running| running.run)
    }

    /// Whether anything of the pod may be alive.
    pub(crate) fn any_alive(&self) -> bool {
        self.units.iter().any(Unit::is_alive) || self.sandbox == Sandbox::Making
    }

    /// When [`Machine::step`] has to be called even if nothing happens.
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let stops = self
            .units
            .iter()
            .filter_map(|unit| Some(unit.running()?.stop?.until));
        let mut times: Vec<Duration> = stops.collect();
        match &self.ending {
            Some(ending) => {
                times.extend(match ending.gate {
                    Gate::Asked { until } => Some(until),
                    _ => None,
                });
                times.extend(match ending.torn {
                    Torn::NotYet { retry_at } => Some(retry_at),
                    _ => None,
                });
            }
            None => {
                times.extend(self.deadline_at);
                times.extend(self.units.iter().filter_map(Unit::due));
                times.extend(match self.sandbox {
                    Sandbox::Failed { retry_at } => Some(retry_at),
                    _ => None,
                });
            }
        }
        times.into_iter().filter(|time| *time > now).min()
    }

    /// Takes in a fact. What follows from it comes out of the next [`Machine::step`], except for news.
    pub fn fact(&mut self, fact: Fact, now: Now) -> Vec<News> {
        self.cause = match &fact {
            Fact::Probed { at, .. } | Fact::Started { at, .. } => *at,
            Fact::Exited { exit, .. } => exit.at,
            _ => now.wall,
        };
        match fact {
            Fact::SandboxUp { ips } => {
                self.sandbox_failures = 0;
                self.sandbox = Sandbox::Up { ips };
            }
            Fact::SandboxFailed { message } => {
                let (first, longest) = SANDBOX_RETRY;
                let wait = (first * (1 << self.sandbox_failures.min(10))).min(longest);
                self.sandbox_failures += 1;
                self.sandbox = Sandbox::Failed {
                    retry_at: now.mono + wait,
                };
                return vec![News::warning("FailedCreatePodSandBox", message)];
            }
            Fact::GateOpened => {
                if let Some(ending) = &mut self.ending {
                    ending.gate = Gate::Open;
                }
            }
            Fact::TornDown => {
                if let Some(ending) = &mut self.ending {
                    ending.torn = Torn::Done;
                }
            }
            Fact::TearDownFailed { message } => {
                if let Some(ending) = &mut self.ending {
                    ending.torn = Torn::NotYet {
                        retry_at: now.mono + Duration::from_secs(1),
                    };
                }
                return vec![News::warning("FailedKillPod", message)];
            }
            other => return self.container_fact(other, now),
        }
        Vec::new()
    }

    fn container_fact(&mut self, fact: Fact, now: Now) -> Vec<News> {
        let grace = self.grace();
        let ending = self.ending.is_some();
        match fact {
            Fact::Started { container, run, at } => {
                let Some(unit) = self.starting(&container, run) else {
                    return Vec::new();
                };
                unit.started(at);
                vec![News::normal("Started", format!("Started container {container}"))]
            }
            Fact::Refused {
                container,
                run,
                reason,
                message,
            } => {
                let Some(unit) = self.starting(&container, run) else {
                    return Vec::new();
                };
                unit.refused(&reason, &message, now.mono);
                vec![News::warning("Failed", format!("{reason}: {message}"))]
            }
            Fact::StartFailed {
                container,
                run,
                code,
                message,
            } => {
                let Some(unit) = self.starting(&container, run) else {
                    return Vec::new();
                };
                unit.end(Ended::unstarted(run, code, &message, now.wall), now.mono);
                vec![News::warning("Failed", format!("Error: {message}"))]
            }
            Fact::Exited { container, run, exit } => {
                let unit = self.unit(&container);
                if let Some(unit) = unit
                    && let Some(running) = unit.running_mut(run)
                {
                    let ended = Ended::of(running, &exit);
                    unit.end(ended, now.mono);
                }
                Vec::new()
            }
            Fact::PostStart {
                container,
                run,
                outcome,
            } => {
                let Some(running) = self.unit(&container).and_then(|unit| unit.running_mut(run)) else {
                    return Vec::new();
                };
                running.hook_pending = false;
                let Err(message) = outcome else { return Vec::new() };
                let why = "FailedPostStartHook";
                running.last_words = format!("PostStart hook failed: {message}");
                running.doom = Some(Doom {
                    grace,
                    why: "PostStart hook failed, stopping container".into(),
                });
                vec![News::warning(
                    why,
                    format!("PostStartHook of {container} failed: {message}"),
                )]
            }
            Fact::PreStop {
                container,
                run,
                outcome,
            } => {
                let running = self.unit(&container).and_then(|unit| unit.running_mut(run));
                if let Some(stop) = running.and_then(|running| running.stop.as_mut()) {
                    stop.hook_done();
                }
                let told = outcome.err().map(|message| {
                    let message = format!("PreStopHook of {container} failed: {message}");
                    News::warning("FailedPreStopHook", message)
                });
                told.into_iter().collect()
            }
            Fact::Probed {
                container,
                run,
                kind,
                healthy,
                ..
            } => {
                if let Some(unit) = self.unit(&container) {
                    probed(unit, run, kind, healthy, grace, ending);
                }
                Vec::new()
            }
            Fact::SandboxUp { .. }
            | Fact::SandboxFailed { .. }
            | Fact::GateOpened
            | Fact::TornDown
            | Fact::TearDownFailed { .. } => Vec::new(),
        }
    }

    fn unit(&mut self, name: &str) -> Option<&mut Unit> {
        self.units.iter_mut().find(|unit| unit.name == name)
    }

    /// The container, if this run of it was asked for and has not been heard of.
    fn starting(&mut self, name: &str, run: u32) -> Option<&mut Unit> {
        self.unit(name)
            .filter(|unit| unit.run == Run::Starting && unit.restarts == run)
    }

    /// What has to be done now. Call it after every fact, every update, and at [`Machine::wake`].
    pub fn step(&mut self, now: Now) -> Vec<Action> {
        if self.ending.is_none() {
            if self.deadline_at.is_some_and(|at| at <= now.mono) {
                self.begin_ending(Why::Deadline);
            } else if self.is_complete() {
                self.begin_ending(Why::Completed);
            }
        }
        let mut actions = Vec::new();
        if self.ending.is_some() {
            self.end(now, &mut actions);
        } else {
            self.go_on(now, &mut actions);
        }
        actions
    }

    /// Whether the containers have brought the pod to its end by themselves.
    fn is_complete(&self) -> bool {
        let failed_init = |unit: &Unit| {
            unit.role == Role::Init && unit.is_done() && unit.ended().is_some_and(|ended| ended.code != 0)
        };
        self.mains().all(Unit::is_done) || self.units.iter().any(failed_init)
    }

    fn go_on(&mut self, now: Now, actions: &mut Vec<Action>) {
        match self.sandbox {
            Sandbox::Up { .. } => {}
            Sandbox::Making => return,
            Sandbox::Failed { retry_at } if now.mono < retry_at => return,
            Sandbox::Failed { .. } | Sandbox::None => {
                self.sandbox = Sandbox::Making;
                actions.push(Action::MakeSandbox);
                return;
            }
        }
        for unit in &mut self.units {
            let doom = unit.running().and_then(|running| running.doom.clone());
            if let Some(doom) = doom {
                stop::advance(unit, now.mono + doom.grace, &doom.why, now, actions);
            }
            hook_after_start(unit, actions);
        }
        let inits = self.units.iter().filter(|unit| unit.role != Role::Main);
        self.initialized |= inits.clone().all(Unit::lets_others_start);
        for index in 0..self.units.len() {
            let unit = &mut self.units[index];
            let over = self.initialized && unit.role == Role::Init;
            if !over && unit.due().is_some_and(|due| due <= now.mono) {
                let run = unit.begin(now.mono);
                actions.push(Action::Start {
                    container: unit.name.clone(),
                    run,
                });
            }
            let passed = self.initialized && unit.role != Role::Main;
            if !passed && !unit.lets_others_start() {
                break;
            }
        }
    }

    fn end(&mut self, now: Now, actions: &mut Vec<Action>) {
        let serving = self.mains().any(|unit| unit.running().is_some());
        let Some(ending) = &mut self.ending else { return };
        if ending.gate == Gate::Unasked {
            ending.gate = match self.settings.gate {
                Some(bound) if ending.why == Why::Deleted && serving => {
                    actions.push(Action::AskGate);
                    Gate::Asked {
                        until: now.mono + bound + GATE_SLACK,
                    }
                }
                _ => Gate::Open,
            };
        }
        if let Gate::Asked { until } = ending.gate {
            if now.mono < until {
                return;
            }
            ending.gate = Gate::Open;
        }
        let begun = *ending.begun.get_or_insert(now.mono);
        let deadline = begun + ending.grace;
        self.stop_units(deadline, now, actions);
        if self.any_alive() {
            return;
        }
        let Some(ending) = &mut self.ending else { return };
        if let Torn::NotYet { retry_at } = ending.torn
            && ending.deleted
            && retry_at <= now.mono
        {
            ending.torn = Torn::Asked;
            actions.push(Action::TearDown);
        }
    }

    /// Containers first and all at once, then sidecars one by one, the last started first.
    fn stop_units(&mut self, deadline: Duration, now: Now, actions: &mut Vec<Action>) {
        let why = "Stopping container";
        for unit in self.units.iter_mut().filter(|unit| unit.role != Role::Sidecar) {
            stop::advance(unit, deadline, why, now, actions);
        }
        let busy = |unit: &Unit| unit.role != Role::Sidecar && unit.is_alive();
        if self.units.iter().any(busy) {
            return;
        }
        let mut sidecars = self.units.iter_mut().rev();
        if let Some(last) = sidecars.find(|unit| unit.is_alive()) {
            stop::advance(last, deadline, why, now, actions);
        }
    }
}

/// A container that is worth probing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probed<'a> {
    /// Name.
    pub container: &'a str,
    /// Which run.
    pub run: u32,
    /// Its part.
    pub role: Role,
    /// Start of this run.
    pub started_at: Timestamp,
    /// What the startup probe said, if it said anything.
    pub started: Option<bool>,
    /// What the readiness probe said, if it said anything.
    pub ready: Option<bool>,
    /// The agent found it running when it started.
    pub found: bool,
}

fn hook_after_start(unit: &mut Unit, actions: &mut Vec<Action>) {
    let Run::Running(running) = &mut unit.run else {
        return;
    };
    if running.hook_pending && !running.hook_asked && running.stop.is_none() {
        running.hook_asked = true;
        actions.push(Action::PostStart {
            container: unit.name.clone(),
            run: running.run,
        });
    }
}

fn probed(unit: &mut Unit, run: u32, kind: ProbeKind, healthy: bool, grace: Duration, ending: bool) {
    let (probe, word) = match kind {
        ProbeKind::Readiness => (None, ""),
        ProbeKind::Liveness => (unit.spec.liveness_probe.clone(), "liveness"),
        ProbeKind::Startup => (unit.spec.startup_probe.clone(), "startup"),
    };
    let name = unit.name.clone();
    let Some(running) = unit.running_mut(run) else {
        return;
    };
    match kind {
        ProbeKind::Readiness => running.readiness = Some(healthy),
        ProbeKind::Startup if healthy => running.startup = Some(true),
        _ => {}
    }
    if kind == ProbeKind::Readiness || healthy || ending || running.doom.is_some() {
        return;
    }
    let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
    running.doom = Some(Doom {
        grace: own.map_or(grace, seconds_to_duration),
        why: format!("Container {name} failed {word} probe, stopping"),
    });
}

fn seconds_to_duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
