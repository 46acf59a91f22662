//! What is reported about a pod?

use crate::ending::Why;
use crate::machine::Machine;
use crate::unit::{Role, Run, Trouble, Unit, lost};
use jiff::Timestamp;
use pointsman_model::duration;
use pointsman_objects::ConditionStatus;
use pointsman_objects::pod::Phase;
use pointsman_objects::pod_manifest::{ReportedCondition, ReportedStatus};
use pointsman_objects::pod_status::{Condition, ContainerStatus, PodStatus, State, Waiting};
use std::collections::BTreeMap;
use std::time::Duration;

/// The condition types that a node writes.
const OURS: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// What was said before, so that times change only when the truth does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    conditions: Vec<(&'static str, bool, Timestamp)>,
    ready_changed: Option<Timestamp>,
    /// Why the node ended the pod, in one word and a sentence.
    pub(crate) verdict: Option<(&'static str, String)>,
}

impl Memory {
    pub(crate) fn recall(reported: &ReportedStatus) -> Self {
        let known = |condition: &ReportedCondition| {
            let kind = OURS.into_iter().find(|kind| *kind == condition.r#type)?;
            Some((kind, condition.is_true(), condition.last_transition_time?))
        };
        Self {
            conditions: reported.conditions.iter().filter_map(known).collect(),
            ready_changed: None,
            verdict: [DEADLINE.0, EVICTED]
                .into_iter()
                .find(|reason| reported.reason == *reason)
                .map(|reason| (reason, reported.message.clone())),
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

pub(crate) const EVICTED: &str = "Evicted";
pub(crate) const DEADLINE: (&str, &str) = (
    "DeadlineExceeded",
    "Pod was active on the node longer than the specified deadline",
);

/// Conditions that others write, by type.
pub(crate) fn foreign(reported: &ReportedStatus) -> BTreeMap<String, ConditionStatus> {
    let others = reported.conditions.iter();
    others
        .filter(|condition| !OURS.contains(&condition.r#type.as_str()))
        .map(|condition| (condition.r#type.clone(), condition.status))
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
        let (containers, init): (Vec<&Unit>, Vec<&Unit>) =
            self.units.iter().partition(|unit| unit.role == Role::Main);
        let statuses = |units: Vec<&Unit>| {
            units
                .into_iter()
                .map(|unit| self.container(unit, now))
                .collect::<Vec<_>>()
        };
        let (init, containers) = (statuses(init), statuses(containers));
        let conditions = self.conditions(phase);
        let (reason, message) = self.memory.verdict.clone().unwrap_or_default();
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
            let cut_short = matches!(ending.why, Why::Deadline | Why::Evicted);
            let succeeded = !cut_short && self.mains().all(well);
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
            Phase::Pending | Phase::Running | Phase::Unknown => {}
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
                match self.gates.get(kind) {
                    Some(ConditionStatus::True) => None,
                    Some(other) => Some(format!(
                        "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                        other.name()
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
        let state = self.state(unit, now);
        // What ended and is about to run again shows its end as the run before, unless that is its state.
        let last = match (&unit.run, &state) {
            (Run::Ended(ended), State::Waiting(_)) => Some(ended.clone()),
            _ => unit.last.clone(),
        };
        let run = match &state {
            State::Running { .. } => unit.running().map(|running| running.run),
            State::Terminated(ended) => ended.run,
            State::Waiting(_) => last.as_ref().and_then(|ended| ended.run),
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

    fn state(&self, unit: &Unit, now: Duration) -> State {
        let over = self.ending.is_some() && !self.any_alive();
        match &unit.run {
            Run::Idle if over => State::Terminated(lost(
                None,
                "The container could not be located when the pod was terminated",
            )),
            Run::Idle => match &unit.trouble {
                Some(trouble) => refused(trouble, unit, now),
                None if self.spec.init_containers.is_empty() => waiting("ContainerCreating", String::new()),
                None => waiting("PodInitializing", String::new()),
            },
            Run::Starting => waiting("ContainerCreating", String::new()),
            Run::Running(running) if running.hook_pending => waiting("ContainerCreating", String::new()),
            Run::Running(running) => State::Running {
                since: running.started_at,
            },
            Run::Ended(ended) if self.ending.is_none() && unit.policy.restarts(ended.code) => {
                match &unit.trouble {
                    Some(trouble) => refused(trouble, unit, now),
                    None if unit.due().is_some_and(|due| due > now) => {
                        let wait = duration::go(unit.crash_wait());
                        let (name, pod) = (&unit.name, &self.label);
                        let message = format!("back-off {wait} restarting failed container={name} pod={pod}");
                        waiting("CrashLoopBackOff", message)
                    }
                    None => State::Terminated(ended.clone()),
                }
            }
            Run::Ended(ended) => State::Terminated(ended.clone()),
        }
    }
}

fn refused(trouble: &Trouble, unit: &Unit, now: Duration) -> State {
    let (reason, message) = trouble.shown(&unit.image, now);
    waiting(&reason, message)
}

fn waiting(reason: &str, message: String) -> State {
    State::Waiting(Waiting {
        reason: reason.into(),
        message,
    })
}
