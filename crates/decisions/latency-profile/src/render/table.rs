//! A plan for people at a terminal.

use super::{describe, name, reason, reports, summary, verdict_word, why};
use crate::plan::Plan;
use crate::profile::Catalog;
use crate::state::State;
use crate::verdict::{LeaseTerms, Verdict};
use std::fmt::Write;

/// A plan: its steps, and the table of states with the reason why each is safe.
pub fn text(plan: &Plan, catalog: &Catalog, leases: LeaseTerms) -> String {
    let mut out = summary(plan);
    out.push('\n');
    if !plan.steps.is_empty() {
        out.push_str("\nSteps\n");
    }
    let mut before = &plan.from;
    for (index, step) in plan.steps.iter().enumerate() {
        let owner = step.change.component().owner().name();
        let _ = writeln!(out, "  {}. {}", index + 1, describe(&step.change));
        let _ = writeln!(out, "     by {owner}: {}", reason(before, step));
        before = &step.after;
    }
    out.push_str("\nStates\n");
    let rows: Vec<[String; 7]> = std::iter::once(
        [
            "",
            "kubelet",
            "grace",
            "toleration",
            "verdict",
            "why",
            "with leases",
        ]
        .map(String::from),
    )
    .chain(
        plan.states()
            .enumerate()
            .map(|(index, state)| row(index, state, catalog, leases)),
    )
    .collect();
    write_columns(&mut out, &rows);
    out
}

/// What is in force now and what it means.
pub fn check(state: &State, catalog: &Catalog, leases: LeaseTerms) -> String {
    let mut out = String::new();
    let profile = name(state, catalog).unwrap_or("none of them");
    let _ = writeln!(out, "profile                 {profile}");
    let _ = writeln!(out, "kubelet reports every   {}", reports(state));
    let _ = writeln!(out, "grace period            {}", state.grace);
    let _ = writeln!(out, "default tolerations     {}", state.tolerations);
    let _ = writeln!(
        out,
        "verdict                 {} ({})",
        state.verdict(),
        why(state)
    );
    let with_leases = state.verdict_with_leases(leases);
    let _ = writeln!(out, "where leases are renewed {with_leases}");
    out
}

fn row(index: usize, state: &State, catalog: &Catalog, leases: LeaseTerms) -> [String; 7] {
    let verdict = state.verdict();
    let mut text = format!("{}: {verdict}", verdict_word(verdict));
    if let Some(name) = name(state, catalog) {
        text = format!("{text} ({name})");
    }
    [
        index.to_string(),
        reports(state),
        state.grace.to_string(),
        state.tolerations.to_string(),
        text,
        why(state),
        leases_word(state.verdict_with_leases(leases)),
    ]
}

fn leases_word(verdict: Verdict) -> String {
    match verdict {
        Verdict::NoMajorImpact { chances: u64::MAX } => "-".into(),
        verdict => format!("{} chances", verdict.chances()),
    }
}

fn write_columns(out: &mut String, rows: &[[String; 7]]) {
    let widths: [usize; 7] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}
