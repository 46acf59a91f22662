//! What does the life of a pod depend on, of all that its object says?

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Whether an ended container is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum RestartPolicy {
    /// Whatever its exit code.
    #[default]
    Always,
    /// Unless it succeeded.
    OnFailure,
    /// Not.
    Never,
}

impl RestartPolicy {
    /// Whether a container that ended with `code` runs again.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// A pod object as the API serves it, as far as its life depends on it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: Metadata,
    /// Spec.
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// What was reported before.
    #[serde(deserialize_with = "nullable")]
    pub status: Reported,
}

/// Metadata of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Unique id.
    pub uid: String,
    /// Counts changes of the spec.
    pub generation: i64,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// When the pod has to be gone; set once somebody asked for its end.
    pub deletion_timestamp: Option<Timestamp>,
    /// The seconds that it was given then.
    pub deletion_grace_period_seconds: Option<i64>,
}

/// An annotation of pods; `off` lets the pod be stopped without a question at the shutdown gate.
pub const GATE_ANNOTATION: &str = "pointsman.io/shutdown-gate";

/// The spec of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers that run one after the other before all others, and sidecars.
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
    /// Containers.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    /// Whether ended containers are started again.
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: RestartPolicy,
    /// Seconds between the stop signal and the kill.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that the pod may be active.
    pub active_deadline_seconds: Option<i64>,
    /// Conditions of others that readiness depends on.
    #[serde(deserialize_with = "nullable")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// Whether the pod has the node's own network.
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
}

/// A condition that readiness depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// Its type.
    pub condition_type: String,
}

/// One container of the spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in the pod.
    pub name: String,
    /// Image.
    pub image: String,
    /// Overrides the pod's policy; `Always` makes an init container a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// Hooks.
    #[serde(deserialize_with = "nullable")]
    pub lifecycle: Hooks,
    /// Decides whether traffic may come.
    pub readiness_probe: Option<Probe>,
    /// Decides whether the container is killed.
    pub liveness_probe: Option<Probe>,
    /// Holds the other probes back until the container is up.
    pub startup_probe: Option<Probe>,
}

/// What the machine needs of a probe: how it is carried out is the prober's concern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Grace for a container that this probe has killed.
    pub termination_grace_period_seconds: Option<i64>,
}

/// What runs beside a container's start and end. What the hooks do is the runtime's concern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hooks {
    /// Runs right after the start; the container counts as started when it is done.
    pub post_start: Option<serde_json::Value>,
    /// Runs before the stop signal.
    pub pre_stop: Option<serde_json::Value>,
}

/// The status that the API has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reported {
    /// Phase.
    pub phase: Option<String>,
    /// One word.
    pub reason: Option<String>,
    /// A sentence.
    pub message: Option<String>,
    /// When the node first knew the pod.
    pub start_time: Option<Timestamp>,
    /// Conditions, ours and others'.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<ReportedCondition>,
    /// Addresses.
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<ReportedIp>,
    /// States of init containers.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ReportedContainer>,
    /// States of containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ReportedContainer>,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedIp {
    /// The address.
    pub ip: String,
}

/// A condition that the API has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedCondition {
    /// Type.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: Option<String>,
    /// A sentence.
    pub message: Option<String>,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
}

/// A container's state that the API has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedContainer {
    /// Name.
    pub name: String,
    /// Restarts so far.
    #[serde(deserialize_with = "nullable")]
    pub restart_count: u32,
    /// Whether it was ready.
    #[serde(deserialize_with = "nullable")]
    pub ready: bool,
    /// Whether its startup was over.
    pub started: Option<bool>,
    /// Which run it was.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// State.
    #[serde(deserialize_with = "nullable")]
    pub state: ReportedState,
    /// The state before.
    #[serde(deserialize_with = "nullable")]
    pub last_state: ReportedState,
}

/// One of three states.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedState {
    /// It runs.
    pub running: Option<ReportedRunning>,
    /// It has ended.
    pub terminated: Option<ReportedTermination>,
}

/// Since when it runs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedRunning {
    /// Start.
    pub started_at: Option<Timestamp>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedTermination {
    /// Exit code.
    pub exit_code: i32,
    /// Signal.
    pub signal: Option<i32>,
    /// One word.
    pub reason: Option<String>,
    /// A sentence.
    pub message: Option<String>,
    /// Start.
    pub started_at: Option<Timestamp>,
    /// End.
    pub finished_at: Option<Timestamp>,
    /// Which run it was.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
}

/// `null` reads as absent, as it does everywhere in the API.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
