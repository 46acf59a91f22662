//! Does a PodDisruptionBudget let a pod go?
//!
//! Asked when a pod is evicted, never when it is deleted. The disruption loop computes the status that is asked here;
//! each eviction takes one off what it allows at once, so that two that come together cannot both have the last one.

use super::pod::status::whole_seconds;
use crate::kinds;
use crate::selector::LabelSelector;
use crate::status::{ApiError, Subject};
use crate::value::{at, entry, int_at, list_at, map_at, set, str_at};
use jiff::Timestamp;
use serde_json::Value;

/// Evictions that the disruption loop has not confirmed yet (upstream's bound).
const MOST_PENDING: usize = 2000;
const CAUSE: &str = "DisruptionBudget";

/// Whether a pod may go whatever budgets say: it serves nobody any more, or not yet.
pub fn exempt(pod: &Value) -> bool {
    let phase = str_at(pod, &["status", "phase"]);
    matches!(phase, "Succeeded" | "Failed" | "Pending")
        || at(pod, &["metadata", "deletionTimestamp"]).is_some()
}

/// Whether a budget is about a pod of its namespace. One whose selector cannot be read is about none.
pub fn covers(budget: &Value, pod: &Value) -> bool {
    LabelSelector::from_object(at(budget, &["spec", "selector"]), "spec.selector")
        .is_ok_and(|selector| selector.matches(map_at(pod, &["metadata", "labels"])))
}

