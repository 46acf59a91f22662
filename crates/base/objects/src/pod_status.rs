//! How does the node that runs a pod report it?
//!
//! A report is a value; [`StatusPatch::to_json`] writes it as a merge into the pod's status subresource. Fields
//! of ours that are empty are taken away; conditions and fields of others stay.

use crate::pod::Phase;
use crate::pod_manifest::time;
use crate::read::nullable;
use jiff::Timestamp;
use pointsman_model::Moment;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::net::IpAddr;

/// One condition that the node writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    /// One word, if it does not hold.
    pub reason: &'static str,
    pub message: String,
    pub since: Timestamp,
}

/// Why a container does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// A run of a container that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ended {
    /// Which run, if it ever came to one.
    #[serde(rename = "containerID", deserialize_with = "run_of_id")]
    pub run: Option<u32>,
    #[serde(rename = "exitCode")]
    pub code: i32,
    /// The signal that ended it.
    #[serde(deserialize_with = "nonzero")]
    pub signal: Option<i32>,
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    #[serde(deserialize_with = "time")]
    pub started_at: Option<Timestamp>,
    #[serde(deserialize_with = "time")]
    pub finished_at: Option<Timestamp>,
}

/// Where one container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not run yet, or not again yet.
    Waiting(Waiting),
    Running {
        since: Timestamp,
    },
    Terminated(Ended),
}

/// What is reported about one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    pub name: String,
    pub image: String,
    pub state: State,
    /// How the run before ended.
    pub last: Option<Ended>,
    /// Whether traffic may come.
    pub ready: bool,
    /// Whether its startup is over.
    pub started: bool,
    pub restarts: u32,
    /// Which run, if there was one.
    pub run: Option<u32>,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStatus {
    pub phase: Phase,
    /// One word about the phase.
    pub reason: &'static str,
    /// A sentence about the phase.
    pub message: String,
    /// When the node first knew the pod.
    pub start_time: Timestamp,
    pub ips: Vec<IpAddr>,
    pub conditions: Vec<Condition>,
    pub init: Vec<ContainerStatus>,
    pub containers: Vec<ContainerStatus>,
    /// The generation of the spec that this is about.
    pub generation: i64,
    /// When readiness last changed, to the microsecond.
    pub ready_changed: Option<Timestamp>,
}

/// A report on its way to the API.
#[derive(Clone, Copy, Debug)]
pub struct StatusPatch<'a> {
    /// The pod's, so that no other pod of that name is touched.
    pub uid: &'a str,
    pub status: &'a PodStatus,
    pub host_ips: &'a [IpAddr],
    /// The annotation that says when readiness last changed.
    pub change_annotation: &'a str,
}

impl PodStatus {
    /// Whether the pod takes traffic.
    pub fn is_ready(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.holds)
    }
}

impl StatusPatch<'_> {
    /// The body of a strategic merge patch.
    pub fn to_json(&self) -> Value {
        let status = self.status;
        let containers = |list: &[ContainerStatus]| -> Vec<Value> {
            list.iter().map(|status| self.container(status)).collect()
        };
        let mut patch = json!({
            "metadata": { "uid": self.uid },
            "status": {
                "phase": status.phase.name(),
                "reason": filled(status.reason),
                "message": filled(&status.message),
                "startTime": seconds(status.start_time),
                "observedGeneration": self.observed_generation(),
                "conditions": status.conditions.iter().map(|condition| self.condition(condition)).collect::<Vec<_>>(),
                "containerStatuses": containers(&status.containers),
            },
        });
        if !status.init.is_empty() {
            patch["status"]["initContainerStatuses"] = containers(&status.init).into();
        }
        addresses(&mut patch["status"], "hostIP", "hostIPs", self.host_ips);
        addresses(&mut patch["status"], "podIP", "podIPs", &status.ips);
        if let Some(at) = status.ready_changed {
            patch["metadata"]["annotations"] = json!({ self.change_annotation: format!("{at:.6}") });
        }
        patch
    }

    fn observed_generation(&self) -> Option<i64> {
        Some(self.status.generation).filter(|generation| *generation > 0)
    }

    fn condition(&self, condition: &Condition) -> Value {
        json!({
            "type": condition.kind,
            "status": truth(condition.holds),
            "reason": filled(condition.reason),
            "message": filled(&condition.message),
            "lastProbeTime": null,
            "lastTransitionTime": seconds(condition.since),
            "observedGeneration": self.observed_generation(),
        })
    }

    fn container(&self, status: &ContainerStatus) -> Value {
        let id = |run: Option<u32>| run.map(|run| container_id(self.uid, &status.name, run));
        let ended = |ended: &Ended| {
            let fields = without_nulls(json!({
                "exitCode": ended.code,
                "reason": ended.reason,
                "signal": ended.signal,
                "message": filled(&ended.message),
                "startedAt": ended.started_at.map(seconds),
                "finishedAt": ended.finished_at.map(seconds),
                "containerID": id(ended.run),
            }));
            json!({ "terminated": fields })
        };
        let state = match &status.state {
            State::Waiting(Waiting { reason, message }) => {
                json!({ "waiting": without_nulls(json!({ "reason": reason, "message": filled(message) })) })
            }
            State::Running { since } => json!({ "running": { "startedAt": seconds(*since) } }),
            State::Terminated(how) => ended(how),
        };
        without_nulls(json!({
            "name": status.name,
            "image": status.image,
            "imageID": "",
            "state": state,
            "lastState": status.last.as_ref().map_or_else(|| json!({}), ended),
            "ready": status.ready,
            "started": status.started,
            "restartCount": status.restarts,
            "containerID": id(status.run),
        }))
    }
}

