//! What is there to say about kinds whose columns are data?
//!
//! Each column names the place of its cells: a JSONPath, or a text with such paths in braces, `{.a.b}` or `{.a.b|0}`
//! with what stands there if nothing is found.

use super::path::{JsonPath, joined};
use super::{Cells, Column, Printer};
use crate::human_duration;
use jiff::Timestamp;
use serde_json::Value;

pub const NAME: Column = Column {
    path: ".metadata.name",
    ..super::NAME
};

pub const AGE: Column = Column {
    path: ".metadata.creationTimestamp",
    cell_type: "date",
    ..super::AGE
};

/// A column of what `path` leads to.
pub const fn column(name: &'static str, path: &'static str, cell_type: &'static str, priority: u8) -> Column {
    Column {
        name,
        cell_type,
        format: "",
        description: path,
        priority,
        path,
    }
}

pub const fn printer(columns: &'static [Column]) -> Printer {
    Printer {
        columns,
        cells: Cells::Paths,
        condition: |_| None,
    }
}

/// The cell of one column.
pub(super) fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let text = match column.path.starts_with('{') {
        true => template(column.path, object),
        false => find(column.path, object),
    };
    let Some(text) = text else { return Value::Null };
    match column.cell_type {
        "date" => human_duration::since_text(&text, now).into(),
        "integer" => text.parse::<i64>().map_or(Value::from(text), Value::from),
        "number" => text.parse::<f64>().map_or(Value::from(text), Value::from),
        "boolean" => text.parse::<bool>().map_or(Value::from(text), Value::from),
        _ => text.into(),
    }
}

fn find(path: &str, object: &Value) -> Option<String> {
    let path = JsonPath::parse(path).ok()?;
    joined(&path.find(object), ",")
}

/// Fills in a text; nothing at all if one of its places is empty and has no default.
fn template(text: &str, object: &Value) -> Option<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (place, after) = after.split_once('}')?;
        let (path, default) = match place.split_once('|') {
            Some((path, default)) => (path, Some(default)),
            None => (place, None),
        };
        filled.push_str(&find(path, object).or_else(|| default.map(str::to_owned))?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_found_by_path_or_filled_into_a_text() {
        let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
                            "spec": {"n": 3, "modes": ["a", "b"]}});
        let now = "2026-01-01T02:00:00Z".parse().unwrap();
        let shown = |path, kind| cell(&column("X", path, kind, 0), &object, now);
        assert_eq!(shown(".spec.n", "integer"), 3);
        assert_eq!(shown(".spec.modes[*]", "string"), "a,b");
        assert_eq!(shown("{.status.ready|0}/{.spec.n}", "string"), "0/3");
        assert_eq!(shown("{.spec.x}/{.spec.n}", "string"), Value::Null);
        assert_eq!(cell(&AGE, &object, now), "120m");
    }
}
