//! How is a report written into the pod's status?

use crate::machine::Machine;
use crate::status::{ContainerStatus, PodStatus, State};
use crate::unit::{Ended, container_id};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

impl Machine {
    /// The body of a merge into the pod's status subresource. Fields of ours that are empty are taken
    /// away; conditions and fields of others stay.
    pub fn patch(&self, status: &PodStatus, host_ips: &[IpAddr], annotation: Option<&str>) -> Value {
        let text = |text: &str| match text {
            "" => Value::Null,
            text => text.into(),
        };
        let conditions: Vec<Value> = status
            .conditions
            .iter()
            .map(|condition| {
                json!({
                    "type": condition.kind,
                    "status": if condition.holds { "True" } else { "False" },
                    "reason": text(condition.reason),
                    "message": text(&condition.message),
                    "lastProbeTime": null,
                    "lastTransitionTime": seconds(condition.since),
                    "observedGeneration": observed(status.generation),
                })
            })
            .collect();
        let containers = |list: &[ContainerStatus]| -> Vec<Value> {
            list.iter().map(|status| self.container_json(status)).collect()
        };
        let mut patch = json!({
            "metadata": { "uid": self.uid },
            "status": {
                "phase": status.phase.name(),
                "reason": text(status.reason),
                "message": text(status.message),
                "startTime": seconds(status.start_time),
                "observedGeneration": observed(status.generation),
                "conditions": conditions,
                "containerStatuses": containers(&status.containers),
            },
        });
        if !status.init.is_empty() {
            patch["status"]["initContainerStatuses"] = containers(&status.init).into();
        }
        addresses(&mut patch["status"], "hostIP", "hostIPs", host_ips);
        addresses(&mut patch["status"], "podIP", "podIPs", &status.ips);
        if let (Some(name), Some(at)) = (annotation, status.ready_changed) {
            patch["metadata"]["annotations"] = json!({ name: format!("{at:.6}") });
        }
        patch
    }

    fn container_json(&self, status: &ContainerStatus) -> Value {
        let id = |run: Option<u32>| run.map(|run| container_id(&self.uid, &status.name, run));
        let ended = |ended: &Ended| {
            let mut json = json!({ "exitCode": ended.code, "reason": ended.reason });
            put(&mut json, "signal", ended.signal.map(Value::from));
            put(&mut json, "message", nonempty(&ended.message));
            put(
                &mut json,
                "startedAt",
                ended.started_at.map(|at| seconds(at).into()),
            );
            put(
                &mut json,
                "finishedAt",
                ended.finished_at.map(|at| seconds(at).into()),
            );
            put(&mut json, "containerID", id(ended.run).map(Value::from));
            json!({ "terminated": json })
        };
        let state = match &status.state {
            State::Waiting(waiting) => {
                let mut json = json!({ "reason": waiting.reason });
                put(&mut json, "message", nonempty(&waiting.message));
                json!({ "waiting": json })
            }
            State::Running { since } => json!({ "running": { "startedAt": seconds(*since) } }),
            State::Terminated(how) => ended(how),
        };
        let mut json = json!({
            "name": status.name,
            "image": status.image,
            "imageID": "",
            "state": state,
            "lastState": status.last.as_ref().map_or_else(|| json!({}), ended),
            "ready": status.ready,
            "started": status.started,
            "restartCount": status.restarts,
        });
        put(&mut json, "containerID", id(status.run).map(Value::from));
        json
    }
}

fn put(object: &mut Value, field: &str, value: Option<Value>) {
    if let (Some(value), Value::Object(map)) = (value, object) {
        map.insert(field.into(), value);
    }
}

fn nonempty(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| text.into())
}

fn observed(generation: i64) -> Value {
    if generation > 0 {
        generation.into()
    } else {
        Value::Null
    }
}

/// The list is replaced as a whole: addresses are merged by their text otherwise, so that an old one
/// would stay.
fn addresses(status: &mut Value, single: &str, plural: &str, ips: &[IpAddr]) {
    let Some(first) = ips.first() else { return };
    let mut list = vec![json!({ "$patch": "replace" })];
    list.extend(ips.iter().map(|ip| {
        let mut entry = Map::new();
        entry.insert("ip".into(), ip.to_string().into());
        Value::Object(entry)
    }));
    status[single] = first.to_string().into();
    status[plural] = list.into();
}

/// A time as the API carries it: UTC, whole seconds.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}
