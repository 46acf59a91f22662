//! Which actions follow from what is known of a pod?

use crate::action::{Action, PodEvent};
use crate::ending::{Ending, Gate, Torn, Why};
use crate::fact::{ContainerFact, Fact, Found, Now};
use crate::status::{DEADLINE, Memory};
use crate::stop;
use crate::unit::{Role, Run, StopReason, Unit, ended, unstarted};
use jiff::Timestamp;
use pointsman_objects::ConditionStatus;
use pointsman_objects::names::GATE_ANNOTATION;
use pointsman_objects::pod::Phase;
use pointsman_objects::pod_manifest::{PodManifest, PodSpec, ReportedStatus};
use pointsman_objects::pod_status::{PodStatus, StatusPatch};
use pointsman_probe::Kind;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Grace where nobody set one (the API's default).
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Until a pod is torn down again after that failed.
const TEAR_DOWN_RETRY: Duration = Duration::from_secs(1);
/// Waits before a sandbox is tried again.
const SANDBOX_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What holds for all pods of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The bound of the shutdown gate, if there is a gate to ask.
    pub gate: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
enum Sandbox {
    None,
    Making,
    Failed {
        retry_at: Duration,
    },
    Up {
        ips: Vec<IpAddr>,
    },
    /// What runs in it has to end before there is another one.
    Lost,
}

/// One pod on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub(crate) settings: Settings,
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
    pub(crate) gates: BTreeMap<String, ConditionStatus>,
    /// Whether the shutdown gate is asked, if there is one.
    pub(crate) is_gated: bool,
    pub(crate) memory: Memory,
    /// When the last fact came to be.
    pub(crate) cause: Timestamp,
}

impl Machine {
    /// A pod that this node just got to know, or knows again after a restart of the agent.
    pub fn new(pod: &PodManifest, settings: Settings, found: &Found, now: Now) -> Self {
        let spec = &pod.spec;
        let inits = spec.init_containers.iter();
        let inits = inits.map(|init| Unit::new(init, Role::of_init(init), spec));
        let mains = spec
            .containers
            .iter()
            .map(|main| Unit::new(main, Role::Main, spec));
        let metadata = &pod.metadata;
        let mut machine = Self {
            settings,
            uid: metadata.uid.to_string(),
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
            is_gated: true,
            memory: Memory::recall(&pod.status),
            cause: now.wall,
        };
        machine.take_over(&pod.status, found, now);
        let ran = machine.mains().any(|unit| unit.run != Run::Idle);
        machine.initialized = ran;
        machine.update(pod, now);
        machine
    }

