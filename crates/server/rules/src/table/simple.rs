//! What is there to say about kinds with little to say?

use super::{AGE, NAME, Printer, age, name, or, text};
use crate::value::{map_at, str_at};
use jiff::Timestamp;
use serde_json::{Map, Value};

pub const NAME_AND_AGE: Printer = Printer::new(&[NAME, AGE], name_and_age_cells);

pub const NAMESPACE: Printer = Printer::new(
    &[NAME, text("Status", "Active or Terminating."), AGE],
    namespace_cells,
);

pub const CONFIG_MAP: Printer = Printer::new(
    &[NAME, text("Data", "How many keys there are."), AGE],
    config_map_cells,
);

pub const SECRET: Printer = Printer::new(
    &[
        NAME,
        text("Type", "What the entries are for."),
        text("Data", "How many keys there are."),
        AGE,
    ],
    secret_cells,
);

pub const LEASE: Printer = Printer::new(&[NAME, text("Holder", "Who holds the lease."), AGE], lease_cells);

pub const CONFIG_NODE: Printer = Printer::new(
    &[
        NAME,
        text("Profile", "Latency profile of the cluster's nodes."),
        AGE,
    ],
    config_node_cells,
);

fn name_and_age_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

fn namespace_cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    with_text(namespace, str_at(namespace, &["status", "phase"]), now)
}

fn config_map_cells(config_map: &Value, now: Timestamp) -> Vec<Value> {
    let keys = |field| map_at(config_map, &[field]).map_or(0, Map::len);
    vec![
        name(config_map),
        (keys("data") + keys("binaryData")).into(),
        age(config_map, now),
    ]
}

fn secret_cells(secret: &Value, now: Timestamp) -> Vec<Value> {
    let keys = map_at(secret, &["data"]).map_or(0, Map::len);
    vec![
        name(secret),
        str_at(secret, &["type"]).into(),
        keys.into(),
        age(secret, now),
    ]
}

fn lease_cells(lease: &Value, now: Timestamp) -> Vec<Value> {
    with_text(lease, str_at(lease, &["spec", "holderIdentity"]), now)
}

fn config_node_cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let profile = str_at(node, &["spec", "workerLatencyProfile"]);
    with_text(node, or(profile, "Default"), now)
}

fn with_text(object: &Value, text: &str, now: Timestamp) -> Vec<Value> {
    vec![name(object), text.into(), age(object, now)]
}
