//! Which metrics does a registry have, in words?
//!
//! The answer comes from the definitions themselves, so that a reference made from it cannot lag behind.

use crate::parse::{ParseError, ParsedFamily, parse};
use crate::registry::{Definition, Registry};
use crate::text::Kind;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a reference says about a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name as it is exposed.
    pub name: String,
    /// The type, and a histogram's buckets in short.
    pub kind: String,
    /// Label names, in the order of the definition.
    pub labels: Vec<String>,
    /// What it measures.
    pub help: String,
}

/// Every metric of a registry, in order of name.
///
/// Families that are computed at each reading have no definition; of those the labels are known only if
/// there is a sample.
pub fn entries(registry: &Registry) -> Result<Vec<Entry>, ParseError> {
    let rendered = parse(&registry.render())?.into_iter().map(|family| {
        let entry = from_family(&family);
        (entry.name.clone(), entry)
    });
    let mut entries: BTreeMap<String, Entry> = rendered.collect();
    for (definition, kind) in registry.definitions() {
        entries.insert(definition.name.to_owned(), from_definition(&definition, kind));
    }
    Ok(entries.into_values().collect())
}

/// The entries as a table in Markdown.
pub fn table(entries: &[Entry]) -> String {
    let mut out = String::from("| Metric | Type | Labels | What it says |\n|---|---|---|---|\n");
    for entry in entries {
        let labels: Vec<String> = entry.labels.iter().map(|label| format!("`{label}`")).collect();
        let help = entry.help.replace('|', "\\|");
        // Writing into a string cannot fail.
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {help} |",
            entry.name,
            entry.kind,
            labels.join(", ")
        );
    }
    out
}

fn from_family(family: &ParsedFamily) -> Entry {
    let labels = family.samples.first().map(|sample| &sample.labels);
    let labels = labels.into_iter().flatten().map(|(label, _)| label.clone());
    Entry {
        name: family.name.clone(),
        kind: family.kind.as_str().to_owned(),
        labels: labels.filter(|label| label != "le").collect(),
        help: family.help.clone(),
    }
}

fn from_definition(definition: &Definition, kind: Kind) -> Entry {
    let word = kind.as_str();
    let kind = match (kind, definition.buckets.as_slice()) {
        // Only the histogram of milliseconds has no bounds of its own.
        (Kind::Histogram, []) => format!("{word}, a bucket per ms"),
        (Kind::Histogram, [first, .., last]) => {
            let [first, last] = [first, last].map(|bound| short(*bound));
            format!("{word}, {} buckets, {first} to {last}", definition.buckets.len())
        }
        _ => word.to_owned(),
    };
    Entry {
        name: definition.name.to_owned(),
        kind,
        labels: definition
            .labels
            .iter()
            .map(|label| (*label).to_owned())
            .collect(),
        help: definition.help.to_owned(),
    }
}

/// A bound to four digits.
fn short(bound: f64) -> f64 {
    if bound == 0.0 {
        return bound;
    }
    let scale = 10f64.powf(3.0 - bound.abs().log10().floor());
    (bound * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Encoder;

    #[test]
    fn defined_and_computed_metrics_are_told_in_order_of_name() {
        let registry = Registry::new();
        registry.histograms(
            Definition::new("wait_seconds", "Wait | work.")
                .labels(&["who"])
                .buckets([0.5, 1.0, 26.101_217_871]),
        );
        registry.fine_histogram(Definition::new("exact_seconds", "Exact."));
        registry.collector(|encoder: &mut Encoder| {
            let mut family = encoder.family("level", "Level.", Kind::Gauge);
            family.sample(&[("room", "a")], 1.0);
        });
        let entries = entries(&registry).unwrap();
        let own: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| !entry.name.starts_with("telemetry_"))
            .collect();
        assert_eq!(
            table(&own),
            "| Metric | Type | Labels | What it says |\n|---|---|---|---|\n\
             | `exact_seconds` | histogram, a bucket per ms |  | Exact. |\n\
             | `level` | gauge | `room` | Level. |\n\
             | `wait_seconds` | histogram, 3 buckets, 0.5 to 26.1 | `who` | Wait \\| work. |\n"
        );
    }
}
