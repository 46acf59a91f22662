//! Who may act in which role?

use super::{AGE, Column, NAME, Printer, age, name, text, wide};
use crate::value::{list_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

/// Roles have no columns of their own upstream: the generic table shows when they were created.
pub const ROLE: Printer = Printer::new(
    &[
        NAME,
        Column {
            cell_type: "date",
            ..text("Created At", "When the object was created.")
        },
    ],
    role_cells,
);

pub const BINDING: Printer = Printer::new(
    &[
        NAME,
        text("Role", "Role that the binding gives."),
        AGE,
        wide(text("Users", "Users that get the role.")),
        wide(text("Groups", "Groups that get the role.")),
        wide(text("ServiceAccounts", "Service accounts that get the role.")),
    ],
    binding_cells,
);

fn role_cells(role: &Value, _now: Timestamp) -> Vec<Value> {
    vec![
        name(role),
        str_at(role, &["metadata", "creationTimestamp"]).into(),
    ]
}

fn binding_cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let (kind, role) = (
        str_at(binding, &["roleRef", "kind"]),
        str_at(binding, &["roleRef", "name"]),
    );
    vec![
        name(binding),
        format!("{kind}/{role}").into(),
        age(binding, now),
        subjects(binding, "User").into(),
        subjects(binding, "Group").into(),
        subjects(binding, "ServiceAccount").into(),
    ]
}

fn subjects(binding: &Value, kind: &str) -> String {
    let subjects: Vec<String> = list_at(binding, &["subjects"])
        .iter()
        .filter(|subject| str_at(subject, &["kind"]) == kind)
        .map(|subject| {
            let name = str_at(subject, &["name"]);
            if kind == "ServiceAccount" {
                format!("{}/{name}", str_at(subject, &["namespace"]))
            } else {
                name.to_owned()
            }
        })
        .collect();
    subjects.join(", ")
}
