//! How do programs read a plan?

use pointsman_latency_profile::plan::{Change, Plan, Purpose};
use pointsman_latency_profile::profile::Catalog;
use pointsman_latency_profile::render::{describe, name, reason, summary, why};
use pointsman_latency_profile::state::{Span, State};
use pointsman_latency_profile::units::Tolerations;
use pointsman_latency_profile::verdict::{LeaseTerms, Verdict};
use serde_json::{Map, Value, json};

/// A plan as JSON: states with their verdicts, and the steps between them.
pub fn plan_json(plan: &Plan, catalog: &Catalog, leases: LeaseTerms) -> Value {
    let mut before = &plan.from;
    let mut steps = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let component = step.change.component();
        steps.push(json!({
            "number": index + 1,
            "component": component.name(),
            "owner": component.owner().name(),
            "setting": component.setting(),
            "value": value(&step.change),
            "description": describe(&step.change),
            "reason": reason(before, step),
            "purpose": match step.purpose {
                Purpose::Advance => "advance",
                Purpose::Relief => "relief",
                Purpose::LeastBad => "leastBad",
            },
            "after": state(&step.after, catalog, leases),
        }));
        before = &step.after;
    }
    json!({
        "from": state(&plan.from, catalog, leases),
        "steps": steps,
        "safe": plan.hazards().is_empty(),
        "summary": summary(plan),
    })
}

fn state(state: &State, catalog: &Catalog, leases: LeaseTerms) -> Value {
    let reports: Map<String, Value> = state
        .reports
        .iter()
        .map(|(pool, span)| {
            (
                pool.name().to_owned(),
                self::span(*span, |period| period.to_string().into()),
            )
        })
        .collect();
    json!({
        "profile": name(state, catalog),
        "nodeStatusUpdateFrequency": reports,
        "nodeMonitorGracePeriod": span(state.grace, |grace| grace.to_string().into()),
        "defaultTolerationSeconds": span(state.tolerations, seconds),
        "verdict": verdict(state.verdict()),
        "verdictWithLeases": verdict(state.verdict_with_leases(leases)),
        "why": why(state),
    })
}

fn span<T: Copy + Ord>(span: Span<T>, value: impl Fn(T) -> Value) -> Value {
    match span.exact() {
        Some(exact) => value(exact),
        None => json!({ "least": value(span.least), "most": value(span.most) }),
    }
}

fn seconds(tolerations: Tolerations) -> Value {
    json!({ "notReady": tolerations.not_ready, "unreachable": tolerations.unreachable })
}

fn verdict(verdict: Verdict) -> Value {
    match verdict {
        Verdict::NoChance => json!({ "impact": "noChance" }),
        Verdict::FewChances { chances } => json!({ "impact": "fewChances", "chances": chances }),
        Verdict::NoMajorImpact { chances } => json!({ "impact": "noMajorImpact", "chances": chances }),
    }
}

fn value(change: &Change) -> Value {
    match change {
        Change::Reports(periods) => periods
            .iter()
            .map(|(pool, period)| (pool.name().to_owned(), period.to_string().into()))
            .collect::<Map<_, _>>()
            .into(),
        Change::Grace(grace) => grace.to_string().into(),
        Change::Tolerations(tolerations) => seconds(*tolerations),
    }
}
