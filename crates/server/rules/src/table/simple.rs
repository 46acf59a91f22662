//! What is there to say about kinds with little to say?

use super::{AGE, NAME, Printer, age, name, or, text};
use crate::human_duration::human_duration;
use crate::value::{int_at, list_at, map_at, str_at};
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

pub const CERTIFICATE_SIGNING_REQUEST: Printer = Printer::new(
    &[
        NAME,
        AGE,
        text("SignerName", "Who is asked to sign."),
        text("Requestor", "Who asked."),
        text(
            "RequestedDuration",
            "How long the certificate is asked to be good for.",
        ),
        text(
            "Condition",
            "Whether it was approved or denied, and whether there is a certificate.",
        ),
    ],
    certificate_signing_request_cells,
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

fn certificate_signing_request_cells(request: &Value, now: Timestamp) -> Vec<Value> {
    let conditions = list_at(request, &["status", "conditions"]);
    let has = |of: &str| {
        conditions
            .iter()
            .any(|condition| str_at(condition, &["type"]) == of)
    };
    let decided = ["Denied", "Approved"].into_iter().find(|decided| has(decided));
    let mut state = decided.unwrap_or("Pending").to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !str_at(request, &["status", "certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    let duration = int_at(request, &["spec", "expirationSeconds"]);
    vec![
        name(request),
        age(request, now),
        str_at(request, &["spec", "signerName"]).into(),
        str_at(request, &["spec", "username"]).into(),
        duration
            .map_or_else(|| "<none>".to_owned(), human_duration)
            .into(),
        state.into(),
    ]
}
