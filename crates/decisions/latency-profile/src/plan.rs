//! Which single change comes next, and where does it lead?
//!
//! [`next_step`] is the whole decision; [`plan`] follows it to the end. So whoever plans again from what
//! is observed in the middle of a plan gets the rest of the same plan.
//!
//! From a safe state every step leads to a safe state: a grace period grows before report periods do and
//! shrinks after them. Tolerations change while the grace period is the longer one, so that pods are
//! never evicted sooner than at both ends of the change.

use crate::profile::{Catalog, Profile, Wanted};
use crate::state::{Component, Pool, Span, State};
use crate::units::{GracePeriod, ReportPeriod, Tolerations};
use crate::verdict::Verdict;
use std::collections::{BTreeMap, BTreeSet};

/// More steps than any plan has: three for each rung, one to get out of danger, twice over.
const MOST_STEPS: usize = 64;

/// Whether the cluster runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Day {
    /// It is being installed: nothing can be tainted yet, so changes go straight to the profile.
    Zero,
    /// It runs: changes climb the ladder of profiles one rung at a time.
    Two,
}

/// A change of one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nodes report at these periods, by pool.
    Reports(BTreeMap<Pool, ReportPeriod>),
    /// The controller manager waits this long.
    Grace(GracePeriod),
    /// New pods tolerate taints this long.
    Tolerations(Tolerations),
}

impl Change {
    /// What is changed.
    pub fn component(&self) -> Component {
        match self {
            Self::Reports(_) => Component::Kubelet,
            Self::Grace(_) => Component::KubeControllerManager,
            Self::Tolerations(_) => Component::KubeAPIServer,
        }
    }

    /// The state once the change is in force everywhere.
    pub fn apply(&self, state: &State) -> State {
        let mut after = state.clone();
        match self {
            Self::Reports(periods) => {
                let periods = periods.iter();
                after
                    .reports
                    .extend(periods.map(|(pool, period)| (pool.clone(), Span::exactly(*period))));
            }
            Self::Grace(grace) => after.grace = Span::exactly(*grace),
            Self::Tolerations(tolerations) => after.tolerations = Span::exactly(*tolerations),
        }
        after
    }
}

/// Why a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It leads towards the wanted profile through safe states.
    Advance,
    /// The present state is unsafe, and this single step ends that.
    Relief,
    /// The present state is unsafe and no single step ends that; this one is the least bad.
    LeastBad,
}

/// One change, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is changed.
    pub change: Change,
    pub purpose: Purpose,
    /// What is in force when it took effect everywhere.
    pub after: State,
}

/// All changes from one state to a wanted profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it starts.
    pub from: State,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Every state that nodes meet, the first included.
    pub fn states(&self) -> impl Iterator<Item = &State> {
        std::iter::once(&self.from).chain(self.steps.iter().map(|step| &step.after))
    }

    /// The unsafe states on the way; none, unless it starts in one.
    pub fn hazards(&self) -> Vec<(&State, Verdict)> {
        let verdicts = self.states().map(|state| (state, state.verdict()));
        verdicts.filter(|(_, verdict)| !verdict.is_safe()).collect()
    }

    /// The state at the end.
    pub fn end(&self) -> &State {
        self.steps.last().map_or(&self.from, |step| &step.after)
    }
}

/// The steps from `state` to what is wanted. Empty when it is in force.
pub fn plan(state: &State, wanted: &Wanted, catalog: &Catalog, day: Day) -> Plan {
    let mut steps: Vec<Step> = Vec::new();
    while let Some(step) = next_step(
        steps.last().map_or(state, |step: &Step| &step.after),
        wanted,
        catalog,
        day,
    ) {
        steps.push(step);
        assert!(steps.len() <= MOST_STEPS, "every step leads closer to the goal");
    }
    Plan {
        from: state.clone(),
        steps,
    }
}

/// The next step towards what is wanted, or nothing when it is in force.
pub fn next_step(state: &State, wanted: &Wanted, catalog: &Catalog, day: Day) -> Option<Step> {
    let goal = Goal::of(wanted, state);
    let leg = match day {
        Day::Zero => goal.clone(),
        Day::Two => goal.within_one_rung(state, catalog),
    };
    let open = leg.open_changes(state);
    if state.verdict().is_safe() {
        let mut steps = open
            .into_iter()
            .map(|change| step(change, state, Purpose::Advance));
        // The order of `open_changes` is safe; looking is cheaper than trusting.
        return steps.find(|step| step.after.verdict().is_safe());
    }
    let direct = goal.open_changes(state);
    relief(state, direct.iter().chain(&open), catalog).or_else(|| least_bad(state, direct))
}

fn step(change: Change, state: &State, purpose: Purpose) -> Step {
    let after = change.apply(state);
    Step {
        change,
        purpose,
        after,
    }
}

/// A single step out of an unsafe state: towards the goal if one of those helps, else a longer grace
/// period, which takes effect in one place, else faster reports.
fn relief<'a>(state: &State, towards: impl Iterator<Item = &'a Change>, catalog: &Catalog) -> Option<Step> {
    let profiles = catalog.profiles();
    let graces = profiles.iter().map(|profile| Change::Grace(profile.values.grace));
    let reports = profiles.iter().rev().map(|profile| {
        let pools = state.reports.keys().cloned();
        Change::Reports(pools.map(|pool| (pool, profile.values.report)).collect())
    });
    towards
        .cloned()
        .chain(graces)
        .chain(reports)
        .map(|change| step(change, state, Purpose::Relief))
        .find(|step| step.after.verdict().is_safe())
}

