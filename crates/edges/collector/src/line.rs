//! What does a line of a watermark stream say?

use std::borrow::Cow;

use pointsman_sli::Moment;
use pointsman_sli::fold::{Marks, Report};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(borrow, default)]
    node: Cow<'a, str>,
    #[serde(default)]
    generation: i64,
    services: Option<u64>,
    endpoint_slices: Option<u64>,
    planned: Option<Stage>,
    received: Option<Stage>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
struct Stage {
    services: Option<u64>,
    endpoint_slices: Option<u64>,
}

impl Stage {
    fn marks(self) -> Marks {
        Marks {
            services: self.services.unwrap_or(0),
            slices: self.endpoint_slices.unwrap_or(0),
        }
    }
}

/// Reads a line: who speaks, and what it says. `None` for anything that is no such line.
pub(crate) fn parse(line: &[u8]) -> Option<(Cow<'_, str>, Report)> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    let time: jiff::Timestamp = line.time.parse().ok()?;
    let committed = Stage {
        services: line.services,
        endpoint_slices: line.endpoint_slices,
    };
    let committed = committed.marks();
    let report = Report {
        generation: line.generation,
        committed,
        // A programmer that does not tell its stages has at least planned what it committed.
        planned: line.planned.map_or(committed, Stage::marks),
        received: line.received.map_or(committed, Stage::marks),
        time: Moment(time.as_microsecond()),
    };
    Some((line.node, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_stages() {
        let line =
            br#"{"node":"n1","services":3,"endpointSlices":null,"time":"1970-01-01T00:00:00.000007Z"}"#;
        let (node, report) = parse(line).unwrap();
        assert_eq!(
            (&*node, report.time, report.planned.services),
            ("n1", Moment(7), 3)
        );
        let line = br#"{"node":"n1","generation":9,"services":3,"endpointSlices":4,
            "received":{"services":5,"endpointSlices":6},"planned":{"services":3,"endpointSlices":5},
            "time":"1970-01-01T00:00:00Z"}"#;
        let (_, report) = parse(line).unwrap();
        assert_eq!(
            (report.generation, report.received.slices, report.planned.slices),
            (9, 6, 5)
        );
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
            assert!(parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
