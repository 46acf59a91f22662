//! What did another process measure?
//!
//! Reads the classic Prometheus text format (version 0.0.4). The input comes from outside, so every
//! malformed line is an error with its number, never a panic; sizes are bounded by the input's.

use crate::text::{Kind, is_label_name, is_metric_name};

/// A family: its description and its samples in the order they came.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedFamily {
    /// The name in the `# TYPE` line, or the sample's own name without one.
    pub name: String,
    /// The text of the `# HELP` line; empty without one.
    pub help: String,
    /// The type; `Untyped` without a `# TYPE` line.
    pub kind: Kind,
    /// The samples, including a histogram's `_bucket`, `_sum` and `_count`.
    pub samples: Vec<Sample>,
}

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name as written, with its suffix.
    pub name: String,
    /// Labels in the order they came.
    pub labels: Vec<(String, String)>,
    pub value: f64,
    /// Milliseconds since the Unix epoch, if the line says so.
    pub timestamp_ms: Option<i64>,
}

impl Sample {
    /// The value of a label, if the sample has it.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(label, _)| label == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Why a text is not in the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for ParseError {}

/// Reads a whole exposition.
pub fn parse(text: &str) -> Result<Vec<ParsedFamily>, ParseError> {
    let mut families: Vec<ParsedFamily> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let fail = |problem| ParseError {
            line: at + 1,
            problem,
        };
        let line = line.trim_matches([' ', '\t']);
        if let Some(comment) = line.strip_prefix('#') {
            parse_comment(comment, &mut families).map_err(fail)?;
        } else if !line.is_empty() {
            let sample = parse_sample(line).map_err(fail)?;
            match families.last_mut() {
                Some(family) if belongs(family, &sample.name) => family.samples.push(sample),
                _ => families.push(ParsedFamily {
                    name: sample.name.clone(),
                    help: String::new(),
                    kind: Kind::Untyped,
                    samples: vec![sample],
                }),
            }
        }
    }
    Ok(families)
}

fn belongs(family: &ParsedFamily, sample: &str) -> bool {
    let Some(suffix) = sample.strip_prefix(family.name.as_str()) else {
        return false;
    };
    match family.kind {
        Kind::Histogram => matches!(suffix, "_bucket" | "_sum" | "_count"),
        Kind::Summary => matches!(suffix, "" | "_sum" | "_count"),
        _ => suffix.is_empty(),
    }
}

fn parse_comment(comment: &str, families: &mut Vec<ParsedFamily>) -> Result<(), &'static str> {
    let comment = comment.trim_start_matches([' ', '\t']);
    let Some((keyword, rest)) = comment.split_once([' ', '\t']) else {
        return Ok(());
    };
    if keyword != "HELP" && keyword != "TYPE" {
        return Ok(());
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    let (name, text) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
    if !is_metric_name(name) {
        return Err("a metric name is missing or malformed");
    }
    let open = families
        .last()
        .is_some_and(|last| last.name == name && last.samples.is_empty());
    if !open {
        families.push(ParsedFamily {
            name: name.to_owned(),
            help: String::new(),
            kind: Kind::Untyped,
            samples: Vec::new(),
        });
    }
    let family = families.last_mut().expect("pushed above");
    if keyword == "HELP" {
        family.help = unescape(text, false);
    } else {
        family.kind = Kind::from_word(text.trim()).ok_or("the type is unknown")?;
    }
    Ok(())
}

fn parse_sample(line: &str) -> Result<Sample, &'static str> {
    let end = line.find(['{', ' ', '\t']).ok_or("the value is missing")?;
    let (name, mut rest) = line.split_at(end);
    if !is_metric_name(name) {
        return Err("the metric name is malformed");
    }
    rest = rest.trim_start_matches([' ', '\t']);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    let mut words = rest.split_ascii_whitespace();
    let value = parse_value(words.next().ok_or("the value is missing")?)?;
    let timestamp_ms = match words.next() {
        Some(word) => Some(word.parse().map_err(|_| "the timestamp is not an integer")?),
        None => None,
    };
    if words.next().is_some() {
        return Err("there is text after the timestamp");
    }
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value,
        timestamp_ms,
    })
}

