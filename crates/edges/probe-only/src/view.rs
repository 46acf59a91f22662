//! What does a pod say about itself that matters to us?

use crate::annotation::{self, ANNOTATION, BadAnnotation, WHOLE_POD};
use jiff::Timestamp;
use pointsman_objects::value::{at, list_at, str_at};
use pointsman_probe_io::{Check, ContainerTarget, Kind, PodTarget, Reading};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The readiness gate, and so the type of the condition that we own.
pub const GATE: &str = "pointsman.io/ready";

/// A pod that waits for our condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub uid: Arc<str>,
    pub namespace: String,
    pub name: String,
    /// What to probe, or why nothing can be.
    pub target: Result<PodTarget, BadAnnotation>,
    /// Which probed containers run: an identifier of the run and when it began.
    pub running: BTreeMap<String, (String, Option<Timestamp>)>,
    pub terminating: bool,
    /// Our condition as the API server has it.
    pub condition: Option<Condition>,
    pub version: u64,
}

/// The condition that we own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub met: bool,
    pub reason: String,
    pub message: String,
}

impl Condition {
    /// Whether it has to be written again to say the other: a new message alone is not worth it.
    pub fn says_the_same(&self, other: &Condition) -> bool {
        self.met == other.met && self.reason == other.reason
    }
}

impl View {
    /// What a pod says, if it waits for our condition at all.
    pub fn of(pod: &Value, reading: &Reading) -> Option<View> {
        let gates = list_at(pod, &["spec", "readinessGates"]);
        let ours = gates.iter().any(|gate| str_at(gate, &["conditionType"]) == GATE);
        let over = ["Succeeded", "Failed"].contains(&str_at(pod, &["status", "phase"]));
        if !ours || over {
            return None;
        }
        let conditions = list_at(pod, &["status", "conditions"]);
        let condition = conditions
            .iter()
            .find(|condition| str_at(condition, &["type"]) == GATE);
        Some(View {
            uid: str_at(pod, &["metadata", "uid"]).into(),
            namespace: str_at(pod, &["metadata", "namespace"]).to_owned(),
            name: str_at(pod, &["metadata", "name"]).to_owned(),
            target: target(pod, reading),
            running: running(pod),
            terminating: at(pod, &["metadata", "deletionTimestamp"]).is_some(),
            condition: condition.map(|condition| Condition {
                met: str_at(condition, &["status"]) == "True",
                reason: str_at(condition, &["reason"]).to_owned(),
                message: str_at(condition, &["message"]).to_owned(),
            }),
            version: str_at(pod, &["metadata", "resourceVersion"]).parse().unwrap_or(0),
        })
    }
}

fn target(pod: &Value, reading: &Reading) -> Result<PodTarget, BadAnnotation> {
    let text = at(pod, &["metadata", "annotations", ANNOTATION]).and_then(Value::as_str);
    let containers = all_containers(pod);
    let names: Vec<&str> = containers
        .iter()
        .map(|container| str_at(container, &["name"]))
        .collect();
    let probes = annotation::parse(text.ok_or(BadAnnotation::Missing)?, &names)?;
    let ip: Option<IpAddr> = str_at(pod, &["status", "podIP"]).parse().ok();
    let mut targets = Vec::new();
    for (name, probe) in probes {
        // Port names of a probe of the whole pod may belong to any container.
        let container = match containers
            .iter()
            .find(|container| str_at(container, &["name"]) == name)
        {
            Some(container) => (*container).clone(),
            None => {
                let ports = containers
                    .iter()
                    .flat_map(|container| list_at(container, &["ports"]));
                json!({ "ports": ports.collect::<Vec<_>>() })
            }
        };
        let probe = reading.probe(Kind::Readiness, &probe, &container, ip);
        if let (Check::Impossible(reason), Some(_)) = (&probe.check, ip) {
            return Err(BadAnnotation::Probe(reason.to_string()));
        }
        targets.push(ContainerTarget {
            name: name.into(),
            sidecar: false,
            probes: vec![probe],
        });
    }
    Ok(PodTarget {
        uid: str_at(pod, &["metadata", "uid"]).into(),
        namespace: str_at(pod, &["metadata", "namespace"]).into(),
        name: str_at(pod, &["metadata", "name"]).into(),
        containers: targets,
    })
}

