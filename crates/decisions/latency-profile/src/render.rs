//! How is a plan shown?

mod svg;
mod table;

pub use svg::svg;
pub use table::{check, text};

use crate::plan::{Change, Plan, Purpose, Step};
use crate::profile::Catalog;
use crate::state::{Pool, Span, State};
use crate::units::ReportPeriod;
use crate::verdict::{Verdict, arithmetic};
use std::collections::BTreeMap;

/// What a step sets, in one line.
pub fn describe(change: &Change) -> String {
    let value = match change {
        Change::Reports(periods) => by_pool(periods.iter().map(|(pool, period)| (pool, *period))),
        Change::Grace(grace) => grace.to_string(),
        Change::Tolerations(tolerations) => tolerations.to_string(),
    };
    let component = change.component();
    format!("{}: {} = {value}", component.name(), component.setting())
}

/// Why a state is safe or not, as arithmetic.
pub fn why(state: &State) -> String {
    match state.slowest() {
        Some(report) => arithmetic(report, state.grace.least),
        None => "there are no nodes".into(),
    }
}

/// Why this step and not another.
pub fn reason(before: &State, step: &Step) -> String {
    match step.purpose {
        Purpose::Relief => "ends an unsafe state".into(),
        Purpose::LeastBad => "no single step ends this unsafe state; this is the least bad one".into(),
        Purpose::Advance => match &step.change {
            Change::Grace(grace) if *grace > before.grace.least => {
                "patience grows before reports become rarer".into()
            }
            Change::Grace(_) => "patience shrinks after reports became more frequent".into(),
            Change::Tolerations(_) => "tolerations change while patience is longest".into(),
            Change::Reports(_) if step.after.slowest() > before.slowest() => {
                "reports become rarer once patience covers it".into()
            }
            Change::Reports(_) => "reports become more frequent before patience shrinks".into(),
        },
    }
}

/// What a state is called.
pub fn name(state: &State, catalog: &Catalog) -> Option<&'static str> {
    let profile = catalog.of_values(state.values()?)?;
    Some(profile.name)
}

fn reports(state: &State) -> String {
    if state.reports.is_empty() {
        return "no nodes".into();
    }
    let all: BTreeMap<&Pool, Span<ReportPeriod>> =
        state.reports.iter().map(|(pool, span)| (pool, *span)).collect();
    by_pool(all.into_iter())
}

/// One value if all pools agree, else each with its name.
fn by_pool<'a, T: PartialEq + std::fmt::Display>(periods: impl Iterator<Item = (&'a Pool, T)>) -> String {
    let periods: Vec<(&Pool, T)> = periods.collect();
    match periods.as_slice() {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => first.to_string(),
        all => all
            .iter()
            .map(|(pool, period)| match pool.name() {
                "" => period.to_string(),
                name => format!("{name}={period}"),
            })
            .collect::<Vec<_>>()
            .join(" "),
    }
}

fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NoMajorImpact { .. } => "ok",
        Verdict::FewChances { .. } => "RISK",
        Verdict::NoChance => "DANGER",
    }
}

/// A sentence about the whole plan.
pub fn summary(plan: &Plan) -> String {
    let hazards = plan.hazards().len();
    match (plan.steps.len(), hazards) {
        (0, 0) => "Nothing to do: this profile is in force.".into(),
        (steps, 0) => format!("{steps} steps, every state on the way is safe."),
        (steps, 1) => format!(
            "{steps} steps. The present state is unsafe ({}: {}); the first step ends that, and every \
             later state is safe.",
            why(&plan.from),
            plan.from.verdict()
        ),
        (steps, hazards) => format!(
            "{steps} steps. The present state is unsafe ({}: {}) and no single step ends that, so {hazards} \
             states are unsafe; the least bad step comes first.",
            why(&plan.from),
            plan.from.verdict()
        ),
    }
}
