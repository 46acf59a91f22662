//! When is one probe of one container due, and what does its outcome change?
//!
//! One probe is a state machine over a fixed grid of due times. [`crate::Container`] owns up to
//! three and passes starts, stops and each other's verdicts on to them.

use std::time::Duration;

use crate::kind::{Effects, Kind, Notice, Outcome, Verdict};
use crate::tick::Tick;
use crate::timing::{Pace, Policy, Timing};

/// How often a check that could not be made is tried in one round, as upstream.
const ATTEMPTS: u8 = 3;
/// A probe that goes on failing is reported once in this time: five events a second per
/// container would drown all others.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// A check to make now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// How much later than it could have it begins.
    pub late: Duration,
    /// The longest it may take.
    pub timeout: Duration,
}

/// From this change of the stretch on, checks are dealt out anew. Below it, waits are scaled.
const DEAL_FROM: f64 = 1.25;

/// One probe of one container.
#[derive(Clone, Debug)]
pub struct Probe {
    kind: Kind,
    timing: Timing,
    state: State,
    verdict: Verdict,
    /// The last outcome, true for success, and how often in a row it came.
    streak: (Option<bool>, u32),
    /// Whether a success was reached since the container started.
    succeeded: bool,
    /// The container run that the check under way belongs to.
    under_way: Option<u32>,
    run: u32,
    attempts: u8,
    /// When the container started plus the initial delay: the origin of the grid.
    first: Tick,
    last_begun: Option<Tick>,
    noticed: Option<(Notice, Tick)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The container does not run.
    Idle,
    /// The startup probe has not passed.
    Gated,
    /// The next check belongs to the grid point `due` and cannot begin before `eligible`.
    Waiting { due: Tick, eligible: Tick },
    /// A check for this grid point is under way.
    Checking { grid: Tick },
    /// Nothing to ask until the container runs anew.
    Held,
    /// Nothing to ask any more.
    Ended,
}

impl Probe {
    pub(crate) fn new(kind: Kind, timing: Timing) -> Self {
        Self {
            kind,
            timing,
            state: State::Idle,
            verdict: kind.initial(),
            streak: (None, 0),
            succeeded: false,
            under_way: None,
            run: 0,
            attempts: 0,
            first: Tick(0),
            last_begun: None,
            noticed: None,
        }
    }

    /// What the probe decides.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the probe says about the container.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How the probe is timed.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// When the next check is due, if one is to come and none is under way.
    pub fn due(&self) -> Option<Tick> {
        match self.state {
            State::Waiting { due, eligible } if self.under_way.is_none() => Some(due.max(eligible)),
            _ => None,
        }
    }

    /// The time between checks that is in force, if checks go on.
    pub fn period(&self, pace: Pace) -> Option<Duration> {
        match self.state {
            State::Waiting { .. } | State::Checking { .. } => {
                Some(self.timing.period(self.settled(pace.policy)))
            }
            State::Idle | State::Gated | State::Held | State::Ended => None,
        }
    }

    /// The container runs anew. Nothing of the run before counts.
    pub(crate) fn start(&mut self, started: Tick, seeded: Option<bool>) {
        if self.state == State::Ended {
            return;
        }
        self.run = self.run.wrapping_add(1);
        self.streak = (None, 0);
        self.attempts = 0;
        self.last_begun = None;
        self.noticed = None;
        self.succeeded = seeded == Some(true);
        self.verdict = if self.succeeded {
            Verdict::Success
        } else {
            self.kind.initial()
        };
        self.first = started + self.timing.initial_delay;
        self.state = State::Gated;
        if self.kind == Kind::Startup && self.succeeded {
            self.state = State::Held;
        }
    }

    /// The startup probe passed, or there is none: checks may begin.
    pub(crate) fn release(&mut self, due: Tick) {
        if self.state == State::Gated {
            self.state = State::Waiting { due, eligible: due };
        }
    }

    /// The origin of the grid: the container's start plus the initial delay.
    pub(crate) fn first(&self) -> Tick {
        self.first
    }

    pub(crate) fn stop(&mut self) -> Option<Verdict> {
        if self.state == State::Ended {
            return None;
        }
        self.state = State::Idle;
        // Only readiness has something to take back: a container that does not run is neither
        // started nor to be restarted by its probes.
        let takes_back = self.kind == Kind::Readiness && self.verdict == Verdict::Success;
        self.verdict = self.kind.initial();
        takes_back.then_some(Verdict::Failure)
    }

    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Moves the next check to now, but not below the initial delay or the floor of its handler.
    pub(crate) fn poke(&mut self, now: Tick) {
        let State::Waiting { due, .. } = self.state else {
            return;
        };
        let spaced = self.last_begun.map_or(now, |begun| begun + self.timing.floor);
        let sooner = now.max(self.first).max(spaced);
        if self.verdict != Verdict::Success && sooner < due {
            self.state = State::Waiting {
                due: sooner,
                eligible: sooner,
            };
        }
    }

