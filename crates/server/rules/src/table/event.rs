//! What happened to what, when and how often?
//!
//! Reads both spellings of an event: `v1` and `events.k8s.io/v1`.

use super::{NAME, Printer, name, or, text, wide};
use crate::human_duration::since;
use crate::value::{at, int_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

pub const PRINTER: Printer = Printer::new(
    &[
        text("Last Seen", "Time since the event happened last."),
        text("Type", "Normal or Warning."),
        text("Reason", "Why the event was recorded, in one word."),
        text("Object", "What the event is about."),
        wide(text("Subobject", "Which part of the object it is about.")),
        wide(text("Source", "Who recorded the event.")),
        text("Message", "What happened, for people."),
        wide(text("First Seen", "Time since the event happened first.")),
        wide(text("Count", "How often the event happened.")),
        wide(NAME),
    ],
    cells,
);

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let first_seen = first_time(
        event,
        &[&["firstTimestamp"], &["deprecatedFirstTimestamp"], &["eventTime"]],
        now,
    );
    let last_seen = if at(event, &["series"]).is_some() {
        since(event, &["series", "lastObservedTime"], now)
    } else {
        let last = first_time(event, &[&["lastTimestamp"], &["deprecatedLastTimestamp"]], now);
        if last == UNKNOWN { first_seen.clone() } else { last }
    };
    let either = |core, new| or(str_at(event, core), str_at(event, new));
    vec![
        last_seen.into(),
        str_at(event, &["type"]).into(),
        str_at(event, &["reason"]).into(),
        target(event).into(),
        either(&["involvedObject", "fieldPath"], &["regarding", "fieldPath"]).into(),
        source(event).into(),
        either(&["message"], &["note"]).trim().into(),
        first_seen.into(),
        count(event).into(),
        name(event),
    ]
}

const UNKNOWN: &str = "<unknown>";

fn first_time(event: &Value, paths: &[&[&str]], now: Timestamp) -> String {
    paths
        .iter()
        .map(|path| since(event, path, now))
        .find(|text| text != UNKNOWN)
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

fn target(event: &Value) -> String {
    let field = |field| {
        or(
            str_at(event, &["involvedObject", field]),
            str_at(event, &["regarding", field]),
        )
    };
    let kind = field("kind").to_lowercase();
    match field("name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn source(event: &Value) -> String {
    let field = |field| {
        or(
            str_at(event, &["source", field]),
            str_at(event, &["deprecatedSource", field]),
        )
    };
    let reporter = or(
        str_at(event, &["reportingComponent"]),
        str_at(event, &["reportingController"]),
    );
    let component = or(field("component"), reporter);
    match or(field("host"), str_at(event, &["reportingInstance"])) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    }
}

fn count(event: &Value) -> i64 {
    if at(event, &["series"]).is_some() {
        return int_at(event, &["series", "count"]).unwrap_or(0);
    }
    let count = int_at(event, &["count"]).or_else(|| int_at(event, &["deprecatedCount"]));
    // An event that happened once has no count in the newer API.
    count.filter(|count| *count != 0).unwrap_or(1)
}