fn all_containers(pod: &Value) -> Vec<&Value> {
    let init = list_at(pod, &["spec", "initContainers"]).iter();
    let sidecars = init.filter(|container| str_at(container, &["restartPolicy"]) == "Always");
    sidecars.chain(list_at(pod, &["spec", "containers"])).collect()
}

/// Which containers run, and the pod as a whole if any of them does. Without an address nothing can
/// be probed, so nothing counts as running.
fn running(pod: &Value) -> BTreeMap<String, (String, Option<Timestamp>)> {
    let mut running = BTreeMap::new();
    if str_at(pod, &["status", "podIP"]).is_empty() {
        return running;
    }
    let mut first: Option<Timestamp> = None;
    for list in ["containerStatuses", "initContainerStatuses"] {
        for status in list_at(pod, &["status", list]) {
            let Some(state) = at(status, &["state", "running"]) else {
                continue;
            };
            let since: Option<Timestamp> = str_at(state, &["startedAt"]).parse().ok();
            let id = format!(
                "{} {}",
                str_at(status, &["containerID"]),
                str_at(state, &["startedAt"])
            );
            running.insert(str_at(status, &["name"]).to_owned(), (id, since));
            if list == "containerStatuses" {
                first = first.into_iter().chain(since).min();
                running
                    .entry(WHOLE_POD.to_owned())
                    .or_insert_with(|| (String::new(), None));
            }
        }
    }
    if let Some(whole) = running.get_mut(WHOLE_POD) {
        whole.1 = first;
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotation: &str) -> Value {
        json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "n", "resourceVersion": "7", "annotations": {ANNOTATION: annotation}},
            "spec": {
                "readinessGates": [{"conditionType": "other"}, {"conditionType": GATE}],
                "containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 8080}]}, {"name": "log"}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "False"}, {"type": GATE, "status": "True", "reason": "r"}],
                "containerStatuses": [
                    {"name": "web", "containerID": "x://1", "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}},
                    {"name": "log", "containerID": "x://2", "state": {"waiting": {}}},
                ],
            },
        })
    }

    fn view(pod: &Value) -> Option<View> {
        View::of(pod, &Reading::default())
    }

    #[test]
    fn only_pods_that_list_the_gate_and_are_not_over_are_ours() {
        let mut pod = pod("httpGet: {port: http}");
        assert!(view(&pod).is_some());
        pod["status"]["phase"] = json!("Succeeded");
        assert_eq!(view(&pod), None);
        pod["status"]["phase"] = json!("Running");
        pod["spec"]["readinessGates"] = json!([]);
        assert_eq!(view(&pod), None);
    }

    #[test]
    fn a_pod_shows_its_target_its_running_containers_and_our_condition() {
        let seen = view(&pod("httpGet: {port: http}")).expect("ours");
        let target = seen.target.expect("a good annotation");
        assert_eq!(target.containers.len(), 1);
        assert!(
            matches!(&target.containers[0].probes[0].check, Check::Http(http) if http.url.to_string() == "http://10.0.0.1:8080/")
        );
        assert_eq!(seen.running.keys().collect::<Vec<_>>(), [WHOLE_POD, "web"]);
        assert_eq!(seen.condition.map(|condition| condition.met), Some(true));
        assert_eq!(seen.version, 7);
    }

    #[test]
    fn bad_annotations_are_reported_and_a_missing_address_is_not_one() {
        let mut broken = pod("httpGet: {port: nope}");
        let error = view(&broken)
            .and_then(|seen| seen.target.err())
            .map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("the container has no port named \"nope\""));
        broken["status"]["podIP"] = json!("");
        let seen = view(&broken).expect("ours");
        assert!(seen.target.is_ok() && seen.running.is_empty());
        let mut bare = pod("");
        bare["metadata"]["annotations"] = json!({});
        assert_eq!(
            view(&bare).and_then(|seen| seen.target.err()),
            Some(BadAnnotation::Missing)
        );
    }
}
