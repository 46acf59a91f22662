//! What does kubectl print about an object?
//!
//! The server renders tables, so that every client shows the same columns for a kind. Columns and
//! wording are upstream's (`pkg/printers/internalversion`); cells of wide columns are always sent and
//! the client hides them.

mod endpoint_slice;
mod endpoints;
mod event;
mod node;
mod pod;
mod rbac;
mod service;
mod simple;
#[cfg(test)]
mod tests;
mod workload;

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
}

/// How much of each object travels beside its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
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

/// The columns of `kind`, in the order of the cells.
pub fn columns(kind: &Kind) -> &'static [Column] {
    printer(kind).0
}

/// The cells of one object, one per column.
pub fn row(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    printer(kind).1(object, now)
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
    assemble(json!({"resourceVersion": version}), columns, rows)
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
    columns(kind).iter().map(define).collect()
}

fn table_row(kind: &Kind, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    // The bookmark that ends the initial events of a watch is known by an annotation, which must
    // reach clients that want no objects, too.
    let marked = at(object, &["metadata", "annotations", "k8s.io/initial-events-end"]).is_some();
    let shown = match include {
        IncludeObject::Object => object.clone(),
        IncludeObject::None if !marked => Value::Null,
        _ => partial_metadata(object),
    };
    let mut row = json!({"cells": row(kind, object, now), "object": shown});
    if kind.group.is_empty()
        && kind.kind == "Pod"
        && let Some(condition) = pod::completion(object)
    {
        row["conditions"] = json!([condition]);
    }
    row
}

type Printer = (&'static [Column], fn(&Value, Timestamp) -> Vec<Value>);

fn printer(kind: &Kind) -> Printer {
    match (kind.group, kind.kind) {
        ("", "Pod") => (pod::COLUMNS, pod::cells),
        ("", "Service") => (service::COLUMNS, service::cells),
        ("", "Endpoints") => (endpoints::COLUMNS, endpoints::cells),
        ("", "Node") => (node::COLUMNS, node::cells),
        (_, "Event") => (event::COLUMNS, event::cells),
        ("", "Namespace") => (simple::NAMESPACE, simple::namespace_cells),
        ("", "ConfigMap") => (simple::CONFIG_MAP, simple::config_map_cells),
        ("apps", "Deployment") => (workload::DEPLOYMENT, workload::deployment_cells),
        ("apps", "ReplicaSet") => (workload::REPLICA_SET, workload::replica_set_cells),
        ("apps", "DaemonSet") => (workload::DAEMON_SET, workload::daemon_set_cells),
        ("coordination.k8s.io", "Lease") => (simple::LEASE, simple::lease_cells),
        ("discovery.k8s.io", "EndpointSlice") => (endpoint_slice::COLUMNS, endpoint_slice::cells),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => (rbac::ROLE, rbac::role_cells),
        ("rbac.authorization.k8s.io", _) => (rbac::BINDING, rbac::binding_cells),
        ("config.openshift.io", "Node") => (simple::CONFIG_NODE, simple::config_node_cells),
        _ => (simple::NAME_AND_AGE, simple::name_and_age_cells),
    }
}

const fn text(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        cell_type: "string",
        format: "",
        description,
        priority: 0,
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
