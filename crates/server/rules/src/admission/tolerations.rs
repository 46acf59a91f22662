//! How long does a pod stay on a node that stopped answering?
//!
//! Pods that do not say get the cluster's answer. The seconds are arguments because a latency profile
//! changes them while the server runs.

use crate::value::{entry, list_at, str_at};
use pointsman_objects::names::{NOT_READY_TAINT as NOT_READY, UNREACHABLE_TAINT as UNREACHABLE};
use serde_json::{Value, json};

/// Default seconds for the two NoExecute taints of nodes that do not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TolerationSeconds {
    /// For nodes that say they are not ready.
    pub not_ready: i64,
    /// For nodes that say nothing.
    pub unreachable: i64,
}

impl Default for TolerationSeconds {
    /// 300 s each, kube-apiserver's defaults.
    fn default() -> Self {
        Self {
            not_ready: 300,
            unreachable: 300,
        }
    }
}

/// Adds the default tolerations to a pod that is created or updated, each unless the pod already
/// tolerates that taint in any way.
pub fn add_default_tolerations(pod: &mut Value, seconds: TolerationSeconds) {
    for (key, seconds) in [(NOT_READY, seconds.not_ready), (UNREACHABLE, seconds.unreachable)] {
        if list_at(pod, &["spec", "tolerations"])
            .iter()
            .any(|toleration| tolerates(toleration, key))
        {
            continue;
        }
        let toleration =
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let tolerations = entry(pod, &["spec"]).entry("tolerations").or_insert(Value::Null);
        match tolerations.as_array_mut() {
            Some(tolerations) => tolerations.push(toleration),
            None => *tolerations = json!([toleration]),
        }
    }
}

fn tolerates(toleration: &Value, key: &str) -> bool {
    let (for_key, effect) = (str_at(toleration, &["key"]), str_at(toleration, &["effect"]));
    (for_key.is_empty() || for_key == key) && (effect.is_empty() || effect == "NoExecute")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tolerations: Value, expected: &[(&str, i64)]) {
        let mut pod = json!({"spec": {"tolerations": tolerations}});
        let before = list_at(&pod, &["spec", "tolerations"]).len();
        let seconds = TolerationSeconds {
            not_ready: 60,
            unreachable: 90,
        };
        add_default_tolerations(&mut pod, seconds);
        let added: Vec<(&str, i64)> = list_at(&pod, &["spec", "tolerations"])[before..]
            .iter()
            .map(|toleration| {
                (
                    str_at(toleration, &["key"]),
                    toleration["tolerationSeconds"].as_i64().unwrap(),
                )
            })
            .collect();
        assert_eq!(added, expected);
        let once = pod.clone();
        add_default_tolerations(&mut pod, TolerationSeconds::default());
        assert_eq!(pod, once, "later defaults do not change what a pod has");
    }

    #[test]
    fn pods_get_what_they_do_not_say_themselves() {
        let both = [(NOT_READY, 60), (UNREACHABLE, 90)];
        check(json!(null), &both);
        check(json!([{"key": "other", "operator": "Exists"}]), &both);
        check(json!([{"key": NOT_READY, "effect": "NoSchedule"}]), &both);
        check(
            json!([{"key": NOT_READY, "effect": "NoExecute", "tolerationSeconds": 1}]),
            &both[1..],
        );
        check(json!([{"key": UNREACHABLE}]), &both[..1]);
        check(json!([{"operator": "Exists"}]), &[]);
        check(json!([{"operator": "Exists", "effect": "NoExecute"}]), &[]);
    }
}
