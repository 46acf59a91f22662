//! What does a pod say about itself that matters to us?

use crate::annotation::{self, ANNOTATION, BadAnnotation, WHOLE_POD};
use jiff::Timestamp;
use pointsman_model::Revision;
use pointsman_objects::pod_manifest::{Container, PodManifest, ReportedContainer};
use pointsman_probe_io::{Check, ContainerTarget, Kind, PodTarget, Reading};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The readiness gate, and so the type of the condition that we own.
pub const GATE: &str = "pointsman.io/ready";

/// A pod that waits for our condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// What to probe, or why nothing can be.
    pub target: Result<PodTarget, BadAnnotation>,
    /// Which probed containers run.
    pub running: BTreeMap<String, Run>,
    pub terminating: bool,
    /// Our condition as the API server has it.
    pub condition: Option<Condition>,
    pub version: Revision,
}

/// One run of a container, or of the pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// Another run has another one.
    pub id: String,
    pub since: Option<Timestamp>,
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
    pub fn of(pod: &PodManifest, reading: &Reading) -> Option<View> {
        let gates = &pod.spec.readiness_gates;
        let ours = gates.iter().any(|gate| gate.condition_type == GATE);
        if !ours || pod.status.phase.is_final() {
            return None;
        }
        let metadata = &pod.metadata;
        Some(View {
            uid: metadata.uid.clone(),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            target: target(pod, reading),
            running: running(pod),
            terminating: metadata.is_terminating(),
            condition: pod.status.condition(GATE).map(|condition| Condition {
                met: condition.is_true(),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            }),
            version: metadata.revision(),
        })
    }
}

fn target(pod: &PodManifest, reading: &Reading) -> Result<PodTarget, BadAnnotation> {
    let text = pod.metadata.annotations.get(ANNOTATION);
    let containers: Vec<&Container> = pod.sidecars().chain(&pod.spec.containers).collect();
    let names: Vec<&str> = containers
        .iter()
        .map(|container| container.name.as_str())
        .collect();
    let probes = annotation::parse(text.ok_or(BadAnnotation::Missing)?, &names)?;
    let ip: Option<IpAddr> = pod.status.pod_ip.parse().ok();
    let mut targets = Vec::new();
    for (name, probe) in probes {
        let container = match containers.iter().find(|container| container.name == name) {
            Some(container) => Cow::Borrowed(*container),
            None => Cow::Owned(whole_pod(&containers)),
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
        uid: pod.metadata.uid.clone(),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        containers: targets,
    })
}

/// Port names of a probe of the whole pod may belong to any container.
fn whole_pod(containers: &[&Container]) -> Container {
    let ports = containers.iter().flat_map(|container| &container.ports);
    Container {
        ports: ports.cloned().collect(),
        ..Container::default()
    }
}

/// Which containers run, and the pod as a whole if any of them does. Without an address nothing can
/// be probed, so nothing counts as running.
fn running(pod: &PodManifest) -> BTreeMap<String, Run> {
    let status = &pod.status;
    if status.pod_ip.is_empty() {
        return BTreeMap::new();
    }
    let run = |container: &ReportedContainer| {
        let since = container.state.running?.started_at;
        let id = format!("{} {since:?}", container.container_id);
        Some((container.name.clone(), Run { id, since }))
    };
    let mut running: BTreeMap<String, Run> = status.container_statuses.iter().filter_map(run).collect();
    if !running.is_empty() {
        let since = running.values().filter_map(|run| run.since).min();
        let id = String::new();
        running.insert(WHOLE_POD.to_owned(), Run { id, since });
    }
    running.extend(status.init_container_statuses.iter().filter_map(run));
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

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
        View::of(&serde_json::from_value(pod.clone()).unwrap(), &Reading::default())
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
        assert_eq!(seen.version, Revision(7));
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