fn least_bad(state: &State, changes: Vec<Change>) -> Option<Step> {
    // Between equals the later one wins here, and the grace period, which takes effect in one place, is
    // never before report periods when both are open.
    let ranked = changes
        .into_iter()
        .filter(|change| change.component() != Component::KubeAPIServer);
    ranked
        .map(|change| step(change, state, Purpose::LeastBad))
        .max_by_key(|step| {
            let controller = step.change.component() == Component::KubeControllerManager;
            (step.after.verdict().chances(), controller)
        })
}

/// One value for everything that can be set.
#[derive(Clone, Debug)]
struct Goal {
    reports: BTreeMap<Pool, ReportPeriod>,
    grace: GracePeriod,
    tolerations: Tolerations,
}

impl Goal {
    fn of(wanted: &Wanted, state: &State) -> Self {
        let control_plane = wanted.control_plane().values;
        let pools: BTreeSet<&Pool> = state.reports.keys().chain(wanted.pools.keys()).collect();
        let mut reports: BTreeMap<Pool, ReportPeriod> = pools
            .into_iter()
            .map(|pool| (pool.clone(), wanted.of_pool(pool).values.report))
            .collect();
        // Nodes that join later need a value even if there is none yet.
        reports
            .entry(Pool::default())
            .or_insert(wanted.profile.values.report);
        Self {
            reports,
            grace: control_plane.grace,
            tolerations: control_plane.tolerations,
        }
    }

    /// The part of the way to this goal that climbs at most one rung of the ladder.
    ///
    /// What is farthest from its goal sets the pace: nothing else passes the rung that it climbs to.
    fn within_one_rung(&self, state: &State, catalog: &Catalog) -> Self {
        let profiles = catalog.profiles();
        let reports = Ladder::new(profiles, |profile| profile.values.report);
        let graces = Ladder::new(profiles, |profile| profile.values.grace);
        let climbs = state.reports.iter().filter_map(|(pool, span)| {
            let goal = self.reports.get(pool)?;
            Some([reports.climb(span.least, *goal), reports.climb(span.most, *goal)])
        });
        let grace = state.grace;
        let graces_climb = [
            graces.climb(grace.least, self.grace),
            graces.climb(grace.most, self.grace),
        ];
        let farthest = climbs
            .flatten()
            .chain(graces_climb)
            .max_by_key(|climb| climb.distance());
        let Some(rung) = farthest.and_then(Climb::rung) else {
            return self.clone();
        };
        let limited = self.reports.iter().map(|(pool, goal)| {
            let limited = match state.reports.get(pool) {
                Some(span) => reports.limit(*span, *goal, rung),
                None => reports.limit(Span::exactly(profiles[rung.index].values.report), *goal, rung),
            };
            (pool.clone(), limited)
        });
        Self {
            reports: limited.collect(),
            grace: graces.limit(grace, self.grace, rung),
            tolerations: profiles[rung.index].values.tolerations,
        }
    }

    /// What differs from this goal, in an order that is safe if the state is.
    fn open_changes(&self, state: &State) -> Vec<Change> {
        let report = self
            .reports
            .iter()
            .any(|(pool, period)| state.reports.get(pool).is_none_or(|span| !span.is(*period)))
            .then(|| Change::Reports(self.reports.clone()));
        let grace = (!state.grace.is(self.grace)).then_some(Change::Grace(self.grace));
        let tolerations =
            (!state.tolerations.is(self.tolerations)).then_some(Change::Tolerations(self.tolerations));
        let grows = self.grace > state.grace.least || self.reports.values().max() > state.slowest().as_ref();
        let order = if grows {
            [grace, tolerations, report]
        } else {
            [report, tolerations, grace]
        };
        order.into_iter().flatten().collect()
    }
}

/// The values that the profiles give one setting, from impatient to patient.
struct Ladder<T>(Vec<T>);

/// Places on a ladder count half rungs: even ones are on a rung, odd ones between two.
#[derive(Clone, Copy)]
struct Climb {
    from: i64,
    to: i64,
}

/// The rung that a leg ends at, and the way it goes.
#[derive(Clone, Copy)]
struct Rung {
    index: usize,
    up: bool,
}

impl Climb {
    /// Half rungs; of two equal ways the one up is longer, since more patience is never unsafe.
    fn distance(self) -> (i64, bool) {
        ((self.to - self.from).abs(), self.to > self.from)
    }

    /// Where to stop on the way, if the goal is more than one rung away.
    fn rung(self) -> Option<Rung> {
        let up = self.to > self.from;
        let next = if up {
            self.from.div_euclid(2) + 1
        } else {
            (self.from + 1).div_euclid(2) - 1
        };
        let index = usize::try_from(next).ok()?;
        ((self.to - self.from).abs() > 2).then_some(Rung { index, up })
    }
}

impl<T: Copy + Ord> Ladder<T> {
    fn new(profiles: &[Profile], value: impl Fn(&Profile) -> T) -> Self {
        Self(profiles.iter().map(value).collect())
    }

    fn place(&self, value: T) -> i64 {
        let below = self.0.iter().filter(|rung| **rung < value).count() as i64;
        if self.0.contains(&value) {
            below * 2
        } else {
            below * 2 - 1
        }
    }

    fn climb(&self, from: T, to: T) -> Climb {
        Climb {
            from: self.place(from),
            to: self.place(to),
        }
    }

    /// The goal, but not past the rung in its direction; what is past it already stays where it is, and
    /// what goes the other way does so one rung at a time as well.
    fn limit(&self, span: Span<T>, goal: T, rung: Rung) -> T {
        let against = if rung.up { span.most } else { span.least };
        let rung = match self.climb(against, goal).rung() {
            Some(own) if own.up != rung.up => own,
            _ => rung,
        };
        let bound = self.0[rung.index];
        if rung.up {
            goal.min(bound.max(span.most))
        } else {
            goal.max(bound.min(span.least))
        }
    }
}
