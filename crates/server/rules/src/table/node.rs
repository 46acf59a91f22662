//! Is a node ready, what is it for, and what does it run?

use super::{AGE, NAME, Printer, age, name, or, text, wide};
use crate::value::{bool_at, list_at, map_at, str_at};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;

pub const PRINTER: Printer = Printer::new(
    &[
        NAME,
        text("Status", "Whether the node is ready and takes new pods."),
        text("Roles", "Roles that labels give the node."),
        AGE,
        text("Version", "Version of the node agent."),
        wide(text("Internal-IP", "First address inside the cluster.")),
        wide(text("External-IP", "First address outside the cluster.")),
        wide(text("OS-Image", "Operating system.")),
        wide(text("Kernel-Version", "Kernel version and architecture.")),
        wide(text("Container-Runtime", "Container runtime and its version.")),
    ],
    cells,
);

fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = |field| str_at(node, &["status", "nodeInfo", field]);
    let mut kernel = or(info("kernelVersion"), "<unknown>").to_owned();
    if !info("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("architecture"));
    }
    vec![
        name(node),
        status(node).into(),
        roles(node).into(),
        age(node, now),
        info("kubeletVersion").into(),
        address(node, "InternalIP").into(),
        address(node, "ExternalIP").into(),
        or(info("osImage"), "<unknown>").into(),
        kernel.into(),
        or(info("containerRuntimeVersion"), "<unknown>").into(),
    ]
}

fn status(node: &Value) -> String {
    let ready = list_at(node, &["status", "conditions"])
        .iter()
        .rfind(|condition| str_at(condition, &["type"]) == "Ready");
    let status = match ready.map(|condition| str_at(condition, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if bool_at(node, &["spec", "unschedulable"]) == Some(true) {
        format!("{status},SchedulingDisabled")
    } else {
        status.to_owned()
    }
}

fn roles(node: &Value) -> String {
    let roles: BTreeSet<&str> = map_at(node, &["metadata", "labels"])
        .into_iter()
        .flatten()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    let roles: Vec<&str> = roles.into_iter().collect();
    or(&roles.join(","), "<none>").to_owned()
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    list_at(node, &["status", "addresses"])
        .iter()
        .find(|address| str_at(address, &["type"]) == kind)
        .map_or("<none>", |address| str_at(address, &["address"]))
}