    /// Periods are stretched by `pace` from now on, `ratio` times as much as before.
    ///
    /// Scaling what is left of every wait keeps the checks of many probes as evenly spread as they were. It is not
    /// enough when the stretch rises because they were too many: those that are overdue or under way lie within one
    /// old period, and would go on coming in one wave in each new period. So each gets its `place` in the new one,
    /// counted from when it could be due, for nothing is to be checked more often than it asks for.
    pub(crate) fn rescale(&mut self, ratio: f64, place: f64, now: Tick, pace: Pace) {
        let Some(begun) = self.last_begun else { return };
        let period = self.current_period(pace);
        let asked = self.timing.period(self.settled(pace.policy));
        let dealt = || now.max(begun + asked) + period.mul_f64(place);
        self.state = match self.state {
            State::Waiting { eligible, .. } if ratio >= DEAL_FROM => State::Waiting {
                due: dealt(),
                eligible,
            },
            State::Checking { .. } if ratio >= DEAL_FROM => State::Checking {
                grid: dealt() - period,
            },
            State::Waiting { due, eligible } if due > now => {
                let due = now + due.since(now).mul_f64(ratio);
                State::Waiting { due, eligible }
            }
            other => other,
        };
    }

    pub(crate) fn begin(&mut self, now: Tick, pace: Pace) -> Option<Begun> {
        let State::Waiting { due, eligible } = self.state else {
            return None;
        };
        if self.under_way.is_some() || now < due.max(eligible) {
            return None;
        }
        // A check that begins a period late stands for the points of the grid that it missed.
        let grid = due.advanced(self.current_period(pace), now);
        self.state = State::Checking { grid };
        self.under_way = Some(self.run);
        self.last_begun = Some(now);
        Some(Begun {
            late: now.since(due.max(eligible)),
            timeout: self.timing.timeout,
        })
    }

    pub(crate) fn finish(&mut self, outcome: Outcome, now: Tick, pace: Pace) -> Effects {
        let run = self.under_way.take();
        let State::Checking { grid } = self.state else {
            return Effects::default();
        };
        if run != Some(self.run) {
            return Effects::default();
        }
        let success = match outcome {
            Outcome::Success | Outcome::Warning => true,
            Outcome::Failure => false,
            Outcome::Errored | Outcome::Abandoned => return self.ignore(outcome, grid, now, pace),
        };
        self.attempts = 0;
        let verdict = self.count(success);
        let changed = verdict.filter(|verdict| *verdict != self.verdict);
        self.verdict = verdict.unwrap_or(self.verdict);
        let done = match self.kind {
            Kind::Readiness => false,
            Kind::Liveness => verdict == Some(Verdict::Failure),
            Kind::Startup => verdict.is_some(),
        };
        if done {
            self.state = State::Held;
        } else {
            self.next(grid, now, pace);
        }
        Effects {
            verdict: changed,
            notice: self.notice(outcome, now),
            counted: true,
        }
    }

    /// A round without an answer: tried again at once a few times, then left out.
    fn ignore(&mut self, outcome: Outcome, grid: Tick, now: Tick, pace: Pace) -> Effects {
        self.attempts += 1;
        if outcome == Outcome::Errored && self.attempts < ATTEMPTS {
            self.state = State::Waiting {
                due: grid,
                eligible: now,
            };
            return Effects::default();
        }
        self.attempts = 0;
        self.next(grid, now, pace);
        Effects {
            notice: self.notice(outcome, now),
            ..Effects::default()
        }
    }

    /// Counts one more outcome; says which verdict it confirms once the threshold is reached.
    fn count(&mut self, success: bool) -> Option<Verdict> {
        let run = match self.streak {
            (Some(last), run) if last == success => run.saturating_add(1),
            _ => 1,
        };
        self.streak = (Some(success), run);
        if success && run >= self.timing.success_threshold {
            self.succeeded = true;
            Some(Verdict::Success)
        } else if !success && run >= self.timing.failure_threshold {
            Some(Verdict::Failure)
        } else {
            None
        }
    }

    fn settled(&self, policy: Policy) -> bool {
        match policy {
            Policy::UntilFirstSuccess => self.succeeded,
            Policy::WhileWaitingForSuccess => self.succeeded && self.verdict == Verdict::Success,
            Policy::Always => false,
        }
    }

    fn current_period(&self, pace: Pace) -> Duration {
        let period = self.timing.period(self.settled(pace.policy));
        period.mul_f64(pace.stretch.max(1.0))
    }

    fn next(&mut self, grid: Tick, now: Tick, pace: Pace) {
        let period = self.current_period(pace);
        let due = (grid + period).max(grid.advanced(period, now));
        self.state = State::Waiting { due, eligible: now };
    }

    fn notice(&mut self, outcome: Outcome, now: Tick) -> Option<Notice> {
        let notice = match outcome {
            Outcome::Failure => Notice::Failed,
            Outcome::Errored => Notice::Errored,
            Outcome::Warning => Notice::Warned,
            Outcome::Abandoned => return None,
            Outcome::Success => {
                self.noticed = None;
                return None;
            }
        };
        let known = self
            .noticed
            .is_some_and(|(before, at)| before == notice && now.since(at) < NOTICE_EVERY);
        if known {
            return None;
        }
        self.noticed = Some((notice, now));
        Some(notice)
    }
}