    fn take_over(&mut self, reported: &ReportedStatus, found: &Found, now: Now) {
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
                let ended = ended(running, exit);
                unit.end(ended, now.mono);
            }
        }
        // A pod that had ended does not come back, whatever else was found.
        self.final_phase = Some(reported.phase).filter(|phase| phase.is_final());
        if self.is_evicted() {
            self.begin_ending(Why::Evicted);
        } else if self.final_phase.is_some() {
            self.begin_ending(Why::Completed);
        }
    }

    /// Takes in the pod's object as it is now.
    pub fn update(&mut self, pod: &PodManifest, now: Now) {
        self.generation = pod.metadata.generation;
        self.gates = crate::status::foreign(&pod.status);
        self.is_gated = pod
            .metadata
            .annotations
            .get(GATE_ANNOTATION)
            .is_none_or(|word| word != "off");
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
        if pod.metadata.is_terminating() {
            let seconds = pod.metadata.deletion_grace_period_seconds.map(i64::from);
            self.delete(seconds.map_or(self.grace(), seconds_to_duration));
        }
    }

    pub(crate) fn grace(&self) -> Duration {
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
                times.extend(self.units.iter().filter_map(Unit::shows_later));
                times.extend(match self.sandbox {
                    Sandbox::Failed { retry_at } => Some(retry_at),
                    _ => None,
                });
            }
        }
        times.into_iter().filter(|time| *time > now).min()
    }

    /// The report as a patch of the pod's status.
    pub fn patch<'a>(
        &'a self,
        status: &'a PodStatus,
        host_ips: &'a [IpAddr],
        change_annotation: &'a str,
    ) -> StatusPatch<'a> {
        StatusPatch {
            uid: &self.uid,
            status,
            host_ips,
            change_annotation,
        }
    }

    /// Takes in a fact, which may be worth an Event. What else follows from it comes out of the next
    /// [`Machine::step`].
    pub fn fact(&mut self, fact: Fact, now: Now) -> Option<PodEvent> {
        self.cause = now.wall;
        match fact {
            Fact::SandboxUp { ips } => {
                self.sandbox_failures = 0;
                self.sandbox = Sandbox::Up { ips };
                None
            }
            Fact::SandboxFailed { message } => Some(self.sandbox_failed(message, now)),
            Fact::SandboxLost => self.sandbox_lost(),
            Fact::Container { name, run, fact } => self.container_fact(&name, run, fact, now),
            Fact::DiskUsed(used) => self.disk_used(&used),
            Fact::GateOpened => {
                self.ending.as_mut()?.gate = Gate::Open;
                None
            }
            Fact::TornDown => {
                self.ending.as_mut()?.torn = Torn::Done;
                None
            }
            Fact::TearDownFailed { message } => {
                if let Some(ending) = &mut self.ending {
                    let retry_at = now.mono + TEAR_DOWN_RETRY;
                    ending.torn = Torn::NotYet { retry_at };
                }
                Some(PodEvent::warning("FailedKillPod", message))
            }
        }
    }

    fn container_fact(&mut self, name: &str, run: u32, fact: ContainerFact, now: Now) -> Option<PodEvent> {
        match fact {
            ContainerFact::Started { at } => {
                self.cause = at;
                self.starting(name, run)?.started(at);
                Some(PodEvent::normal("Started", format!("Started container {name}")))
            }
            ContainerFact::Refused { reason, message } => {
                self.starting(name, run)?.refused(&reason, &message, now.mono);
                Some(PodEvent::warning("Failed", format!("{reason}: {message}")))
            }
            ContainerFact::StartFailed { code, message } => {
                let ended = unstarted(run, code, &message, now.wall);
                self.starting(name, run)?.end(ended, now.mono);
                Some(PodEvent::warning("Failed", format!("Error: {message}")))
            }
            ContainerFact::Exited(exit) => {
                self.cause = exit.at;
                let unit = self.unit(name)?;
                let ended = ended(unit.running_mut(run)?, &exit);
                unit.end(ended, now.mono);
                None
            }
            ContainerFact::PostStart(outcome) => self.post_start_done(name, run, outcome),
            ContainerFact::PreStop(outcome) => self.pre_stop_done(name, run, outcome),
            ContainerFact::Probed { kind, healthy, at } => {
                self.cause = at;
                self.probe_answered(name, run, kind, healthy);
                None
            }
        }
    }

    fn sandbox_failed(&mut self, message: String, now: Now) -> PodEvent {
        let (first, longest) = SANDBOX_RETRY;
        let wait = (first * (1 << self.sandbox_failures.min(10))).min(longest);
        self.sandbox_failures += 1;
        self.sandbox = Sandbox::Failed {
            retry_at: now.mono + wait,
        };
        PodEvent::warning("FailedCreatePodSandBox", message)
    }

    fn sandbox_lost(&mut self) -> Option<PodEvent> {
        if !matches!(self.sandbox, Sandbox::Up { .. }) {
            return None;
        }
        self.sandbox = Sandbox::Lost;
        let message = "Pod sandbox changed, it will be killed and re-created.";
        let again = self.ending.is_none();
        again.then(|| PodEvent::normal("SandboxChanged", message.into()))
    }

    fn post_start_done(
        &mut self,
        container: &str,
        run: u32,
        outcome: Result<(), String>,
    ) -> Option<PodEvent> {
        let grace = self.grace();
        let running = self.unit(container)?.running_mut(run)?;
        running.hook_pending = false;
        let message = outcome.err()?;
        running.end_message = format!("PostStart hook failed: {message}");
        running.stopping = Some(StopReason {
            grace,
            why: "PostStart hook failed, stopping container".into(),
        });
        let message = format!("PostStartHook of {container} failed: {message}");
        Some(PodEvent::warning("FailedPostStartHook", message))
    }

    fn pre_stop_done(&mut self, container: &str, run: u32, outcome: Result<(), String>) -> Option<PodEvent> {
        let running = self.unit(container).and_then(|unit| unit.running_mut(run));
        if let Some(stop) = running.and_then(|running| running.stop.as_mut()) {
            stop.hook_done();
        }
        let message = format!("PreStopHook of {container} failed: {}", outcome.err()?);
        Some(PodEvent::warning("FailedPreStopHook", message))
    }

    fn probe_answered(&mut self, container: &str, run: u32, kind: Kind, healthy: bool) {
        let (grace, ending) = (self.grace(), self.ending.is_some());
        let Some(unit) = self.unit(container) else {
            return;
        };
        let probe = kind.of(&unit.spec);
        let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
        let Some(running) = unit.running_mut(run) else {
            return;
        };
        match kind {
            Kind::Readiness => running.readiness = Some(healthy),
            Kind::Startup if healthy => running.startup = Some(true),
            _ => {}
        }
        if kind == Kind::Readiness || healthy || ending || running.stopping.is_some() {
            return;
        }
        running.stopping = Some(StopReason {
            grace: own.map_or(grace, seconds_to_duration),
            why: format!(
                "Container {container} failed {} probe, stopping",
                kind.to_string().to_lowercase()
            ),
        });
    }

    fn unit(&mut self, name: &str) -> Option<&mut Unit> {
        self.units.iter_mut().find(|unit| unit.name == name)
    }

    /// The container, if this run of it was asked for and not answered yet.
    fn starting(&mut self, name: &str, run: u32) -> Option<&mut Unit> {
        self.unit(name)
            .filter(|unit| unit.run == Run::Starting && unit.restarts == run)
    }

    /// What has to be done now. Call it after every fact, every update, and at [`Machine::wake`].
    pub fn step(&mut self, now: Now) -> Vec<Action> {
        if self.ending.is_none() {
            if self.deadline_at.is_some_and(|at| at <= now.mono) {
                self.memory.verdict = Some((DEADLINE.0, DEADLINE.1.to_owned()));
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
            Sandbox::Lost if self.units.iter().any(Unit::is_alive) => {
                let deadline = now.mono + self.grace();
                for unit in &mut self.units {
                    stop::advance(unit, deadline, "Stopping container", now, actions);
                }
                return;
            }
            Sandbox::Failed { .. } | Sandbox::None | Sandbox::Lost => {
                self.sandbox = Sandbox::Making;
                actions.push(Action::MakeSandbox);
                return;
            }
        }
        for unit in &mut self.units {
            let reason = unit.running().and_then(|running| running.stopping.clone());
            if let Some(reason) = reason {
                stop::advance(unit, now.mono + reason.grace, &reason.why, now, actions);
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
}

/// A container that is worth probing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probed<'a> {
    pub container: &'a str,
    pub run: u32,
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

fn seconds_to_duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::{Cause, Exit};
    use serde_json::json;

    #[test]
    fn a_lost_sandbox_is_made_again_once_everything_in_it_has_ended() {
        let now = Now {
            wall: Timestamp::UNIX_EPOCH,
            mono: Duration::from_secs(1),
        };
        let pod = json!({ "metadata": { "name": "p", "namespace": "d", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] }, "status": { "phase": "Pending" } });
        let pod: PodManifest = serde_json::from_value(pod).unwrap();
        let mut machine = Machine::new(&pod, Settings::default(), &Found::default(), now);
        let up = || Fact::SandboxUp {
            ips: vec![IpAddr::from([10, 0, 0, 5])],
        };
        let start = |run| Action::Start {
            container: "c".into(),
            run,
        };
        assert_eq!(machine.step(now), [Action::MakeSandbox]);
        machine.fact(up(), now);
        assert_eq!(machine.step(now), [start(0)]);
        machine.fact(ContainerFact::Started { at: now.wall }.about("c", 0), now);
        let said = machine.fact(Fact::SandboxLost, now).unwrap();
        assert_eq!((said.reason, machine.ips()), ("SandboxChanged", &[][..]));
        assert_eq!(machine.fact(Fact::SandboxLost, now), None, "it is said once");
        let asked = machine.step(now);
        let stop = Action::Signal {
            container: "c".into(),
            run: 0,
        };
        assert_eq!(asked.last(), Some(&stop), "nothing is made yet");
        let exit = ContainerFact::Exited(Exit {
            code: 143,
            signal: None,
            cause: Cause::Ended,
            at: now.wall,
            message: String::new(),
        });
        machine.fact(exit.about("c", 0), now);
        assert_eq!(machine.step(now), [Action::MakeSandbox]);
        machine.fact(up(), now);
        assert_eq!(machine.step(now), [start(1)]);
    }
}