/// Whether a pod that is not ready may go without being counted: nobody misses it.
pub fn spares(budget: &Value, pod: &Value) -> bool {
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    if list_at(pod, &["status", "conditions"]).iter().any(is_ready) {
        return false;
    }
    let (current, desired) = healthy(budget);
    str_at(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow"
        || (current >= desired && desired > 0)
}

/// The budget after one more pod went; or why it must stay.
pub fn spend(budget: &Value, pod: &str, now: Timestamp) -> Result<Value, ApiError> {
    let name = str_at(budget, &["metadata", "name"]);
    let status = |field| int_at(budget, &["status", field]).unwrap_or(0);
    if status("observedGeneration") < int_at(budget, &["metadata", "generation"]).unwrap_or(0) {
        return Err(too_early(name));
    }
    let pending = map_at(budget, &["status", "disruptedPods"]).map_or(0, serde_json::Map::len);
    let allowed = status("disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden(name, "pdb disruptions allowed is negative"));
    }
    if pending > MOST_PENDING {
        return Err(forbidden(
            name,
            "too many pending evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(refused(0, refusal(budget)));
    }
    let mut spent = budget.clone();
    set(&mut spent, &["status", "disruptionsAllowed"], allowed - 1);
    entry(&mut spent, &["status", "disruptedPods"]).insert(pod.to_owned(), whole_seconds(now).into());
    if allowed == 1 {
        let conditions = entry(&mut spent, &["status"]).get_mut("conditions");
        for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
            if condition["type"] == "DisruptionAllowed" {
                condition["status"] = "False".into();
                condition["reason"] = "InsufficientPods".into();
                condition["lastTransitionTime"] = whole_seconds(now).into();
            }
        }
    }
    Ok(spent)
}

/// The answer to who should ask again: the loop has not seen the budget, or the pod changed meanwhile.
pub fn too_early(name: &str) -> ApiError {
    refused(
        10,
        format!("The disruption budget {name} is still being processed by the server."),
    )
}

fn healthy(budget: &Value) -> (i64, i64) {
    let status = |field| int_at(budget, &["status", field]).unwrap_or(0);
    (status("currentHealthy"), status("desiredHealthy"))
}

fn refusal(budget: &Value) -> String {
    let name = str_at(budget, &["metadata", "name"]);
    let (current, desired) = healthy(budget);
    let closed = list_at(budget, &["status", "conditions"])
        .iter()
        .find(|condition| {
            condition["type"] == "DisruptionAllowed"
                && condition["status"] == "False"
                && condition["message"] != ""
        });
    let why = closed.map(|condition| (str_at(condition, &["reason"]), str_at(condition, &["message"])));
    match why {
        // Then the numbers mean nothing.
        Some(("SyncFailed", message)) => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
            )
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

fn refused(retry_after_seconds: u32, cause: String) -> ApiError {
    ApiError::TooManyRequests {
        message: "Cannot evict pod as it would violate the pod's disruption budget.".into(),
        retry_after_seconds,
        cause: Some((CAUSE.into(), cause, String::new())),
    }
}

fn forbidden(name: &str, why: &str) -> ApiError {
    let cause = format!("The disruption budget {name} does not allow evicting pods currently: {why}");
    ApiError::Forbidden {
        subject: Subject::new(&kinds::declared::POD_DISRUPTION_BUDGET, name),
        why: why.into(),
        cause: Some((CAUSE.into(), cause, String::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn budget(allowed: i64, current: i64, desired: i64) -> Value {
        json!({
            "metadata": { "name": "b", "generation": 1 },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired,
                "conditions": [{ "type": "DisruptionAllowed", "status": "True", "message": "", "reason": "SufficientPods" }],
            },
        })
    }

    fn cause(error: &ApiError) -> &str {
        match error {
            ApiError::TooManyRequests {
                cause: Some((reason, message, _)),
                ..
            }
            | ApiError::Forbidden {
                cause: Some((reason, message, _)),
                ..
            } => {
                assert_eq!(reason, CAUSE);
                message
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_eviction_takes_one_and_the_last_one_closes_the_budget() {
        let now = Timestamp::from_second(1).unwrap();
        let first = spend(&budget(2, 3, 1), "a", now).unwrap();
        assert_eq!(first["status"]["disruptionsAllowed"], 1);
        assert_eq!(
            first["status"]["disruptedPods"],
            json!({"a": "1970-01-01T00:00:01Z"})
        );
        assert_eq!(first["status"]["conditions"][0]["status"], "True");
        let second = spend(&first, "b", now).unwrap();
        assert_eq!(second["status"]["conditions"][0]["reason"], "InsufficientPods");
        let error = spend(&second, "c", now).unwrap_err();
        assert_eq!(error.code(), 429);
        assert_eq!(error.retry_after_seconds(), Some(0));
        let none = spend(&budget(0, 1, 1), "a", now).unwrap_err();
        assert_eq!(
            cause(&none),
            "The disruption budget b needs 1 healthy pods and has 1 currently"
        );
    }

    #[test]
    fn a_budget_that_nobody_computed_or_trusts_lets_nothing_go() {
        let now = Timestamp::UNIX_EPOCH;
        let mut changed = budget(1, 2, 1);
        changed["metadata"]["generation"] = 2.into();
        let error = spend(&changed, "a", now).unwrap_err();
        assert_eq!((error.code(), error.retry_after_seconds()), (429, Some(10)));
        assert_eq!(spend(&budget(-1, 2, 1), "a", now).unwrap_err().code(), 403);
        let mut failed = budget(0, 5, 1);
        failed["status"]["conditions"] = json!([{ "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "odd" }]);
        assert!(cause(&spend(&failed, "a", now).unwrap_err()).ends_with("because it failed sync: odd"));
    }

    #[test]
    fn pods_that_serve_nobody_are_not_held() {
        let pod = |phase: &str, ready: &str| {
            json!({
                "metadata": { "labels": { "app": "web" } },
                "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
            })
        };
        assert!(exempt(&pod("Pending", "False")) && exempt(&pod("Failed", "False")));
        assert!(!exempt(&pod("Running", "False")));
        let (enough, short) = (budget(0, 2, 2), budget(0, 1, 2));
        assert!(spares(&enough, &pod("Running", "False")) && !spares(&short, &pod("Running", "False")));
        assert!(!spares(&enough, &pod("Running", "True")));
        let mut always = short;
        always["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow".into();
        assert!(spares(&always, &pod("Running", "False")));
        assert!(covers(&enough, &pod("Running", "True")));
        assert!(!covers(&enough, &json!({})) && !covers(&json!({"spec": {}}), &pod("Running", "True")));
        assert!(
            covers(&json!({"spec": {"selector": {}}}), &json!({})),
            "an empty selector covers all"
        );
    }
}
