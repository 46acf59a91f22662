//! How far is a programmer's kernel?
//!
//! A programmer (a proxy, or whoever writes load-balancing rules) streams one JSON line per commit, and at
//! least one per [`HEARTBEAT`]: "everything up to version R is in my kernel". One number per collection
//! says it for all objects of the collection, because versions grow over all of them.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

use pointsman_model::{Moment, Revision};
use serde::Deserialize;

/// Where a programmer streams its lines.
pub const PATH: &str = "/watermark";
/// What a stream of lines is.
pub const CONTENT_TYPE: &str = "application/x-ndjson";
/// A programmer says something at least this often, so that silence means that it is gone or hangs.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// A watched collection whose changes programmers write to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Services,
    Slices,
}

impl Resource {
    pub const ALL: [Self; 2] = [Self::Services, Self::Slices];

    /// The plural in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
        }
    }
}

/// Up to which version all changes are known; one number for each collection, because a quiet one would
/// otherwise hold back the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// All changes of Services up to this version; none before the first list.
    pub services: Option<Revision>,
    /// All changes of EndpointSlices up to this version; none before the first list.
    pub slices: Option<Revision>,
}

impl Watermark {
    /// The version of one collection; 0 where nothing is known.
    pub fn of(&self, resource: Resource) -> u64 {
        let revision = match resource {
            Resource::Services => self.services,
            Resource::Slices => self.slices,
        };
        revision.unwrap_or_default().0
    }

    /// What both have reached.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        Self {
            services: self.services.min(other.services),
            slices: self.slices.min(other.slices),
        }
    }
}

/// How far changes have come, stage by stage. What one stage lacks waits in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// All changes up to here have come from the watches.
    pub received: Watermark,
    /// All changes up to here are part of a batch that was taken out for the kernel.
    pub planned: Watermark,
    /// All changes up to here are in the kernel.
    pub committed: Watermark,
}

impl Progress {
    /// What both have reached.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        Self {
            received: self.received.lower(other.received),
            planned: self.planned.lower(other.planned),
            committed: self.committed.lower(other.committed),
        }
    }
}

/// What a line says, apart from who says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Grows with each start of the programmer, so that a watermark that goes back after a restart is no lie.
    pub generation: i64,
    pub progress: Progress,
    /// When the line was written, by the programmer's own clock.
    pub time: Moment,
}

/// One line of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The name of the programmer's node. Only relays need it.
    pub node: Cow<'a, str>,
    pub report: Report,
}

/// Writes the lines of one programmer. A line comes with every commit, so it is written straight: a tree
/// of values would cost ten times as much.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The beginning of every line, which does not change.
    head: String,
}

impl Encoder {
    pub fn new(node: &str, generation: i64) -> Self {
        let node = serde_json::Value::from(node);
        Self {
            head: format!("{{\"node\":{node},\"generation\":{generation}"),
        }
    }

    /// Appends a line, with its end.
    pub fn encode(&self, progress: Progress, time: Moment, out: &mut String) {
        let Progress {
            received,
            planned,
            committed,
        } = progress;
        let (committed, planned, received) = (Members(committed), Members(planned), Members(received));
        let head = &self.head;
        let written = writeln!(
            out,
            "{head},{committed},\"planned\":{{{planned}}},\"received\":{{{received}}},\"time\":\"{time}\"}}"
        );
        written.expect("writing to a string cannot fail");
    }
}

/// A watermark as members of a JSON object.
struct Members(Watermark);

impl fmt::Display for Members {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.services {
            Some(revision) => write!(out, "\"services\":{revision}")?,
            None => out.write_str("\"services\":null")?,
        }
        match self.0.slices {
            Some(revision) => write!(out, ",\"endpointSlices\":{revision}"),
            None => out.write_str(",\"endpointSlices\":null"),
        }
    }
}