/// Reads labels up to the closing brace and returns what follows it.
fn parse_labels<'a>(inside: &'a str, labels: &mut Vec<(String, String)>) -> Result<&'a str, &'static str> {
    let mut rest = inside.trim_start_matches([' ', '\t']);
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let (name, after) = rest.split_once('=').ok_or("a label has no value")?;
        let name = name.trim_matches([' ', '\t']);
        if !is_label_name(name) {
            return Err("a label name is malformed");
        }
        let quoted = after
            .trim_start_matches([' ', '\t'])
            .strip_prefix('"')
            .ok_or("a label value is not quoted")?;
        let end = closing_quote(quoted).ok_or("a label value is not closed")?;
        labels.push((name.to_owned(), unescape(&quoted[..end], true)));
        rest = quoted[end + 1..].trim_start_matches([' ', '\t']);
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start_matches([' ', '\t']),
            None if rest.starts_with('}') => {}
            None => return Err("labels are not separated by a comma"),
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn unescape(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('\\') => out.push('\\'),
            Some('"') if quotes => out.push('"'),
            // Other escapes do not exist; Prometheus keeps them as they are.
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

fn parse_value(word: &str) -> Result<f64, &'static str> {
    match word {
        "+Inf" | "Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        other => other.parse().map_err(|_| "the value is not a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Encoder;
    use proptest::prelude::*;

    #[test]
    fn what_other_exporters_write_is_understood() {
        let text = "# a remark\n\n# HELP up Is it.\n# TYPE up gauge\nup{ job = \"a\" , } 1 1395066363000\n\
            bare 3e-2\n# TYPE lag summary\nlag{quantile=\"0.5\"} NaN\nlag_sum 2\nlag_count 1\n";
        let families = parse(text).unwrap();
        let names: Vec<(&str, usize)> = families
            .iter()
            .map(|family| (family.name.as_str(), family.samples.len()))
            .collect();
        assert_eq!(names, [("up", 1), ("bare", 1), ("lag", 3)]);
        assert_eq!(families[0].samples[0].label("job"), Some("a"));
        assert_eq!(families[0].samples[0].timestamp_ms, Some(1_395_066_363_000));
        assert_eq!(families[1].samples[0].value, 0.03);
        assert!(families[2].samples[0].value.is_nan());
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, line) in [
            ("x", 1),
            ("a 1\nb{ 2", 2),
            ("b{a=1} 2", 1),
            ("b{a=\"1} 2", 1),
            ("b{a=\"1\"c=\"2\"} 2", 1),
            ("b one", 1),
            ("b 1 2 3", 1),
            ("# TYPE b sometimes", 1),
            ("# HELP 1b x", 1),
            ("1b 2", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn what_is_rendered_reads_back_as_it_was(
            help in "\\PC{0,20}|[a\\\\\n\"]{0,8}",
            value in prop::num::f64::ANY,
            label in prop::collection::vec(prop_oneof![any::<char>(), Just('\\'), Just('"'), Just('\n')], 0..12),
            counts in prop::collection::vec(0u64..1 << 50, 0..5),
        ) {
            let label: String = label.into_iter().collect();
            // A carriage return before a line end is the one thing the line-based format cannot hold
            // at the end of a help text.
            let help = help.trim().to_owned();
            let mut encoder = Encoder::default();
            encoder.family("a:level", &help, Kind::Gauge).sample(&[("x", &label), ("y", "")], value);
            let buckets: Vec<(f64, u64)> =
                counts.iter().enumerate().map(|(at, count)| (at as f64 / 8.0, *count)).collect();
            encoder.family("b_seconds", "", Kind::Histogram).histogram(&[("x", &label)], buckets, value, 7);
            let families = parse(&encoder.finish()).unwrap();
            prop_assert_eq!(families.len(), 2);
            prop_assert_eq!(&families[0].help, &help);
            let sample = &families[0].samples[0];
            prop_assert_eq!(sample.label("x"), Some(label.as_str()));
            prop_assert_eq!(sample.label("y"), Some(""));
            prop_assert!(sample.value == value || sample.value.is_nan() && value.is_nan());
            prop_assert_eq!(families[1].samples.len(), counts.len() + 3);
            for (sample, count) in families[1].samples.iter().zip(&counts) {
                prop_assert_eq!(sample.value as u64, *count);
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(\\PC|[\n{}\",=# \\\\])*") {
            let _ = parse(&text);
        }
    }
}
