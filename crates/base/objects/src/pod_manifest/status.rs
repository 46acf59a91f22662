//! What was reported about a pod before?

use super::time;
use crate::condition::ConditionStatus;
use crate::pod::Phase;
use crate::pod_status::{Ended, run_of};
use crate::read::nullable;
use jiff::Timestamp;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedStatus {
    pub phase: Phase,
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// When the node first knew the pod.
    #[serde(deserialize_with = "time")]
    pub start_time: Option<Timestamp>,
    /// Conditions, the node's and others'.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<ReportedCondition>,
    #[serde(rename = "podIP", deserialize_with = "nullable")]
    pub pod_ip: String,
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ReportedContainer>,
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ReportedContainer>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedCondition {
    pub r#type: String,
    pub status: ConditionStatus,
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    #[serde(deserialize_with = "time")]
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedContainer {
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub restart_count: u32,
    #[serde(deserialize_with = "nullable")]
    pub ready: bool,
    /// Whether its startup was over.
    #[serde(deserialize_with = "nullable")]
    pub started: bool,
    #[serde(rename = "containerID", deserialize_with = "nullable")]
    pub container_id: String,
    #[serde(deserialize_with = "nullable")]
    pub state: ReportedState,
    #[serde(deserialize_with = "nullable")]
    pub last_state: ReportedState,
}

/// One of three states; neither of these two is waiting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedState {
    pub running: Option<ReportedRunning>,
    pub terminated: Option<Ended>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedRunning {
    #[serde(deserialize_with = "time")]
    pub started_at: Option<Timestamp>,
}

impl ReportedStatus {
    pub fn condition(&self, kind: &str) -> Option<&ReportedCondition> {
        self.conditions.iter().find(|condition| condition.r#type == kind)
    }
}

impl ReportedCondition {
    pub fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }
}

impl ReportedContainer {
    /// Which run it was, if the agent of this node reported it.
    pub fn run(&self) -> Option<u32> {
        run_of(&self.container_id)
    }
}
