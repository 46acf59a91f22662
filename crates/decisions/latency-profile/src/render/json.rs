//! A plan for programs.

use super::{describe, name, reason, summary, why};
use crate::plan::{Change, Plan, Purpose};
use crate::profile::Catalog;
use crate::state::{Span, State};
use crate::verdict::LeaseTerms;
use serde_json::{Map, Value, json};

/// A plan as JSON: states with their verdicts, and the steps between them.
pub fn json(plan: &Plan, catalog: &Catalog, leases: LeaseTerms) -> Value {
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
        .map(|(pool, span)| (pool.name().to_owned(), self::span(*span)))
        .collect();
    json!({
        "profile": name(state, catalog),
        "nodeStatusUpdateFrequency": reports,
        "nodeMonitorGracePeriod": span(state.grace),
        "defaultTolerationSeconds": span(state.tolerations),
        "verdict": state.verdict(),
        "verdictWithLeases": state.verdict_with_leases(leases),
        "why": why(state),
    })
}

fn span<T: Copy + Ord + serde::Serialize>(span: Span<T>) -> Value {
    match span.exact() {
        Some(value) => json!(value),
        None => json!({ "least": span.least, "most": span.most }),
    }
}

fn value(change: &Change) -> Value {
    match change {
        Change::Reports(periods) => periods
            .iter()
            .map(|(pool, period)| (pool.name().to_owned(), json!(period)))
            .collect::<Map<_, _>>()
            .into(),
        Change::Grace(grace) => json!(grace),
        Change::Tolerations(tolerations) => json!(tolerations),
    }
}