/// A patch of one condition that is not the node's own, as readiness gates need it: nothing else of the pod is
/// touched, and no other pod of that name.
#[derive(Clone, Copy, Debug)]
pub struct GatePatch<'a> {
    pub uid: &'a str,
    pub kind: &'a str,
    pub holds: bool,
    pub reason: &'a str,
    pub message: &'a str,
    /// When it changed; absent if only its reason or message did.
    pub since: Option<Timestamp>,
}

impl GatePatch<'_> {
    /// The body of a strategic merge patch.
    pub fn to_json(&self) -> Value {
        let mut condition = json!({
            "type": self.kind,
            "status": truth(self.holds),
            "reason": self.reason,
            "message": self.message,
        });
        if let Some(since) = self.since {
            condition["lastTransitionTime"] = seconds(since).into();
        }
        json!({ "metadata": { "uid": self.uid }, "status": { "conditions": [condition] } })
    }
}

/// The id of a run as the API shows it.
fn container_id(uid: &str, name: &str, run: u32) -> String {
    format!("pointsman://{uid}/{name}/{run}")
}

/// Which run an id of the API means, if it is one of ours.
pub(crate) fn run_of(id: &str) -> Option<u32> {
    let (_, run) = id.strip_prefix("pointsman://")?.rsplit_once('/')?;
    run.parse().ok()
}

fn run_of_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let id = Option::<String>::deserialize(deserializer)?;
    Ok(id.as_deref().and_then(run_of))
}

fn nonzero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    Ok(Option::deserialize(deserializer)?.filter(|signal| *signal != 0))
}

fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn truth(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// A list is replaced as a whole by a patch, so that its items need no nulls.
fn without_nulls(mut fields: Value) -> Value {
    if let Value::Object(fields) = &mut fields {
        fields.retain(|_, value| !value.is_null());
    }
    fields
}

/// The list is replaced as a whole: addresses are merged by their text otherwise, so that an old one
/// would stay.
fn addresses(status: &mut Value, single: &str, plural: &str, ips: &[IpAddr]) {
    let Some(first) = ips.first() else { return };
    let mut list = vec![json!({ "$patch": "replace" })];
    list.extend(ips.iter().map(|ip| json!({ "ip": ip.to_string() })));
    status[single] = first.to_string().into();
    status[plural] = list.into();
}

/// A time as the API carries it: UTC, whole seconds.
fn seconds(time: Timestamp) -> String {
    Moment::from(time).start_of_second().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(micros).unwrap()
    }

    fn container(name: &str, state: State, last: Option<Ended>) -> ContainerStatus {
        ContainerStatus {
            name: name.into(),
            image: "host".into(),
            state,
            last,
            ready: false,
            started: true,
            restarts: 2,
            run: Some(2),
        }
    }

    #[test]
    fn a_report_is_written_in_these_bytes() {
        let ended = Ended {
            run: Some(1),
            code: 143,
            signal: Some(15),
            reason: "Error".into(),
            message: "bye".into(),
            started_at: Some(at(1_500_000)),
            finished_at: Some(at(2_500_000)),
        };
        let lost = Ended {
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            ..Ended::default()
        };
        let waiting = Waiting {
            reason: "CrashLoopBackOff".into(),
            message: String::new(),
        };
        let condition = |kind, holds, reason| Condition {
            kind,
            holds,
            reason,
            message: String::new(),
            since: at(3_999_999),
        };
        let status = PodStatus {
            phase: Phase::Running,
            reason: "",
            message: String::new(),
            start_time: at(1_000_001),
            ips: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            conditions: vec![
                condition("Ready", false, "ContainersNotReady"),
                condition("Initialized", true, ""),
            ],
            init: vec![container("init", State::Terminated(ended.clone()), None)],
            containers: vec![
                container("a", State::Waiting(waiting), Some(lost)),
                container("b", State::Running { since: at(5_000_000) }, Some(ended)),
            ],
            generation: 3,
            ready_changed: Some(at(3_999_999)),
        };
        let patch = StatusPatch {
            uid: "u",
            status: &status,
            host_ips: &["192.0.2.1".parse().unwrap()],
            change_annotation: "x/changed",
        };
        let expected = include_str!("../tests/golden/status_patch.json");
        assert_eq!(patch.to_json().to_string(), expected.trim_end());
    }

    #[test]
    fn what_is_written_is_read_back() {
        let id = container_id("u-1", "web", 7);
        assert_eq!(id, "pointsman://u-1/web/7");
        assert_eq!(run_of(&id), Some(7));
        assert_eq!(run_of("containerd://abc/7"), None);
        let ended: Ended =
            serde_json::from_value(json!({ "exitCode": 1, "signal": 0, "reason": null, "containerID": id }))
                .unwrap();
        assert_eq!((ended.code, ended.signal, ended.run), (1, None, Some(7)));
    }
}
