//! What is reported about a pod?

use crate::ending::Why;
use crate::machine::Machine;
use crate::spec::{Reported, ReportedCondition};
use crate::unit::{Ended, Role, Run, Unit};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Where a pod stands as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Something has to happen before its containers run.
    Pending,
    /// Its containers run, or are about to run again.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, at least one of them badly.
    Failed,
}

impl Phase {
    /// The word of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether it never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The final phase of this name.
    pub(crate) fn final_of(name: &str) -> Option<Self> {
        match name {
            "Succeeded" => Some(Self::Succeeded),
            "Failed" => Some(Self::Failed),
            _ => None,
        }
    }
}

/// The condition types that a node writes.
const OURS: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// One condition of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// One word, if it does not hold.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// Why a container does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Where one container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not run yet, or not again yet.
    Waiting(Waiting),
    /// It runs.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// It has ended.
    Terminated(Ended),
}

/// What is reported about one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Name.
    pub name: String,
    /// Image.
    pub image: String,
    /// State.
    pub state: State,
    /// How the run before ended.
    pub last: Option<Ended>,
    /// Whether traffic may come.
    pub ready: bool,
    /// Whether its startup is over.
    pub started: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// Which run, if there was one.
    pub run: Option<u32>,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStatus {
    /// Phase.
    pub phase: Phase,
    /// One word about the phase.
    pub reason: &'static str,
    /// A sentence about the phase.
    pub message: &'static str,
    /// When the node first knew the pod.
    pub start_time: Timestamp,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Init containers.
    pub init: Vec<ContainerStatus>,
    /// Containers.
    pub containers: Vec<ContainerStatus>,
    /// The generation of the spec that this is about.
    pub generation: i64,
    /// When readiness last changed, to the microsecond.
    pub ready_changed: Option<Timestamp>,
}

impl PodStatus {
    /// Whether the pod takes traffic.
    pub fn is_ready(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.holds)
    }
}

/// What was said before, so that times change only when the truth does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    conditions: Vec<(&'static str, bool, Timestamp)>,
    ready_changed: Option<Timestamp>,
    reason: Option<&'static str>,
}

