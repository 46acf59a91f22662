//! Where does one container stand?

use crate::stop::Stop;
use jiff::Timestamp;
use pointsman_objects::pod_manifest::{Container, PodSpec, ReportedContainer, RestartPolicy};
use pointsman_objects::pod_status::Ended;
use std::time::Duration;

/// The first wait of a container that keeps ending (kubelet's `backOffPeriod`).
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
/// The longest wait (kubelet's `MaxCrashLoopBackOff`).
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);
/// A container that lasted this long since its last restart starts over (twice the longest wait).
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// The first wait after a start that was refused: what is missing may come soon.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// The reason of a start whose image could not be fetched. Registries are asked as seldom as programs are restarted.
const PULL_FAILED: &str = "ErrImagePull";
/// How long that is shown before the wait for the next attempt is.
const PULL_SHOWN: Duration = Duration::from_secs(1);

/// What part a container plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// Starts before the containers and ends after them.
    Sidecar,
    /// What the pod is for.
    Main,
}

impl Role {
    /// What an init container is: one that is started again goes on beside the others.
    pub fn of_init(container: &Container) -> Self {
        match container.restart_policy {
            Some(RestartPolicy::Always) => Self::Sidecar,
            _ => Self::Init,
        }
    }
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 and the signal for a process that a signal ended.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why, as far as known.
    pub cause: Cause,
    pub at: Timestamp,
    /// Its termination message.
    pub message: String,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It returned, or a signal ended it.
    Ended,
    /// The kernel killed it for its memory.
    OutOfMemory,
    /// Nobody saw it end.
    Lost,
}

/// How this run ended.
pub(crate) fn ended(running: &Running, exit: &Exit) -> Ended {
    let reason = match (exit.cause, exit.code) {
        (Cause::OutOfMemory, _) => "OOMKilled",
        (Cause::Lost, _) => "ContainerStatusUnknown",
        (Cause::Ended, 0) => "Completed",
        (Cause::Ended, _) => "Error",
    };
    let message = if exit.message.is_empty() {
        running.end_message.clone()
    } else {
        exit.message.clone()
    };
    Ended {
        run: Some(running.run),
        code: exit.code,
        signal: exit.signal,
        reason: reason.into(),
        message,
        started_at: Some(running.started_at),
        finished_at: Some(exit.at),
    }
}

/// Nobody knows how it ended.
pub(crate) fn lost(run: Option<u32>, message: &str) -> Ended {
    Ended {
        run,
        code: 137,
        reason: "ContainerStatusUnknown".into(),
        message: message.into(),
        ..Ended::default()
    }
}

/// The runtime could not start it.
pub(crate) fn unstarted(run: u32, code: i32, message: &str, at: Timestamp) -> Ended {
    Ended {
        run: Some(run),
        code,
        reason: "StartError".into(),
        message: message.into(),
        finished_at: Some(at),
        ..Ended::default()
    }
}

/// A run of a container, as far as we know alive.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Running {
    pub(crate) run: u32,
    pub(crate) started_at: Timestamp,
    /// The post-start hook is not done.
    pub(crate) hook_pending: bool,
    /// The post-start hook was asked for.
    pub(crate) hook_asked: bool,
    /// It ran before this agent did, and was reported as running.
    pub(crate) found: bool,
    pub(crate) startup: Option<bool>,
    pub(crate) readiness: Option<bool>,
    pub(crate) stop: Option<Stop>,
    /// It has to end for a reason of its own.
    pub(crate) stopping: Option<StopReason>,
    /// What its end will be explained with.
    pub(crate) end_message: String,
}

/// Why one container has to end while its pod goes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StopReason {
    pub(crate) grace: Duration,
    pub(crate) why: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Run {
    Idle,
    /// The runtime was asked to start it.
    Starting,
    Running(Running),
    Ended(Ended),
}

/// A start that was refused, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) retry_at: Duration,
    /// When this becomes a wait for the next attempt to fetch the image, as people know it from the kubelet.
    pub(crate) waits_from: Option<Duration>,
}

impl Trouble {
    /// What to show of it now.
    pub(crate) fn shown(&self, image: &str, now: Duration) -> (String, String) {
        match self.waits_from.filter(|from| *from <= now) {
            None => (self.reason.clone(), self.message.clone()),
            Some(_) => {
                let message = format!(
                    "Back-off pulling image {image:?}: {}: {}",
                    self.reason, self.message
                );
                ("ImagePullBackOff".to_owned(), message)
            }
        }
    }
}

/// The wait of a container that keeps ending. The first restart is immediate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Backoff {
    delay: Duration,
    set_at: Duration,
}

impl Backoff {
    fn wait(&self, ended_at: Duration) -> Duration {
        if ended_at.saturating_sub(self.set_at) > FORGIVEN_AFTER {
            Duration::ZERO
        } else {
            self.delay
        }
    }

