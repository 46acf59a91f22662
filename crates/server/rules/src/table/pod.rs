//! How is a pod doing, in one word?

use super::{AGE, NAME, Printer, age, name, or, text, wide};
use crate::human_duration::human_duration;
use crate::value::{at, bool_at, int_at, list_at, str_at};
use jiff::Timestamp;
use serde_json::{Value, json};

pub const PRINTER: Printer = Printer::new(
    &[
        NAME,
        text("Ready", "Containers that are ready, of all containers."),
        text("Status", "What the pod is doing, or why it is not."),
        text(
            "Restarts",
            "How often containers were restarted, and when the last time was.",
        ),
        AGE,
        wide(text("IP", "First address of the pod.")),
        wide(text("Node", "Node that runs the pod.")),
        wide(text(
            "Nominated Node",
            "Node on which room is being made for the pod.",
        )),
        wide(text(
            "Readiness Gates",
            "Conditions that hold, of those that readiness waits for.",
        )),
    ],
    cells,
)
.with_condition(completion);

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarize(pod);
    let ip = list_at(pod, &["status", "podIPs"])
        .first()
        .map_or("", |address| str_at(address, &["ip"]));
    vec![
        name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.status.into(),
        summary.restarts.text(now).into(),
        age(pod, now),
        or(ip, "<none>").into(),
        or(str_at(pod, &["spec", "nodeName"]), "<none>").into(),
        or(str_at(pod, &["status", "nominatedNodeName"]), "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

/// The row condition of a pod that has run to its end.
fn completion(pod: &Value) -> Option<Value> {
    let (reason, message) = match str_at(pod, &["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

struct Summary {
    status: String,
    ready: usize,
    total: usize,
    restarts: Restarts,
}

#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count = self
            .count
            .saturating_add(int_at(status, &["restartCount"]).unwrap_or(0));
        let finished = str_at(status, &["lastState", "terminated", "finishedAt"]);
        self.last = self.last.max(finished.parse().ok());
    }

    fn text(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => {
                let ago = human_duration(now.duration_since(last).as_secs());
                format!("{} ({ago} ago)", self.count)
            }
            _ => self.count.to_string(),
        }
    }
}

fn summarize(pod: &Value) -> Summary {
    let phase = str_at(pod, &["status", "phase"]);
    let conditions = list_at(pod, &["status", "conditions"]);
    let mut status = or(str_at(pod, &["status", "reason"]), phase).to_owned();
    let gated = conditions.iter().any(|condition| {
        str_at(condition, &["type"]) == "PodScheduled" && str_at(condition, &["reason"]) == "SchedulingGated"
    });
    if gated {
        status = "SchedulingGated".to_owned();
    }

    let init = initialization(pod);
    let mut summary = Summary {
        status,
        ready: init.ready_sidecars,
        total: list_at(pod, &["spec", "containers"]).len() + init.sidecars,
        restarts: init.all_restarts,
    };
    let initialized = conditions
        .iter()
        .find(|condition| str_at(condition, &["type"]) == "Initialized")
        .is_some_and(|condition| str_at(condition, &["status"]) == "True");
    match init.blocked_by {
        Some(reason) if !initialized => summary.status = reason,
        reason => {
            // A sidecar that fails after initialization shows unless a container has more to say.
            summary.status = reason.unwrap_or(summary.status);
            summary.restarts = init.sidecar_restarts;
            add_containers(pod, &mut summary);
        }
    }

    if at(pod, &["metadata", "deletionTimestamp"]).is_some() {
        if str_at(pod, &["status", "reason"]) == "NodeLost" {
            summary.status = "Unknown".to_owned();
        } else if !["Succeeded", "Failed"].contains(&phase) {
            summary.status = "Terminating".to_owned();
        }
    }
    summary
}

#[derive(Default)]
struct Initialization {
    sidecars: usize,
    ready_sidecars: usize,
    all_restarts: Restarts,
    sidecar_restarts: Restarts,
    /// Why the pod is still initializing, if it is.
    blocked_by: Option<String>,
}

fn initialization(pod: &Value) -> Initialization {
    let containers = list_at(pod, &["spec", "initContainers"]);
    let is_sidecar = |wanted: &str| {
        containers.iter().any(|container| {
            str_at(container, &["name"]) == wanted && str_at(container, &["restartPolicy"]) == "Always"
        })
    };
    let mut init = Initialization {
        sidecars: containers
            .iter()
            .filter(|container| str_at(container, &["restartPolicy"]) == "Always")
            .count(),
        ..Initialization::default()
    };
    for (index, status) in list_at(pod, &["status", "initContainerStatuses"])
        .iter()
        .enumerate()
    {
        init.all_restarts.add(status);
        let sidecar = is_sidecar(str_at(status, &["name"]));
        if sidecar {
            init.sidecar_restarts.add(status);
        }
        let terminated = at(status, &["state", "terminated"]);
        let waiting = str_at(status, &["state", "waiting", "reason"]);
        let exit_code = terminated.map(|end| int_at(end, &["exitCode"]).unwrap_or(0));
        init.blocked_by = Some(match (exit_code, terminated) {
            (Some(0), _) => continue,
            _ if sidecar && bool_at(status, &["started"]) == Some(true) => {
                init.ready_sidecars += usize::from(bool_at(status, &["ready"]) == Some(true));
                continue;
            }
            (_, Some(end)) => format!("Init:{}", end_reason(end)),
            _ if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            _ => format!("Init:{index}/{}", containers.len()),
        });
        break;
    }
    init
}

/// Folds the states of the main containers into `summary`; the first container has the last word.
fn add_containers(pod: &Value, summary: &mut Summary) {
    let mut running = false;
    let mut failure = None;
    for status in list_at(pod, &["status", "containerStatuses"]).iter().rev() {
        summary.restarts.add(status);
        let waiting = str_at(status, &["state", "waiting", "reason"]);
        if !waiting.is_empty() {
            summary.status = waiting.to_owned();
        } else if let Some(end) = at(status, &["state", "terminated"]) {
            summary.status = end_reason(end);
            if int_at(end, &["exitCode"]).unwrap_or(0) != 0 {
                failure = Some(summary.status.clone());
            }
        } else if bool_at(status, &["ready"]) == Some(true) && at(status, &["state", "running"]).is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.status == "Completed" {
        let ready = list_at(pod, &["status", "conditions"]).iter().any(|condition| {
            str_at(condition, &["type"]) == "Ready" && str_at(condition, &["status"]) == "True"
        });
        match (running, ready, failure) {
            (true, true, _) => summary.status = "Running".to_owned(),
            (_, _, Some(reason)) => summary.status = reason,
            (true, false, None) => summary.status = "NotReady".to_owned(),
            _ => {}
        }
    }
}

fn end_reason(end: &Value) -> String {
    let reason = str_at(end, &["reason"]);
    let signal = int_at(end, &["signal"]).unwrap_or(0);
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int_at(end, &["exitCode"]).unwrap_or(0))
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list_at(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates
        .iter()
        .filter(|gate| {
            let kind = str_at(gate, &["conditionType"]);
            list_at(pod, &["status", "conditions"])
                .iter()
                .find(|condition| str_at(condition, &["type"]) == kind)
                .is_some_and(|condition| str_at(condition, &["status"]) == "True")
        })
        .count();
    format!("{open}/{}", gates.len())
}