impl Memory {
    pub(crate) fn recall(reported: &Reported) -> Self {
        let known = |condition: &ReportedCondition| {
            let kind = OURS.into_iter().find(|kind| *kind == condition.r#type)?;
            Some((kind, condition.status == "True", condition.last_transition_time?))
        };
        Self {
            conditions: reported.conditions.iter().filter_map(known).collect(),
            ready_changed: None,
            reason: (reported.reason.as_deref() == Some(DEADLINE.0)).then_some(DEADLINE.0),
        }
    }

    fn since(&mut self, kind: &'static str, holds: bool, now: Timestamp) -> Timestamp {
        let known = self.conditions.iter_mut().find(|(known, ..)| *known == kind);
        match known {
            Some((_, before, since)) if *before == holds => *since,
            Some(entry) => {
                *entry = (kind, holds, now);
                now
            }
            None => {
                self.conditions.push((kind, holds, now));
                now
            }
        }
    }
}

const DEADLINE: (&str, &str) = (
    "DeadlineExceeded",
    "Pod was active on the node longer than the specified deadline",
);

/// Conditions that others write, by type.
pub(crate) fn foreign(reported: &Reported) -> BTreeMap<String, String> {
    let others = reported.conditions.iter();
    others
        .filter(|condition| !OURS.contains(&condition.r#type.as_str()))
        .map(|condition| (condition.r#type.clone(), condition.status.clone()))
        .collect()
}

impl Machine {
    /// Somebody else wrote our Ready condition: what we say next is a change.
    pub fn readiness_overwritten(&mut self, ready: bool, now: Timestamp) {
        self.cause = now;
        for (kind, holds, _) in &mut self.memory.conditions {
            if *kind == "Ready" {
                *holds = ready;
            }
        }
    }

    /// The report as of now. Remembers what it says, so that times stay until the truth changes.
    pub fn status(&mut self, now: Duration) -> PodStatus {
        let phase = self.phase();
        if phase.is_final() {
            self.final_phase = Some(phase);
        }
        let statuses = |machine: &Self, main: bool| {
            let units = machine
                .units
                .iter()
                .filter(|unit| (unit.role == Role::Main) == main);
            units.map(|unit| machine.container(unit, now)).collect::<Vec<_>>()
        };
        let (init, containers) = (statuses(self, false), statuses(self, true));
        let conditions = self.conditions(phase);
        let late = self.memory.reason.is_some()
            || self
                .ending
                .as_ref()
                .is_some_and(|ending| ending.why == Why::Deadline);
        let (reason, message) = if late { DEADLINE } else { ("", "") };
        PodStatus {
            phase,
            reason,
            message,
            start_time: self.start_time,
            ips: self.ips().to_vec(),
            conditions,
            init,
            containers,
            generation: self.generation,
            ready_changed: self.memory.ready_changed,
        }
    }

    fn phase(&self) -> Phase {
        if let Some(phase) = self.final_phase {
            return phase;
        }
        if let Some(ending) = &self.ending
            && !self.any_alive()
        {
            let well = |unit: &Unit| unit.ended().is_some_and(|ended| ended.code == 0);
            let succeeded = ending.why != Why::Deadline && self.mains().all(well);
            return if succeeded {
                Phase::Succeeded
            } else {
                Phase::Failed
            };
        }
        let unborn = |unit: &Unit| match &unit.run {
            Run::Idle => true,
            Run::Starting => unit.last.is_none(),
            Run::Running(running) => running.hook_pending && unit.last.is_none(),
            Run::Ended(_) => false,
        };
        if !self.initialized || self.mains().any(unborn) {
            Phase::Pending
        } else {
            Phase::Running
        }
    }

    fn conditions(&mut self, phase: Phase) -> Vec<Condition> {
        let containers_ready = self.containers_ready(phase);
        let ready = match &containers_ready {
            (true, ..) => self.gates_open(),
            other => other.clone(),
        };
        let sandbox = match self.sandbox_is_up() && !phase.is_final() {
            true => (true, "", String::new()),
            false => (false, "PodSandboxNotReady", String::new()),
        };
        let all = [
            sandbox,
            self.initialized_condition(phase),
            ready,
            containers_ready,
            (true, "", String::new()),
        ];
        let before = self.memory.conditions.clone();
        let mut conditions = Vec::with_capacity(OURS.len());
        for (kind, (holds, reason, message)) in OURS.into_iter().zip(all) {
            let since = self.memory.since(kind, holds, self.cause);
            conditions.push(Condition {
                kind,
                holds,
                reason,
                message,
                since,
            });
        }
        if before.iter().find(|(kind, ..)| *kind == "Ready")
            != self.memory.conditions.iter().find(|(kind, ..)| *kind == "Ready")
        {
            self.memory.ready_changed = Some(self.cause);
        }
        conditions
    }

    fn containers_ready(&self, phase: Phase) -> (bool, &'static str, String) {
        match phase {
            Phase::Succeeded => return (false, "PodCompleted", String::new()),
            Phase::Failed => return (false, "PodFailed", String::new()),
            Phase::Pending | Phase::Running => {}
        }
        let counted = self.units.iter().filter(|unit| unit.role != Role::Init);
        let unready: Vec<&str> = counted
            .filter(|unit| !unit.is_ready())
            .map(|unit| unit.name.as_str())
            .collect();
        if unready.is_empty() {
            return (true, "", String::new());
        }
        let message = format!("containers with unready status: [{}]", unready.join(" "));
        (false, "ContainersNotReady", message)
    }

    fn gates_open(&self) -> (bool, &'static str, String) {
        let closed: Vec<String> = self
            .spec
            .readiness_gates
            .iter()
            .filter_map(|gate| {
                let kind = &gate.condition_type;
                match self.gates.get(kind).map(String::as_str) {
                    Some("True") => None,
                    Some(other) => Some(format!(
                        "the status of pod readiness gate {kind:?} is not \"True\", but {other}"
                    )),
                    None => Some(format!(
                        "corresponding condition of pod readiness gate {kind:?} does not exist."
                    )),
                }
            })
            .collect();
        if closed.is_empty() {
            (true, "", String::new())
        } else {
            (false, "ReadinessGatesNotReady", closed.join(", "))
        }
    }

    fn initialized_condition(&self, phase: Phase) -> (bool, &'static str, String) {
        if phase == Phase::Succeeded {
            return (true, "PodCompleted", String::new());
        }
        let open: Vec<&str> = self
            .units
            .iter()
            .filter(|unit| unit.role != Role::Main && !unit.lets_others_start())
            .map(|unit| unit.name.as_str())
            .collect();
        if self.initialized || open.is_empty() {
            return (true, "", String::new());
        }
        let message = format!("containers with incomplete status: [{}]", open.join(" "));
        (false, "ContainersNotInitialized", message)
    }

    fn container(&self, unit: &Unit, now: Duration) -> ContainerStatus {
        let over = self.ending.is_some() && !self.any_alive();
        let waiting = |reason: &str, message: String| {
            State::Waiting(Waiting {
                reason: reason.into(),
                message,
            })
        };
        let first = if self.spec.init_containers.is_empty() {
            "ContainerCreating"
        } else {
            "PodInitializing"
        };
        let mut last = unit.last.clone();
        let state = match &unit.run {
            Run::Idle if over => State::Terminated(Ended::lost(
                None,
                "The container could not be located when the pod was terminated",
            )),
            Run::Idle => match &unit.trouble {
                Some(trouble) => waiting(&trouble.reason, trouble.message.clone()),
                None => waiting(first, String::new()),
            },
            Run::Starting => waiting("ContainerCreating", String::new()),
            Run::Running(running) if running.hook_pending => waiting("ContainerCreating", String::new()),
            Run::Running(running) => State::Running {
                since: running.started_at,
            },
            Run::Ended(ended) if self.ending.is_none() && unit.policy.restarts(ended.code) => {
                last = Some(ended.clone());
                match &unit.trouble {
                    Some(trouble) => waiting(&trouble.reason, trouble.message.clone()),
                    None if unit.due().is_some_and(|due| due > now) => {
                        let wait = unit.crash_wait().as_secs();
                        let message = format!(
                            "back-off {} restarting failed container={} pod={}",
                            go_seconds(wait),
                            unit.name,
                            self.label
                        );
                        waiting("CrashLoopBackOff", message)
                    }
                    None => State::Terminated(ended.clone()),
                }
            }
            Run::Ended(ended) => State::Terminated(ended.clone()),
        };
        if matches!(&state, State::Terminated(ended) if last.as_ref() == Some(ended)) {
            last.clone_from(&unit.last);
        }
        let shown = |ended: &Ended| ended.run;
        let run = match &state {
            State::Running { .. } => unit.running().map(|running| running.run),
            State::Terminated(ended) => shown(ended),
            State::Waiting(_) => last.as_ref().and_then(shown),
        };
        ContainerStatus {
            name: unit.name.clone(),
            image: unit.image.clone(),
            state,
            last,
            ready: unit.is_ready(),
            started: unit.is_started(),
            // A restart counts once the runtime has not refused it.
            restarts: match &unit.run {
                Run::Starting if unit.last.is_some() => unit.restarts.saturating_sub(1),
                _ => unit.restarts,
            },
            run,
        }
    }
}

/// Go's way to write a number of seconds.
fn go_seconds(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}
