//! What is there to say about kinds with little to say?

use super::{AGE, Column, NAME, age, name, or, text};
use crate::value::{map_at, str_at};
use jiff::Timestamp;
use serde_json::{Map, Value};

pub const NAME_AND_AGE: &[Column] = &[NAME, AGE];

pub const NAMESPACE: &[Column] = &[NAME, text("Status", "Active or Terminating."), AGE];

pub const CONFIG_MAP: &[Column] = &[NAME, text("Data", "How many keys there are."), AGE];

pub const LEASE: &[Column] = &[NAME, text("Holder", "Who holds the lease."), AGE];

pub const CONFIG_NODE: &[Column] = &[
    NAME,
    text("Profile", "Latency profile of the cluster's nodes."),
    AGE,
];

pub fn name_and_age_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

pub fn namespace_cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    with_text(namespace, str_at(namespace, &["status", "phase"]), now)
}

pub fn config_map_cells(config_map: &Value, now: Timestamp) -> Vec<Value> {
    let keys = |field| map_at(config_map, &[field]).map_or(0, Map::len);
    vec![
        name(config_map),
        (keys("data") + keys("binaryData")).into(),
        age(config_map, now),
    ]
}

pub fn lease_cells(lease: &Value, now: Timestamp) -> Vec<Value> {
    with_text(lease, str_at(lease, &["spec", "holderIdentity"]), now)
}

pub fn config_node_cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let profile = str_at(node, &["spec", "workerLatencyProfile"]);
    with_text(node, or(profile, "Default"), now)
}

fn with_text(object: &Value, text: &str, now: Timestamp) -> Vec<Value> {
    vec![name(object), text.into(), age(object, now)]
}