/// Reads a line, with or without its end. `None` for anything that is no such line.
pub fn decode(line: &[u8]) -> Option<Line<'_>> {
    let line: RawLine<'_> = serde_json::from_slice(line).ok()?;
    let committed = RawWatermark {
        services: line.services,
        endpoint_slices: line.endpoint_slices,
    };
    let committed = committed.watermark();
    let progress = Progress {
        committed,
        // A programmer that does not tell its stages has at least planned what it committed.
        planned: line.planned.map_or(committed, RawWatermark::watermark),
        received: line.received.map_or(committed, RawWatermark::watermark),
    };
    let report = Report {
        generation: line.generation,
        progress,
        time: Moment::parse(&line.time)?,
    };
    Some(Line {
        node: line.node,
        report,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawLine<'a> {
    #[serde(borrow, default)]
    node: Cow<'a, str>,
    #[serde(default)]
    generation: i64,
    services: Option<u64>,
    endpoint_slices: Option<u64>,
    planned: Option<RawWatermark>,
    received: Option<RawWatermark>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
struct RawWatermark {
    services: Option<u64>,
    endpoint_slices: Option<u64>,
}

impl RawWatermark {
    fn watermark(self) -> Watermark {
        Watermark {
            services: self.services.map(Revision),
            slices: self.endpoint_slices.map(Revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watermark() -> impl Strategy<Value = Watermark> {
        let revision = || prop::option::of(any::<u64>().prop_map(Revision));
        (revision(), revision()).prop_map(|(services, slices)| Watermark { services, slices })
    }

    fn progress() -> impl Strategy<Value = Progress> {
        (watermark(), watermark(), watermark()).prop_map(|(received, planned, committed)| Progress {
            received,
            planned,
            committed,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            node in any::<String>(),
            generation in any::<i64>(),
            progress in progress(),
            micros in 0..1i64 << 55,
        ) {
            let (mut text, time) = (String::new(), Moment(micros));
            Encoder::new(&node, generation).encode(progress, time, &mut text);
            prop_assert_eq!(text.find('\n'), Some(text.len() - 1), "one line");
            let line = decode(text.as_bytes()).unwrap();
            prop_assert_eq!(&*line.node, node);
            prop_assert_eq!(line.report, Report { generation, progress, time });
        }

        #[test]
        fn any_bytes_are_a_line_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_line_that_was_damaged_does_no_harm(at in 0usize..200, byte in any::<u8>()) {
            let mut text = String::new();
            Encoder::new("n1", 7).encode(Progress::default(), Moment(5), &mut text);
            let mut bytes = text.into_bytes();
            let length = bytes.len();
            bytes[at % length] = byte;
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn a_line_looks_as_documented() {
        let mut text = String::new();
        let mut progress = Progress::default();
        progress.committed.services = Some(Revision(3));
        Encoder::new("n1", 7).encode(progress, Moment(1_500_000), &mut text);
        assert_eq!(
            text,
            concat!(
                r#"{"node":"n1","generation":7,"services":3,"endpointSlices":null,"#,
                r#""planned":{"services":null,"endpointSlices":null},"#,
                r#""received":{"services":null,"endpointSlices":null},"time":"1970-01-01T00:00:01.5Z"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn lines_are_read_with_and_without_stages() {
        let line =
            br#"{"node":"n1","services":3,"endpointSlices":null,"time":"1970-01-01T00:00:00.000007Z"}"#;
        let Line { node, report } = decode(line).unwrap();
        assert_eq!((&*node, report.time), ("n1", Moment(7)));
        assert_eq!(report.progress.planned.services, Some(Revision(3)));
        let line = br#"{"node":"n1","generation":9,"services":3,"endpointSlices":4,
            "received":{"services":5,"endpointSlices":6},"planned":{"services":3,"endpointSlices":5},
            "time":"1970-01-01T00:00:00Z"}"#;
        let report = decode(line).unwrap().report;
        assert_eq!(report.generation, 9);
        assert_eq!(report.progress.received.slices, Some(Revision(6)));
        assert_eq!(report.progress.planned.slices, Some(Revision(5)));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            "\u{0}",
            r#"{"time":"yesterday"}"#,
            r#"{"services":-1,"time":"1970-01-01T00:00:00Z"}"#,
        ] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
