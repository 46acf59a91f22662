//! How does a measurement become a line of text?
//!
//! The classic Prometheus exposition format: one `# HELP` and one `# TYPE` line per family, then
//! its samples. OpenMetrics 1.0 differs in few things: counters are named without `_total` in these two lines, bounds are
//! always decimal, buckets may have exemplars, and the text has an end. Families are kept in order of name, so the text does not depend on who wrote first.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The media type of [`crate::Registry::render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// In which words measurements are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Classic,
    OpenMetrics,
}

impl Format {
    /// Name and type in a family's head.
    fn head(self, name: &str, kind: Kind) -> (&str, &'static str) {
        match (self, kind, name.strip_suffix("_total")) {
            (Self::OpenMetrics, Kind::Counter, Some(short)) => (short, kind.as_str()),
            (Self::OpenMetrics, Kind::Counter | Kind::Untyped, _) => (name, "unknown"),
            _ => (name, kind.as_str()),
        }
    }

    /// What somebody who sends these `Accept` headers gets: OpenMetrics only if it is asked for by name.
    pub fn accepted<'a>(headers: impl Iterator<Item = &'a str>) -> Self {
        let mut asked = headers.flat_map(|header| header.split(','));
        match asked.any(|it| it.trim().starts_with("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Classic,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Classic => CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A sample whose trace is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    pub trace: Box<str>,
    pub value: f64,
    /// Seconds since 1970.
    pub at: f64,
}

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
    format: Format,
    families: BTreeMap<String, String>,
}

impl Encoder {
    /// An encoder of a format.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            families: BTreeMap::new(),
        }
    }

    /// Opens the family `name`; samples are written through the answer.
    ///
    /// Opening a name again continues that family: its first help and type stay.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) -> FamilyEncoder<'_> {
        let text = self.families.entry(name.to_owned()).or_insert_with(|| {
            let mut head = String::with_capacity(256);
            let (name, kind) = self.format.head(name, kind);
            head.push_str("# HELP ");
            head.push_str(name);
            head.push(' ');
            escape_help(&mut head, help);
            let _ = write!(head, "\n# TYPE {name} {kind}\n");
            head
        });
        FamilyEncoder {
            name: name.to_owned(),
            format: self.format,
            text,
        }
    }

    /// All families as one text, in order of name.
    pub fn finish(self) -> String {
        let mut all = String::with_capacity(self.families.values().map(String::len).sum());
        for text in self.families.values() {
            all.push_str(text);
        }
        if self.format == Format::OpenMetrics {
            all.push_str("# EOF\n");
        }
        all
    }
}

/// Writes the samples of one family.
#[derive(Debug)]
pub struct FamilyEncoder<'a> {
    name: String,
    format: Format,
    text: &'a mut String,
}

impl FamilyEncoder<'_> {
    /// Writes one sample of the family itself.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// The same with the time at which it was so, in milliseconds since 1970, for what was read some time ago.
    pub fn sample_at(&mut self, labels: &[(&str, &str)], value: f64, millis: i64) {
        self.line("", labels, None, value);
        self.text.pop();
        // OpenMetrics counts seconds.
        let written = match self.format {
            Format::Classic => writeln!(self.text, " {millis}"),
            Format::OpenMetrics => writeln!(self.text, " {:?}", millis as f64 / 1000.0),
        };
        written.expect("writing to a string cannot fail");
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
        self.histogram_with(labels, buckets, (sum, count), &[]);
    }

    /// The same with exemplars by bound, which the classic format leaves out.
    pub fn histogram_with(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (sum, count): (f64, u64),
        exemplars: &[(f64, Exemplar)],
    ) {
        let all = buckets.into_iter().chain([(f64::INFINITY, count)]);
        for (bound, cumulative) in all {
            self.line("_bucket", labels, Some(bound), cumulative as f64);
            let exemplar = exemplars.iter().find(|(of, _)| *of == bound);
            if let Some((_, exemplar)) = exemplar.filter(|_| self.format == Format::OpenMetrics) {
                self.exemplar(exemplar);
            }
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    /// Adds an exemplar to the line that was just written.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        self.text.pop();
        self.text.push_str(" # {trace_id=\"");
        escape_label(self.text, &exemplar.trace);
        self.text.push_str("\"} ");
        number(self.text, exemplar.value);
        self.text.push(' ');
        number(self.text, exemplar.at);
        self.text.push('\n');
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
                match self.format == Format::OpenMetrics && bound.is_finite() {
                    true => write!(self.text, "{bound:?}").expect("writing to a string cannot fail"),
                    false => number(self.text, bound),
                }
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
    fn openmetrics_names_counters_without_total_and_ends() {
        let mut encoder = Encoder::new(Format::OpenMetrics);
        encoder.family("a_total", "first", Kind::Counter).sample(&[], 3.0);
        encoder
            .family("b", "odd", Kind::Counter)
            .sample_at(&[], 1.0, 2500);
        let exemplar = Exemplar {
            trace: "ab".into(),
            value: 0.5,
            at: 7.25,
        };
        encoder
            .family("c_seconds", "last", Kind::Histogram)
            .histogram_with(&[], [(1.0, 2)], (0.75, 2), &[(1.0, exemplar)]);
        assert_eq!(
            encoder.finish(),
            "# HELP a first\n# TYPE a counter\na_total 3\n# HELP b odd\n# TYPE b unknown\nb 1 2.5\n\
             # HELP c_seconds last\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{le=\"1.0\"} 2 # {trace_id=\"ab\"} 0.5 7.25\n\
             c_seconds_bucket{le=\"+Inf\"} 2\nc_seconds_sum 0.75\nc_seconds_count 2\n# EOF\n"
        );
        let accepted = |header: &'static str| Format::accepted([header].into_iter());
        assert_eq!(
            accepted("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"),
            Format::OpenMetrics
        );
        assert_eq!(accepted("text/plain;version=0.0.4, */*"), Format::Classic);
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
