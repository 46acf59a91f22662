//! What does kubectl print about an object?
//!
//! The server renders tables, so that every client shows the same columns for a kind. Columns and
//! wording are upstream's (`pkg/printers/internalversion`); cells of wide columns are always sent and
//! the client hides them.

pub mod declared;
pub(crate) mod endpoint_slice;
pub(crate) mod endpoints;
pub(crate) mod event;
pub(crate) mod node;
pub mod path;
pub(crate) mod pod;
pub(crate) mod rbac;
pub(crate) mod service;
pub(crate) mod simple;
#[cfg(test)]
mod tests;
pub(crate) mod workload;

use crate::kind::Kind;
use crate::value::{at, str_at};
use jiff::Timestamp;
use serde_json::{Value, json};

/// One column of a kind's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The heading; clients print it in capitals.
    pub name: &'static str,
    /// The OpenAPI type of the cells.
    pub cell_type: &'static str,
    /// How the type is to be read: `name` marks the object's name.
    pub format: &'static str,
    /// What the cells mean.
    pub description: &'static str,
    /// 0 for columns that are always shown, 1 for those of wide output.
    pub priority: u8,
    /// Where the cells are, for columns that are data; see [`declared`].
    pub path: &'static str,
}

/// How the objects of a kind are printed.
#[derive(Clone, Copy)]
pub struct Printer {
    /// In the order of the cells.
    pub columns: &'static [Column],
    cells: Cells,
    condition: fn(&Value) -> Option<Value>,
}

/// Where the cells of a row come from.
#[derive(Clone, Copy)]
enum Cells {
    Code(fn(&Value, Timestamp) -> Vec<Value>),
    /// Each column says where its cell is.
    Paths,
}

impl Printer {
    const fn new(columns: &'static [Column], cells: fn(&Value, Timestamp) -> Vec<Value>) -> Self {
        Self {
            columns,
            cells: Cells::Code(cells),
            condition: |_| None,
        }
    }

    /// Marks rows of objects that clients may leave out, such as pods that have ended.
    const fn with_condition(self, condition: fn(&Value) -> Option<Value>) -> Self {
        Self { condition, ..self }
    }

    /// The cells of one object, one per column.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self.cells {
            Cells::Code(cells) => cells(object, now),
            Cells::Paths => {
                let cell = |column| declared::cell(column, object, now);
                self.columns.iter().map(cell).collect()
            }
        }
    }
}

/// How much of each object travels beside its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    /// Its metadata, as PartialObjectMetadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter `includeObject`; absent is [`IncludeObject::Metadata`].
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "Metadata") => Some(Self::Metadata),
            Some("None") => Some(Self::None),
            Some("Object") => Some(Self::Object),
            Some(_) => None,
        }
    }
}

/// The Table of a list. `list_meta` holds resourceVersion, continue and remainingItemCount.
pub fn table<'a>(
    kind: &Kind,
    objects: impl Iterator<Item = &'a Value>,
    include: IncludeObject,
    list_meta: Value,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = objects
        .map(|object| table_row(kind, object, include, now))
        .collect();
    assemble(list_meta, column_definitions(kind), rows)
}

/// The Table of one watch event. Columns are sent with the first event only, which the caller knows.
pub fn table_event_object(
    kind: &Kind,
    object: &Value,
    include: IncludeObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let version = str_at(object, &["metadata", "resourceVersion"]);
    let columns = if with_columns {
        column_definitions(kind)
    } else {
        Vec::new()
    };
    let rows = vec![table_row(kind, object, include, now)];
    let mut table = assemble(json!({"resourceVersion": version}), columns, rows);
    if !with_columns {
        // Not none, but those that were named before.
        table["columnDefinitions"] = Value::Null;
    }
    table
}

/// An object's metadata alone, as `meta.k8s.io/v1` PartialObjectMetadata.
pub fn partial_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": at(object, &["metadata"]).cloned().unwrap_or_else(|| json!({})),
    })
}

fn assemble(list_meta: Value, columns: Vec<Value>, rows: Vec<Value>) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn column_definitions(kind: &Kind) -> Vec<Value> {
    let define = |column: &Column| {
        json!({
            "name": column.name,
            "type": column.cell_type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        })
    };
    kind.printer.columns.iter().map(define).collect()
}

/// The row of one object.
pub fn table_row(kind: &Kind, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    // The bookmark that ends the initial events of a watch is known by an annotation, which must
    // reach clients that want no objects, too.
    let marked = at(object, &["metadata", "annotations", "k8s.io/initial-events-end"]).is_some();
    let shown = match include {
        IncludeObject::Object => object.clone(),
        IncludeObject::None if !marked => Value::Null,
        _ => partial_metadata(object),
    };
    let mut row = json!({"cells": kind.printer.cells(object, now), "object": shown});
    if let Some(condition) = (kind.printer.condition)(object) {
        row["conditions"] = json!([condition]);
    }
    row
}

const fn text(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        cell_type: "string",
        format: "",
        description,
        priority: 0,
        path: "",
    }
}

const fn wide(column: Column) -> Column {
    Column {
        priority: 1,
        ..column
    }
}

const fn integer(name: &'static str, description: &'static str) -> Column {
    Column {
        cell_type: "integer",
        ..text(name, description)
    }
}

const NAME: Column = Column {
    format: "name",
    ..text(
        "Name",
        "Name of the object, unique among its kind in a namespace.",
    )
};

const AGE: Column = text("Age", "Time since the object was created.");

fn name(object: &Value) -> Value {
    str_at(object, &["metadata", "name"]).into()
}

fn age(object: &Value, now: Timestamp) -> Value {
    crate::human_duration::since(object, &["metadata", "creationTimestamp"], now).into()
}

/// `text`, or a placeholder if it is empty.
fn or<'a>(text: &'a str, placeholder: &'a str) -> &'a str {
    if text.is_empty() { placeholder } else { text }
}

/// Up to three items and a count of the others.
fn first_three(items: &[String]) -> String {
    let shown = items[..items.len().min(3)].join(",");
    match items.len().saturating_sub(3) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}