    fn restarted(&mut self, ended_at: Duration, now: Duration) {
        let last = self.wait(ended_at);
        self.delay = (last * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        self.set_at = now;
    }
}

/// One container and its history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) role: Role,
    pub(crate) policy: RestartPolicy,
    pub(crate) spec: Container,
    pub(crate) run: Run,
    pub(crate) restarts: u32,
    pub(crate) last: Option<Ended>,
    pub(crate) trouble: Option<Trouble>,
    refusals: u32,
    backoff: Backoff,
    ended_at: Duration,
}

impl Unit {
    pub(crate) fn new(container: &Container, role: Role, pod: &PodSpec) -> Self {
        let policy = match role {
            Role::Sidecar => RestartPolicy::Always,
            // An init container that has succeeded is done, whatever the pod's policy.
            Role::Init => match container.restart_policy.unwrap_or(pod.restart_policy) {
                RestartPolicy::Never => RestartPolicy::Never,
                RestartPolicy::Always | RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            },
            Role::Main => container.restart_policy.unwrap_or(pod.restart_policy),
        };
        Self {
            name: container.name.clone(),
            image: container.image.clone(),
            role,
            policy,
            spec: container.clone(),
            run: Run::Idle,
            restarts: 0,
            last: None,
            trouble: None,
            refusals: 0,
            backoff: Backoff::default(),
            ended_at: Duration::ZERO,
        }
    }

    /// Takes over what was reported before this agent started. A run that the runtime does not know
    /// any more has ended, nobody knows how.
    pub(crate) fn take_over(&mut self, reported: &ReportedContainer, now: Duration) {
        self.restarts = reported.restart_count;
        self.last.clone_from(&reported.last_state.terminated);
        self.ended_at = now;
        self.run = if let Some(ended) = &reported.state.terminated {
            Run::Ended(ended.clone())
        } else if reported.state.running.is_some() {
            Run::Ended(lost(
                reported.run(),
                "The container could not be located on the node",
            ))
        } else if let Some(last) = self.last.take() {
            // It waited for its next start.
            Run::Ended(last)
        } else {
            Run::Idle
        };
    }

