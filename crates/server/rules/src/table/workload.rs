//! How far are Deployments, ReplicaSets, DaemonSets and Jobs from what they should be?

use super::{AGE, Column, NAME, Printer, age, integer, name, or, text, wide};
use crate::human_duration;
use crate::selector::LabelSelector;
use crate::value::{at, int_at, list_at, map_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

const CONTAINERS: Column = wide(text("Containers", "Names of the template's containers."));
const IMAGES: Column = wide(text("Images", "Images of the template's containers."));
const SELECTOR: Column = wide(text("Selector", "Labels of the pods that are counted."));

pub const DEPLOYMENT: Printer = Printer::new(
    &[
        NAME,
        text("Ready", "Ready pods, of those that should be."),
        text("Up-to-date", "Pods of the newest template."),
        text("Available", "Pods that have been ready for long enough."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    deployment_cells,
);

pub const REPLICA_SET: Printer = Printer::new(
    &[
        NAME,
        integer("Desired", "Pods that should be."),
        integer("Current", "Pods that are."),
        integer("Ready", "Pods that are ready."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    replica_set_cells,
);

pub const DAEMON_SET: Printer = Printer::new(
    &[
        NAME,
        integer("Desired", "Nodes that should run the pod."),
        integer("Current", "Nodes that run it."),
        integer("Ready", "Nodes whose pod is ready."),
        integer("Up-to-date", "Nodes whose pod is of the newest template."),
        integer("Available", "Nodes whose pod has been ready for long enough."),
        text("Node Selector", "Labels of the nodes that are meant."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    daemon_set_cells,
);

pub const JOB: Printer = Printer::new(
    &[
        NAME,
        text("Status", "How it ended, or that it did not yet."),
        text("Completions", "Pods that succeeded, of those that have to."),
        text("Duration", "How long it ran, or has run."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    job_cells,
);

fn job_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let conditions = list_at(object, &["status", "conditions"]);
    let holds = |kind: &&&str| {
        let mut conditions = conditions.iter();
        conditions.any(|condition| condition["type"] == **kind && condition["status"] == "True")
    };
    let ended = ["Complete", "Failed"].iter().find(holds).copied();
    let deleted = at(object, &["metadata", "deletionTimestamp"]).map(|_| "Terminating");
    let decided = || {
        ["Suspended", "FailureTarget", "SuccessCriteriaMet"]
            .iter()
            .find(holds)
            .copied()
    };
    let status = ended.or(deleted).or_else(decided).unwrap_or("Running");
    let succeeded = count(object, "succeeded");
    let parallelism = int_at(object, &["spec", "parallelism"]).unwrap_or(0);
    let completions = match int_at(object, &["spec", "completions"]) {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let time = |field| str_at(object, &["status", field]).parse::<Timestamp>().ok();
    let duration = time("startTime").map_or(String::new(), |start| {
        let end = time("completionTime").unwrap_or(now);
        human_duration::human_duration(end.as_second() - start.as_second())
    });
    let selector = LabelSelector::from_object(at(object, &["spec", "selector"]), "");
    let selector = selector.map_or_else(|_| "<invalid>".to_owned(), |selector| selector.to_string());
    vec![
        name(object),
        status.into(),
        completions.into(),
        duration.into(),
        age(object, now),
        of_containers(object, "name").into(),
        of_containers(object, "image").into(),
        selector.into(),
    ]
}

fn deployment_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = count(object, "readyReplicas");
    let selector = LabelSelector::from_object(at(object, &["spec", "selector"]), "");
    let selector = selector.map_or_else(|_| "<invalid>".to_owned(), |selector| selector.to_string());
    vec![
        name(object),
        format!("{ready}/{}", desired(object)).into(),
        count(object, "updatedReplicas").into(),
        count(object, "availableReplicas").into(),
        age(object, now),
        of_containers(object, "name").into(),
        of_containers(object, "image").into(),
        selector.into(),
    ]
}

fn replica_set_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let selector = LabelSelector::from_object(at(object, &["spec", "selector"]), "");
    let selector = selector.map_or_else(|_| "<error>".to_owned(), |selector| selector.to_string());
    vec![
        name(object),
        desired(object).into(),
        count(object, "replicas").into(),
        count(object, "readyReplicas").into(),
        age(object, now),
        of_containers(object, "name").into(),
        of_containers(object, "image").into(),
        or(&selector, "<none>").into(),
    ]
}

fn daemon_set_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let selector = LabelSelector::from_object(at(object, &["spec", "selector"]), "");
    let selector = selector.map_or_else(|_| "<invalid>".to_owned(), |selector| selector.to_string());
    let nodes: Vec<String> = map_at(object, &["spec", "template", "spec", "nodeSelector"])
        .into_iter()
        .flatten()
        .map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()))
        .collect();
    vec![
        name(object),
        count(object, "desiredNumberScheduled").into(),
        count(object, "currentNumberScheduled").into(),
        count(object, "numberReady").into(),
        count(object, "updatedNumberScheduled").into(),
        count(object, "numberAvailable").into(),
        or(&nodes.join(","), "<none>").into(),
        age(object, now),
        of_containers(object, "name").into(),
        of_containers(object, "image").into(),
        selector.into(),
    ]
}

fn desired(object: &Value) -> i64 {
    int_at(object, &["spec", "replicas"]).unwrap_or(0)
}

fn count(object: &Value, field: &str) -> i64 {
    int_at(object, &["status", field]).unwrap_or(0)
}

fn of_containers(object: &Value, field: &str) -> String {
    let texts: Vec<&str> = list_at(object, &["spec", "template", "spec", "containers"])
        .iter()
        .map(|container| str_at(container, &[field]))
        .collect();
    texts.join(",")
}
