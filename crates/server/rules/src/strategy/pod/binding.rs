//! What happens to a pod when it is bound to a node, or asked to leave it?

use super::status::set_condition;
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::names;
use crate::status::{ApiError, Subject};
use crate::value::{at, entry, list_at, map_at, remove, set, str_at};
use jiff::Timestamp;
use serde_json::{Map, Value};

/// The pod after `binding` assigned it to a node: `spec.nodeName` is set once, the binding's labels
/// and annotations are merged, and the pod counts as scheduled from `now`.
pub fn bind(pod: &Value, binding: &Value, now: Timestamp) -> Result<Value, ApiError> {
    let name = str_at(pod, &["metadata", "name"]);
    let errors = validate(binding);
    if !errors.is_empty() {
        let subject = Subject {
            kind: "Binding".into(),
            name: name.into(),
            ..Subject::default()
        };
        return Err(ApiError::Invalid { subject, errors });
    }
    let conflict = |why: String| {
        let subject = Subject {
            kind: "pods/binding".into(),
            name: name.into(),
            ..Subject::default()
        };
        Err(ApiError::Conflict { subject, why })
    };
    if let Some(why) = missed_precondition(pod, at(binding, &["metadata"])) {
        return conflict(why);
    }
    if at(pod, &["metadata", "deletionTimestamp"]).is_some() {
        return conflict(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let assigned = str_at(pod, &["spec", "nodeName"]);
    if !assigned.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {assigned:?}"));
    }
    if !list_at(pod, &["spec", "schedulingGates"]).is_empty() {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut bound = pod.clone();
    set(
        &mut bound,
        &["spec", "nodeName"],
        str_at(binding, &["target", "name"]),
    );
    remove(&mut bound, &["status", "nominatedNodeName"]);
    for field in ["annotations", "labels"] {
        let added = map_at(binding, &["metadata", field]).filter(|added| !added.is_empty());
        if let Some(added) = added {
            entry(&mut bound, &["metadata", field]).extend(added.clone());
        }
    }
    set_condition(&mut bound, condition(&[("type", "PodScheduled")]), now);
    Ok(bound)
}

/// The pod as it is just before an eviction deletes it: marked as the target of a disruption.
pub fn evict(pod: &Value, eviction: &Value, now: Timestamp) -> Result<Value, ApiError> {
    let name = str_at(pod, &["metadata", "name"]);
    let asked = str_at(eviction, &["metadata", "name"]);
    if !asked.is_empty() && asked != name {
        return Err(ApiError::BadRequest(
            "name in URL does not match name in Eviction object".into(),
        ));
    }
    if let Some(why) = missed_precondition(pod, at(eviction, &["deleteOptions", "preconditions"])) {
        let subject = Subject {
            kind: "pods".into(),
            name: name.into(),
            ..Subject::default()
        };
        return Err(ApiError::Conflict { subject, why });
    }
    let mut marked = pod.clone();
    let target = condition(&[
        ("type", "DisruptionTarget"),
        ("reason", "EvictionByEvictionAPI"),
        ("message", "Eviction API: evicting"),
    ]);
    set_condition(&mut marked, target, now);
    Ok(marked)
}

fn condition(fields: &[(&str, &str)]) -> Map<String, Value> {
    fields
        .iter()
        .chain(&[("status", "True")])
        .map(|(field, text)| ((*field).to_owned(), Value::from(*text)))
        .collect()
}

fn validate(binding: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let kind = str_at(binding, &["target", "kind"]);
    if !["", "Node"].contains(&kind) {
        errors.push(FieldError::not_supported(
            "target.kind",
            kind,
            &["Node", "<empty>"],
        ));
    }
    super::nonempty(
        &binding["target"],
        "name",
        names::dns_subdomain,
        "target",
        &mut errors,
    );
    errors
}

/// What of `wanted` (`uid`, `resourceVersion`) is set and differs from the pod's.
fn missed_precondition(pod: &Value, wanted: Option<&Value>) -> Option<String> {
    let wanted = wanted?;
    ["uid", "resourceVersion"].into_iter().find_map(|field| {
        let asked = str_at(wanted, &[field]);
        let found = str_at(pod, &["metadata", field]);
        (!asked.is_empty() && asked != found).then(|| {
            format!(
                "the {field} in the precondition ({asked}) does not match the {field} in record ({found})"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2024-05-01T10:00:00.25Z".parse().unwrap()
    }

    fn pending() -> Value {
        json!({
            "metadata": {"name": "web", "uid": "u1", "resourceVersion": "7", "labels": {"app": "web"}},
            "spec": {"containers": []},
            "status": {"phase": "Pending", "nominatedNodeName": "n0"},
        })
    }

    fn to(node: &str) -> Value {
        json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": node}})
    }

    #[test]
    fn binding_assigns_the_node_merges_metadata_and_marks_the_pod_scheduled() {
        let mut binding = to("n1");
        binding["metadata"]["annotations"] = json!({"zone": "a"});
        let bound = bind(&pending(), &binding, now()).unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert_eq!(bound["metadata"]["annotations"], json!({"zone": "a"}));
        assert_eq!(
            bound["status"],
            json!({
                "phase": "Pending",
                "conditions": [{
                    "type": "PodScheduled", "status": "True",
                    "lastTransitionTime": "2024-05-01T10:00:00Z",
                }],
            })
        );
    }

    #[test]
    fn a_pod_is_bound_once_and_only_when_it_may_run() {
        let bound = bind(&pending(), &to("n1"), now()).unwrap();
        let error = bind(&bound, &to("n2"), now()).unwrap_err();
        assert_eq!(error.code(), 409);
        assert_eq!(
            error.to_string(),
            r#"Operation cannot be fulfilled on pods/binding "web": pod web is already assigned to node "n1""#
        );
        let mut dying = pending();
        dying["metadata"]["deletionTimestamp"] = json!("2024-05-01T10:00:00Z");
        assert_eq!(bind(&dying, &to("n1"), now()).unwrap_err().code(), 409);
        let mut gated = pending();
        gated["spec"]["schedulingGates"] = json!([{"name": "wait"}]);
        assert_eq!(bind(&gated, &to("n1"), now()).unwrap_err().code(), 409);
        let mut foreign = to("n1");
        foreign["metadata"]["uid"] = json!("u2");
        assert_eq!(bind(&pending(), &foreign, now()).unwrap_err().code(), 409);
    }

    #[test]
    fn a_binding_needs_a_node() {
        assert_eq!(
            bind(&pending(), &json!({}), now()).unwrap_err().to_string(),
            r#"Binding "web" is invalid: target.name: Required value"#
        );
        let other = json!({"target": {"kind": "Rack", "name": "n1"}});
        assert_eq!(bind(&pending(), &other, now()).unwrap_err().code(), 422);
    }

    #[test]
    fn eviction_marks_the_pod_and_keeps_the_first_transition_time() {
        let evicted = evict(&pending(), &json!({}), now()).unwrap();
        let condition = &evicted["status"]["conditions"][0];
        assert_eq!(condition["type"], "DisruptionTarget");
        assert_eq!(condition["reason"], "EvictionByEvictionAPI");
        let later = "2024-05-01T11:00:00Z".parse().unwrap();
        assert_eq!(evict(&evicted, &json!({}), later).unwrap(), evicted);
        let stale = json!({"deleteOptions": {"preconditions": {"resourceVersion": "6"}}});
        assert_eq!(evict(&pending(), &stale, now()).unwrap_err().code(), 409);
    }
}