    /// A run that the runtime has found alive.
    pub(crate) fn resume(&mut self, run: u32, started_at: Timestamp, known: Option<&ReportedContainer>) {
        // Nobody looked while no agent was there: what was reported of the same run still counts.
        let known = known.filter(|known| known.run() == Some(run));
        let running = known.filter(|known| known.state.running.is_some());
        self.restarts = self.restarts.max(run);
        if running.is_none()
            && let Run::Ended(ended) = std::mem::replace(&mut self.run, Run::Idle)
            && ended.run != Some(run)
        {
            self.last = Some(ended);
        }
        self.run = Run::Running(Running {
            run,
            started_at,
            hook_pending: false,
            hook_asked: false,
            found: running.is_some(),
            startup: running.map(|known| known.started).filter(|started| *started),
            readiness: running.map(|known| known.ready).filter(|ready| *ready),
            stop: None,
            stopping: None,
            end_message: String::new(),
        });
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.run, Run::Starting | Run::Running(_))
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        match &self.run {
            Run::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    pub(crate) fn running(&self) -> Option<&Running> {
        match &self.run {
            Run::Running(running) => Some(running),
            _ => None,
        }
    }

    /// This run, if it is the one that is alive.
    pub(crate) fn running_mut(&mut self, run: u32) -> Option<&mut Running> {
        match &mut self.run {
            Run::Running(running) if running.run == run => Some(running),
            _ => None,
        }
    }

    /// Whether it ended and stays so.
    pub(crate) fn is_done(&self) -> bool {
        self.ended()
            .is_some_and(|ended| !self.policy.restarts(ended.code))
    }

    /// Whether it runs and its startup is over.
    pub(crate) fn is_started(&self) -> bool {
        self.running().is_some_and(|running| {
            !running.hook_pending && (self.spec.startup_probe.is_none() || running.startup == Some(true))
        })
    }

    /// Whether traffic may come, as far as this container is concerned.
    pub(crate) fn is_ready(&self) -> bool {
        match self.role {
            Role::Init => self.ended().is_some_and(|ended| ended.code == 0),
            Role::Sidecar | Role::Main => {
                self.is_started()
                    && self.running().is_some_and(|running| {
                        self.spec.readiness_probe.is_none() || running.readiness == Some(true)
                    })
            }
        }
    }

    /// Whether the containers after this one may start.
    pub(crate) fn lets_others_start(&self) -> bool {
        match self.role {
            Role::Init => self.ended().is_some_and(|ended| ended.code == 0),
            Role::Sidecar => self.is_started(),
            Role::Main => match &self.run {
                // One after the other, as the kubelet does it: some pods rely on it.
                Run::Starting => false,
                Run::Running(running) => !running.hook_pending,
                Run::Idle | Run::Ended(_) => true,
            },
        }
    }

    /// When it may be started, if it is to be started at all.
    pub(crate) fn due(&self) -> Option<Duration> {
        if let Some(trouble) = &self.trouble {
            return Some(trouble.retry_at);
        }
        match &self.run {
            Run::Idle => Some(Duration::ZERO),
            Run::Ended(ended) if self.policy.restarts(ended.code) => {
                Some(self.ended_at + self.backoff.wait(self.ended_at))
            }
            _ => None,
        }
    }

    /// When what is shown of it changes by itself.
    pub(crate) fn shows_later(&self) -> Option<Duration> {
        self.trouble.as_ref()?.waits_from
    }

    /// The wait that it is in because it keeps ending.
    pub(crate) fn crash_wait(&self) -> Duration {
        self.backoff.wait(self.ended_at)
    }

    /// It is being started; returns the number of its run.
    pub(crate) fn begin(&mut self, now: Duration) -> u32 {
        if let Run::Ended(ended) = std::mem::replace(&mut self.run, Run::Starting) {
            self.restarts = self.restarts.saturating_add(1);
            self.backoff.restarted(self.ended_at, now);
            self.last = Some(ended);
        }
        self.trouble = None;
        self.restarts
    }

    pub(crate) fn started(&mut self, at: Timestamp) {
        self.refusals = 0;
        self.run = Run::Running(Running {
            run: self.restarts,
            started_at: at,
            hook_pending: self.spec.lifecycle.post_start.is_some(),
            hook_asked: false,
            found: false,
            startup: None,
            readiness: None,
            stop: None,
            stopping: None,
            end_message: String::new(),
        });
    }

    /// The start was refused for a reason that may pass; the run does not count.
    pub(crate) fn refused(&mut self, reason: &str, message: &str, now: Duration) {
        let is_pull = reason == PULL_FAILED;
        let (first, longest) = match is_pull {
            true => (FIRST_BACKOFF, LONGEST_BACKOFF),
            false => (FIRST_RETRY, LONGEST_RETRY),
        };
        let wait = (first * (1 << self.refusals.min(16))).min(longest);
        self.refusals = self.refusals.saturating_add(1);
        self.trouble = Some(Trouble {
            reason: reason.into(),
            message: message.into(),
            retry_at: now + wait,
            waits_from: is_pull.then_some(now + PULL_SHOWN),
        });
        self.run = match self.last.take() {
            Some(last) => {
                self.restarts = self.restarts.saturating_sub(1);
                Run::Ended(last)
            }
            None => Run::Idle,
        };
    }

    pub(crate) fn end(&mut self, ended: Ended, now: Duration) {
        self.ended_at = now;
        self.run = Run::Ended(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash(unit: &mut Unit, lived: u64, now: &mut Duration) -> Duration {
        unit.started(Timestamp::UNIX_EPOCH);
        *now += Duration::from_secs(lived);
        let ended = lost(None, "");
        unit.end(ended, *now);
        let due = unit.due().unwrap();
        let wait = due.saturating_sub(*now);
        *now = due.max(*now);
        unit.begin(*now);
        wait
    }

    #[test]
    fn restarts_wait_longer_each_time_and_are_forgiven_after_ten_minutes() {
        let mut unit = Unit::new(&Container::default(), Role::Main, &PodSpec::default());
        let mut now = Duration::from_secs(5);
        unit.begin(now);
        let waits: Vec<u64> = (0..8).map(|_| crash(&mut unit, 1, &mut now).as_secs()).collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(crash(&mut unit, 599, &mut now).as_secs(), 300);
        assert_eq!(crash(&mut unit, 601, &mut now).as_secs(), 0);
        assert_eq!(crash(&mut unit, 1, &mut now).as_secs(), 10);
        assert_eq!(unit.restarts, 11);
    }

    #[test]
    fn a_refused_start_does_not_count_as_a_restart() {
        let mut unit = Unit::new(&Container::default(), Role::Main, &PodSpec::default());
        let now = Duration::from_secs(1);
        unit.begin(now);
        unit.refused("CreateContainerConfigError", "configmap \"c\" not found", now);
        assert_eq!((unit.restarts, unit.due()), (0, Some(Duration::from_secs(2))));
        unit.begin(now);
        unit.refused("CreateContainerConfigError", "configmap \"c\" not found", now);
        assert_eq!(unit.due(), Some(Duration::from_secs(3)), "waits grow");
    }

    #[test]
    fn an_image_that_cannot_be_fetched_is_asked_for_seldom_and_the_wait_is_shown() {
        let mut unit = Unit::new(&Container::default(), Role::Main, &PodSpec::default());
        let at = Duration::from_secs;
        unit.begin(at(1));
        unit.refused("ErrImagePull", "no such host", at(1));
        assert_eq!((unit.due(), unit.shows_later()), (Some(at(11)), Some(at(2))));
        let shown = |unit: &Unit, now| unit.trouble.as_ref().unwrap().shown("web:1", now);
        assert_eq!(
            shown(&unit, at(1)),
            ("ErrImagePull".to_owned(), "no such host".to_owned())
        );
        let (reason, message) = shown(&unit, at(2));
        assert_eq!(reason, "ImagePullBackOff");
        assert_eq!(
            message,
            "Back-off pulling image \"web:1\": ErrImagePull: no such host"
        );
        unit.begin(at(11));
        unit.refused("ErrImagePull", "no such host", at(11));
        assert_eq!(unit.due(), Some(at(31)), "waits grow");
    }
}
