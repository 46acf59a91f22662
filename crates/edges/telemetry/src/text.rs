//! How does a measurement become a line of text?
//!
//! The classic Prometheus exposition format: one `# HELP` and one `# TYPE` line per family, then
//! its samples. Families are kept in order of name, so the text does not depend on who wrote first.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The media type of [`crate::Registry::render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a family, as its `# TYPE` line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets with sum and count.
    Histogram,
    /// Quantiles computed by the exporter; never written here, but read from others.
    Summary,
    Untyped,
}

impl Kind {
    /// The word in the `# TYPE` line.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
            Kind::Untyped => "untyped",
        }
    }

    /// Reads the word in a `# TYPE` line.
    pub fn from_word(word: &str) -> Option<Self> {
        let all = [
            Kind::Counter,
            Kind::Gauge,
            Kind::Histogram,
            Kind::Summary,
            Kind::Untyped,
        ];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Collects families as text while a registry is being read.
#[derive(Debug, Default)]
pub struct Encoder {
    families: BTreeMap<String, String>,
}

impl Encoder {
    /// Opens the family `name`; samples are written through the answer.
    ///
    /// Opening a name again continues that family: its first help and type stay.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) -> FamilyEncoder<'_> {
        let text = self.families.entry(name.to_owned()).or_insert_with(|| {
            let mut head = String::with_capacity(256);
            head.push_str("# HELP ");
            head.push_str(name);
            head.push(' ');
            escape_help(&mut head, help);
            let _ = write!(head, "\n# TYPE {name} {}\n", kind.as_str());
            head
        });
        FamilyEncoder {
            name: name.to_owned(),
            text,
        }
    }

    /// All families as one text, in order of name.
    pub fn finish(self) -> String {
        let mut all = String::with_capacity(self.families.values().map(String::len).sum());
        for text in self.families.values() {
            all.push_str(text);
        }
        all
    }
}

/// Writes the samples of one family.
#[derive(Debug)]
pub struct FamilyEncoder<'a> {
    name: String,
    text: &'a mut String,
}

impl FamilyEncoder<'_> {
    /// Writes one sample of the family itself.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// Writes a histogram: `buckets` are pairs of upper bound and cumulative count, in order and
    /// without the infinite one.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) {
        for (bound, cumulative) in buckets {
            self.line("_bucket", labels, Some(bound), cumulative as f64);
        }
        self.line("_bucket", labels, Some(f64::INFINITY), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<f64>, value: f64) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        if !labels.is_empty() || bound.is_some() {
            let mut separator = '{';
            for (name, value) in labels {
                self.text.push(separator);
                separator = ',';
                self.text.push_str(name);
                self.text.push_str("=\"");
                escape_label(self.text, value);
                self.text.push('"');
            }
            if let Some(bound) = bound {
                self.text.push(separator);
                self.text.push_str("le=\"");
                number(self.text, bound);
                self.text.push('"');
            }
            self.text.push('}');
        }
        self.text.push(' ');
        number(self.text, value);
        self.text.push('\n');
    }
}

/// Whether `name` may name a metric: `[a-zA-Z_:][a-zA-Z0-9_:]*`.
pub(crate) fn is_metric_name(name: &str) -> bool {
    is_name(name, |byte| byte == b':')
}

/// Whether `name` may name a label: `[a-zA-Z_][a-zA-Z0-9_]*`.
pub(crate) fn is_label_name(name: &str) -> bool {
    is_name(name, |_| false)
}

fn is_name(name: &str, also: impl Fn(u8) -> bool) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || also(byte);
    match name.as_bytes() {
        [first, rest @ ..] => {
            letter(*first) && rest.iter().all(|byte| letter(*byte) || byte.is_ascii_digit())
        }
        [] => false,
    }
}

fn number(out: &mut String, value: f64) {
    // Beyond 2^53 an integer is no longer exact as f64, so the shortest decimal form is used there.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let written = if value.is_nan() {
        write!(out, "NaN")
    } else if value.is_infinite() {
        write!(out, "{}", if value > 0.0 { "+Inf" } else { "-Inf" })
    } else if value.fract() == 0.0 && value.abs() < EXACT {
        write!(out, "{}", value as i64)
    } else {
        write!(out, "{value:?}")
    };
    written.expect("writing to a string cannot fail");
}

fn escape_help(out: &mut String, help: &str) {
    for letter in help.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

fn escape_label(out: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_come_in_order_of_name_with_escaped_help_and_labels() {
        let mut encoder = Encoder::default();
        encoder
            .family("b", "back\\slash\nline", Kind::Gauge)
            .sample(&[("path", "a\"b\\c\nd")], 0.25);
        encoder.family("a", "first", Kind::Counter).sample(&[], 3.0);
        assert_eq!(
            encoder.finish(),
            "# HELP a first\n# TYPE a counter\na 3\n\
             # HELP b back\\\\slash\\nline\n# TYPE b gauge\nb{path=\"a\\\"b\\\\c\\nd\"} 0.25\n"
        );
    }

    #[test]
    fn numbers_keep_their_value_and_the_special_ones_their_names() {
        let write = |value| {
            let mut out = String::new();
            number(&mut out, value);
            out
        };
        assert_eq!(write(0.005), "0.005");
        assert_eq!(write(-7.0), "-7");
        assert_eq!(write(f64::INFINITY), "+Inf");
        assert_eq!(write(f64::NEG_INFINITY), "-Inf");
        assert_eq!(write(f64::NAN), "NaN");
        assert_eq!(write(1e300).parse::<f64>().unwrap(), 1e300);
    }
}
