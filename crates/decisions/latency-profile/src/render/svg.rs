//! A plan as a picture: one lane for each component, one column for each state.

use super::{name, reports, verdict_word, why};
use crate::plan::Plan;
use crate::profile::Catalog;
use crate::state::{Component, State};
use std::fmt::Write;

const LEFT: usize = 190;
const COLUMN: usize = 150;
const TOP: usize = 56;
const LANE: usize = 46;

/// A timeline: what each component has in force between steps, and how many reports fit.
pub fn svg(plan: &Plan, catalog: &Catalog, title: &str) -> String {
    let states: Vec<&State> = plan.states().collect();
    let width = LEFT + states.len() * COLUMN + 16;
    let height = TOP + 4 * LANE + 60;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        title = escape(title)
    );
    text(&mut out, 16, 24, "font-size=\"16\" font-weight=\"bold\"", title);
    for (lane, component) in Component::ALL.into_iter().enumerate() {
        let y = TOP + lane * LANE;
        text(&mut out, 16, y + 20, "font-weight=\"bold\"", component.name());
        text(
            &mut out,
            16,
            y + 35,
            "font-size=\"9\" fill=\"#666666\"",
            short(component),
        );
        draw_lane(&mut out, &states, component, y);
    }
    let y = TOP + 3 * LANE;
    text(&mut out, 16, y + 20, "font-weight=\"bold\"", "Chances to report");
    for (column, state) in states.iter().enumerate() {
        draw_verdict(&mut out, state, catalog, LEFT + column * COLUMN, y);
    }
    for (index, step) in plan.steps.iter().enumerate() {
        let x = LEFT + (index + 1) * COLUMN - 4;
        let owner = step.change.component().owner().name();
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"#444444\" stroke-dasharray=\"3 3\"/>",
            TOP - 8,
            TOP + 4 * LANE
        );
        let attributes = "font-size=\"9\" fill=\"#444444\" text-anchor=\"middle\"";
        text(
            &mut out,
            x,
            TOP - 14,
            attributes,
            &format!("{}. {owner}", index + 1),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// One box for each stretch of time in which the component keeps its value.
fn draw_lane(out: &mut String, states: &[&State], component: Component, y: usize) {
    let values: Vec<String> = states.iter().map(|state| value(state, component)).collect();
    let mut start = 0;
    while start < values.len() {
        let length = values[start..]
            .iter()
            .take_while(|value| **value == values[start])
            .count();
        let x = LEFT + start * COLUMN;
        let width = length * COLUMN - 8;
        let fill = if start == 0 { "#dce6f2" } else { "#b7d3f0" };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" rx=\"4\" fill=\"{fill}\"/>",
            LANE - 10
        );
        let attributes = "text-anchor=\"middle\"";
        text(out, x + width / 2, y + 23, attributes, &values[start]);
        start += length;
    }
}

fn draw_verdict(out: &mut String, state: &State, catalog: &Catalog, x: usize, y: usize) {
    let verdict = state.verdict();
    let fill = match verdict_word(verdict) {
        "ok" => "#cfe8cf",
        "RISK" => "#f6dfa9",
        _ => "#f2b8b5",
    };
    let width = COLUMN - 8;
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" rx=\"4\" fill=\"{fill}\"/>",
        LANE - 10
    );
    let middle = x + width / 2;
    let label = format!("{} {}", verdict.chances(), verdict_word(verdict));
    text(
        out,
        middle,
        y + 16,
        "text-anchor=\"middle\" font-weight=\"bold\"",
        &label,
    );
    let small = "text-anchor=\"middle\" font-size=\"9\" fill=\"#444444\"";
    text(out, middle, y + 30, small, &why(state));
    if let Some(name) = name(state, catalog) {
        text(
            out,
            middle,
            y + LANE + 12,
            "text-anchor=\"middle\" font-size=\"10\" font-weight=\"bold\"",
            name,
        );
    }
}

fn value(state: &State, component: Component) -> String {
    match component {
        Component::Kubelet => reports(state),
        Component::KubeControllerManager => state.grace.to_string(),
        Component::KubeAPIServer => state.tolerations.to_string(),
    }
}

fn short(component: Component) -> &'static str {
    match component {
        Component::Kubelet => "node-status-update-frequency",
        Component::KubeControllerManager => "node-monitor-grace-period",
        Component::KubeAPIServer => "default toleration seconds",
    }
}

fn text(out: &mut String, x: usize, y: usize, attributes: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" {attributes}>{text}</text>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
