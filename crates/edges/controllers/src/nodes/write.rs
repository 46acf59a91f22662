//! How are nodes and their pods written?

use super::Edge;
use jiff::Timestamp;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource};
use pointsman_node_health::action::UnknownReason;
use pointsman_node_health::evict::PodKey;
use pointsman_node_health::taint::TaintChange;
use pointsman_objects::names::CHANGE_TIME_ANNOTATION;
use pointsman_objects::node::ConditionKind;
use pointsman_objects::taint::Taint;
use pointsman_objects::{Lease, Node};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::time::Duration;

/// Namespace of nodes' leases.
pub(super) const LEASES: &str = "kube-node-lease";

/// Attempts at a node that others write at the same time (upstream's number).
const ATTEMPTS: usize = 5;
/// Wait between them.
const BETWEEN: Duration = Duration::from_millis(20);

/// The node's lease as the server has it now.
pub(super) async fn check_lease(edge: &Edge, node: &str) -> Result<Lease, ApiError> {
    edge.client.api(Resource::LEASES, Some(LEASES)).get(node).await
}

/// Sets conditions of a silent node to Unknown, provided that nobody wrote the node since it was seen.
pub(super) async fn mark_unknown(
    edge: &Edge,
    node: &Node,
    conditions: &[(ConditionKind, UnknownReason)],
) -> Result<(), ApiError> {
    let now = seconds(Timestamp::now());
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, reason)| {
            let mut condition = json!({
                "type": kind.name(), "status": "Unknown", "reason": reason.reason(),
                "message": reason.message(), "lastTransitionTime": now,
            });
            if *reason == UnknownReason::Never {
                condition["lastHeartbeatTime"] =
                    node.metadata.created.map(|at| seconds(at.timestamp())).into();
            }
            condition
        })
        .collect();
    let metadata = json!({ "uid": &*node.metadata.uid, "resourceVersion": &*node.metadata.resource_version });
    let patch = json!({ "metadata": metadata, "status": { "conditions": conditions } });
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    let api = edge.client.api(Resource::NODES, None);
    api.patch_status::<IgnoredAny>(&node.metadata.name, patch)
        .await
        .map(drop)
}

#[derive(Deserialize)]
struct Tainted {
    metadata: TaintedMetadata,
    #[serde(default)]
    spec: TaintedSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaintedMetadata {
    uid: String,
    resource_version: String,
}

#[derive(Default, Deserialize)]
struct TaintedSpec {
    #[serde(default)]
    taints: Option<Vec<Value>>,
}

/// Changes a node's taints and nothing else about them; those of others keep every field.
pub(super) async fn write_taints(
    edge: &Edge,
    node: &str,
    uid: &str,
    change: &TaintChange,
) -> Result<(), ApiError> {
    let api = edge.client.api(Resource::NODES, None);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let tainted: Tainted = match api.get(node).await {
            Err(ApiError::NotFound(_)) => return Ok(()),
            other => other?,
        };
        if tainted.metadata.uid != uid {
            return Ok(());
        }
        let before = tainted.spec.taints.unwrap_or_default();
        let Some(after) = changed(&before, change, Timestamp::now()) else {
            return Ok(());
        };
        let metadata = json!({ "uid": uid, "resourceVersion": tainted.metadata.resource_version });
        let patch = json!({ "metadata": metadata, "spec": { "taints": after } });
        let patch = Patch::Merge(patch.to_string().into_bytes());
        match api.patch::<IgnoredAny>(node, patch).await {
            Err(ApiError::Conflict(_)) if attempt < ATTEMPTS => tokio::time::sleep(BETWEEN).await,
            outcome => return outcome.map(drop),
        }
    }
}

/// The taints after a change, or nothing when it changes nothing.
fn changed(before: &[Value], change: &TaintChange, now: Timestamp) -> Option<Vec<Value>> {
    let slot = |taint: &Value| {
        let text = |key: &str| taint[key].as_str().unwrap_or("").to_owned();
        (text("key"), text("effect"))
    };
    let in_slot = |taint: &Taint, value: &Value| {
        let (key, effect) = slot(value);
        *key == *taint.key && effect == taint.effect.name()
    };
    let mut after: Vec<Value> = before
        .iter()
        .filter(|taint| !change.remove.iter().any(|gone| in_slot(gone, taint)))
        .cloned()
        .collect();
    let removed = before.len() - after.len();
    let mut added = 0;
    for taint in &change.add {
        if !after.iter().any(|known| in_slot(taint, known)) {
            let effect = taint.effect.name();
            after.push(json!({ "key": &*taint.key, "effect": effect, "timeAdded": seconds(now) }));
            added += 1;
        }
    }
    (removed + added > 0).then_some(after)
}

/// Sets a pod's Ready condition to False and leaves the rest of its status alone.
pub(super) async fn mark_unready(edge: &Edge, pod: &PodKey, uid: &str) -> Result<(), ApiError> {
    let now = Timestamp::now();
    let patch = json!({
        "metadata": { "uid": uid, "annotations": { CHANGE_TIME_ANNOTATION: format!("{now:.6}") } },
        "status": { "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": seconds(now) }] },
    });
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    let api = edge.client.api(Resource::PODS, Some(&pod.0));
    api.patch_status::<IgnoredAny>(&pod.1, patch).await.map(drop)
}

/// Says on a pod why it goes, and deletes it with its own grace period.
pub(super) async fn delete_evicted(edge: &Edge, pod: &PodKey, uid: &str) -> Result<(), ApiError> {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
        "lastTransitionTime": seconds(Timestamp::now()),
    });
    let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    let api = edge.client.api(Resource::PODS, Some(&pod.0));
    api.patch_status::<IgnoredAny>(&pod.1, patch).await?;
    api.delete(&pod.1, &DeleteOptions::of(uid)).await
}

/// A node as the server has it now; `None` when there is no such node.
pub(super) async fn live_node(edge: &Edge, name: &str) -> Result<Option<Node>, ApiError> {
    match edge.client.api(Resource::NODES, None).get(name).await {
        Ok(node) => Ok(Some(node)),
        Err(ApiError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn seconds(at: Timestamp) -> String {
    format!("{at:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_objects::taint::Effect;

    #[test]
    fn taints_of_others_keep_every_field_and_nothing_is_doubled() {
        let now: Timestamp = "2026-11-15T20:00:00.7Z".parse().unwrap();
        let before = [
            json!({ "key": "mine", "value": "v", "effect": "NoExecute", "timeAdded": "2020-01-01T00:00:00Z" }),
            json!({ "key": "a", "effect": "NoSchedule" }),
        ];
        let taint = |key: &str, effect| Taint::new(key, effect);
        let change = TaintChange {
            add: vec![taint("a", Effect::NoSchedule), taint("a", Effect::NoExecute)],
            remove: vec![taint("b", Effect::NoExecute)],
        };
        let after = changed(&before, &change, now).unwrap();
        assert_eq!(after[..2], before);
        assert_eq!(
            after[2],
            json!({ "key": "a", "effect": "NoExecute", "timeAdded": "2026-11-15T20:00:00Z" })
        );
        assert_eq!(
            changed(&after, &change, now),
            None,
            "a second time changes nothing"
        );
        let back = TaintChange {
            add: Vec::new(),
            remove: change.add,
        };
        assert_eq!(changed(&after, &back, now).unwrap(), before[..1]);
    }
}
