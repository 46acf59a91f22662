//! Who changes the profile during a run, and when?
//!
//! On a planned route the operators look at what is observed every few seconds and take the planner's
//! next step, so a crash of one is nothing special: the next look plans again. On a forbidden route
//! somebody changes one component too early and leaves it so for a while.

use crate::events::{Millis, seconds};
use crate::scenario::{Route, Scenario};
use fastrand::Rng;
use pointsman_latency_profile::{
    Catalog, Change, Day, Pool, ReportPeriod, Span, State, Values, Wanted, next_step,
};

/// Everything is left alone for so long at first.
const CALM: Millis = seconds(60);
/// How long a forbidden state lasts.
const HOLD: Millis = seconds(360);

#[derive(Debug)]
pub struct Rollout {
    route: Route,
    catalog: Catalog,
    wanted: Option<Wanted>,
    /// Somebody wants something else at this time.
    change_of_mind: Option<(Millis, Wanted)>,
    written: Values,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Moving,
    Holding(Millis),
    Done,
}

/// What a look of the operators leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Wait,
    /// These values are to be in force; what differs is changed.
    Write(Values),
    /// The rollout is over.
    Done,
}

impl Rollout {
    /// The rollout of a scenario.
    pub fn new(scenario: &Scenario, rng: &mut Rng) -> Self {
        let catalog = Catalog::standard();
        let (wanted, change_of_mind) = match scenario.route {
            Route::Planned(_, to) => {
                let other = rng.usize(..catalog.profiles().len());
                let other = Wanted::everywhere(catalog.profiles()[other]);
                let at = CALM + rng.u64(..seconds(240));
                let changes = rng.u8(..5) == 0;
                (Some(Wanted::everywhere(to)), changes.then_some((at, other)))
            }
            Route::Stay(_) | Route::Forbidden(..) => (None, None),
        };
        Self {
            route: scenario.route,
            catalog,
            wanted,
            change_of_mind,
            written: scenario.start(),
            phase: Phase::Waiting,
        }
    }

    /// Whether a node may die after the rollout, so that the time to find out is measured: only where it
    /// is clear which profile that measures.
    pub fn measures_death(&self) -> bool {
        self.change_of_mind.is_none() && !matches!(self.route, Route::Forbidden(..))
    }

    /// What was written last.
    pub fn written(&self) -> Values {
        self.written
    }

    /// The operators look: `seen` are the report periods that nodes are seen to use.
    pub fn look(&mut self, now: Millis, seen: impl Iterator<Item = ReportPeriod>) -> Move {
        if now < CALM {
            return Move::Wait;
        }
        if let Some((_, wanted)) = self.change_of_mind.take_if(|(at, _)| now >= *at) {
            self.wanted = Some(wanted);
            // It happened: the run stays without a death.
            self.change_of_mind = Some((Millis::MAX, Wanted::everywhere(self.catalog.profiles()[0])));
        }
        let decision = match self.route {
            Route::Stay(_) => Move::Done,
            Route::Planned(..) => self.planned(seen),
            Route::Forbidden(_, to, through) => self.forbidden(now, seen, through, to.values),
        };
        match decision {
            Move::Write(values) => self.written = values,
            Move::Done => self.phase = Phase::Done,
            Move::Wait => {}
        }
        decision
    }

    fn planned(&mut self, seen: impl Iterator<Item = ReportPeriod>) -> Move {
        let written = self.written;
        let reports = Span::of(seen.chain([written.report])).expect("there is at least one");
        let mut state = State::from(written);
        state.reports.insert(Pool::default(), reports);
        let wanted = self.wanted.as_ref().expect("a planned route wants something");
        let Some(step) = next_step(&state, wanted, &self.catalog, Day::Two) else {
            return Move::Done;
        };
        let mut values = written;
        match step.change {
            Change::Reports(periods) => values.report = periods[&Pool::default()],
            Change::Grace(grace) => values.grace = grace,
            Change::Tolerations(tolerations) => values.tolerations = tolerations,
        }
        if values == written {
            // Nodes are on their way.
            Move::Wait
        } else {
            Move::Write(values)
        }
    }

    fn forbidden(
        &mut self,
        now: Millis,
        mut seen: impl Iterator<Item = ReportPeriod>,
        through: Values,
        to: Values,
    ) -> Move {
        let arrived = seen.all(|period| period == self.written.report);
        match self.phase {
            Phase::Waiting => {
                self.phase = Phase::Moving;
                Move::Write(through)
            }
            Phase::Moving => {
                self.phase = Phase::Holding(now + HOLD);
                Move::Wait
            }
            Phase::Holding(until) if now < until => Move::Wait,
            Phase::Holding(_) if self.written != to => Move::Write(to),
            Phase::Holding(_) | Phase::Done => {
                if arrived {
                    Move::Done
                } else {
                    Move::Wait
                }
            }
        }
    }
}
