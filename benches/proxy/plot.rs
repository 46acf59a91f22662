//! Cost against the size of the cluster, as a picture.

use crate::contender::Mode;
use crate::report::{Results, Row};
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
/// Room beside each panel, for the names of its lines.
const GAP: f64 = 200.0;
/// Between two names.
const NAME: f64 = 15.0;

/// One panel: what is shown, and how to read it from a row.
type Panel = (&'static str, &'static str, fn(&Row) -> Option<f64>);

const PANELS: [Panel; 2] = [
    ("one endpoint change, median", "ms", |row| row.change_p50_ms),
    ("cold start", "s", |row| row.cold_seconds),
];

/// The lines' colours, by proxy and mode.
fn colour(contender: &str, mode: Mode) -> &'static str {
    match (contender, mode) {
        ("pointsman", Mode::Nftables) => "#0b6e4f",
        ("pointsman", Mode::IptablesNft) => "#1f6fb2",
        ("pointsman", Mode::IptablesLegacy) => "#7a5195",
        ("pointsman, gate off", _) => "#888888",
        (_, Mode::Nftables) => "#d1495b",
        (_, Mode::IptablesNft) => "#e07a1f",
        (_, Mode::IptablesLegacy) => "#8a6d3b",
    }
}

/// A drawing with logarithmic scales; sizes are counted in endpoints.
pub fn draw(results: &Results) -> String {
    let (width, height) = (LEFT + 2.0 * (WIDTH + GAP), TOP + HEIGHT + 70.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (at, panel) in PANELS.iter().enumerate() {
        let x = LEFT + at as f64 * (WIDTH + GAP);
        draw_panel(&mut out, results, panel, x);
    }
    out.push_str("</svg>\n");
    out
}

fn draw_panel(out: &mut String, results: &Results, (title, unit, value): &Panel, x0: f64) {
    let mut lines: BTreeMap<(String, &str), Vec<(f64, f64)>> = BTreeMap::new();
    let mut modes = BTreeMap::new();
    for row in &results.rows {
        let size = (row.size.services * row.size.endpoints) as f64;
        if let Some(y) = value(row).filter(|y| *y > 0.0) {
            let key = (row.contender.clone(), row.mode.name());
            modes.insert(key.clone(), row.mode);
            lines.entry(key).or_default().push((size, y));
        }
    }
    let all = || lines.values().flatten();
    let (low_x, high_x) = bounds(all().map(|point| point.0));
    let (low_y, high_y) = bounds(all().map(|point| point.1));
    let x = |value: f64| x0 + (value.log10() - low_x) / (high_x - low_x) * WIDTH;
    let y = |value: f64| TOP + HEIGHT - (value.log10() - low_y) / (high_y - low_y) * HEIGHT;
    let _ = writeln!(
        out,
        "<text x=\"{x0}\" y=\"{}\" font-size=\"15\">{title} ({unit})</text>",
        TOP - 20.0
    );
    for decade in low_y as i32..=high_y as i32 {
        let at = y(10f64.powi(decade));
        let end = x0 + WIDTH;
        let _ = writeln!(
            out,
            "<line x1=\"{x0}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        );
        let label = 10f64.powi(decade);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            x0 - 6.0,
            at + 4.0
        );
    }
    for decade in low_x as i32..=high_x as i32 {
        let at = x(10f64.powi(decade));
        let bottom = TOP + HEIGHT;
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>"
        );
        let label = 10f64.powi(decade);
        let _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 18.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">endpoints in the cluster</text>",
        x0 + WIDTH / 2.0,
        TOP + HEIGHT + 40.0
    );
    let mut names = Vec::new();
    for ((contender, mode), points) in &mut lines {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let colour = colour(contender, modes[&(contender.clone(), *mode)]);
        let path: Vec<String> = points
            .iter()
            .map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (a, b) in points.iter() {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                x(*a),
                y(*b)
            );
        }
        if let Some((_, last)) = points.last() {
            names.push((y(*last), format!("{contender} {mode}"), colour));
        }
    }
    draw_names(out, names, x0 + WIDTH + 8.0);
}

/// Writes each line's name as high as its last point, unless another name is there.
fn draw_names(out: &mut String, mut names: Vec<(f64, String, &str)>, x: f64) {
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free = f64::NEG_INFINITY;
    for (y, name, colour) in names {
        let y = y.max(free);
        free = y + NAME;
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            y + 4.0
        );
    }
}

/// Whole decades around the values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        low = low.min(value.log10().floor());
        high = high.max(value.log10().ceil());
    }
    if low < high { (low, high) } else { (0.0, 1.0) }
}
