//! How does a workload look through the scale subresource?
//!
//! `autoscaling/v1` Scale is a view: `spec.replicas` is the workload's own, `status` tells how many
//! pods there are and which selector finds them.

use crate::field_error::{FieldError, FieldErrors};
use crate::kind::Kind;
use crate::kinds::declared::REPLICATION_CONTROLLER;
use crate::selector::LabelSelector;
use crate::value::{at, int_at, set, str_at};
use serde_json::{Map, Value, json};

/// The Scale of `object`, a Deployment or a ReplicaSet.
pub fn scale_of(object: &Value, kind: &Kind) -> Value {
    if let Some(paths) = kind.scale {
        let selector = paths.selector.map_or("", |path| str_at(object, path));
        return assembled(object, (paths.replicas, paths.observed), selector.to_owned());
    }
    let selector = at(object, &["spec", "selector"]);
    // The oldest workload has bare labels.
    let wrapped = (kind == &REPLICATION_CONTROLLER).then(|| json!({"matchLabels": selector}));
    let selector = LabelSelector::from_object(wrapped.as_ref().or(selector), "spec.selector");
    let selector = selector.map_or_else(|_| String::new(), |selector| selector.to_string());
    assembled(object, (REPLICAS, &["status", "replicas"]), selector)
}

const REPLICAS: &[&str] = &["spec", "replicas"];

fn assembled(object: &Value, (replicas, observed): (&[&str], &[&str]), selector: String) -> Value {
    let metadata: Map<String, Value> = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), at(object, &["metadata", field])?.clone())))
        .collect();
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": int_at(object, replicas).unwrap_or(0)},
        "status": {"replicas": int_at(object, observed).unwrap_or(0), "selector": selector},
    })
}

/// `object` with the replicas that `scale` asks for, and its resource version if it names one. An
/// absent number means zero, as in the typed API.
pub fn apply_scale(object: &Value, kind: &Kind, scale: &Value) -> Result<Value, FieldErrors> {
    let replicas = match at(scale, &["spec", "replicas"]) {
        None => 0,
        Some(value) => value
            .as_i64()
            .filter(|replicas| (0..=i64::from(i32::MAX)).contains(replicas))
            .ok_or_else(|| {
                vec![FieldError::invalid(
                    "spec.replicas",
                    value.clone(),
                    "must be greater than or equal to 0",
                )]
            })?,
    };
    let mut scaled = object.clone();
    set(
        &mut scaled,
        kind.scale.map_or(REPLICAS, |paths| paths.replicas),
        replicas,
    );
    let version = str_at(scale, &["metadata", "resourceVersion"]);
    if !version.is_empty() {
        set(&mut scaled, &["metadata", "resourceVersion"], version);
    }
    Ok(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"tier": "front", "app": "web"}}},
            "status": {"replicas": 2},
        })
    }

    #[test]
    fn the_view_shows_replicas_and_selector() {
        let kind = &crate::kinds::DEPLOYMENT;
        assert_eq!(
            scale_of(&deployment(), kind),
            json!({
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7"},
                "spec": {"replicas": 3},
                "status": {"replicas": 2, "selector": "app=web,tier=front"},
            })
        );
    }

    #[test]
    fn scaling_changes_nothing_but_replicas_and_the_version_to_compare() {
        let scale = json!({"metadata": {"resourceVersion": "6"}, "spec": {"replicas": 5}});
        let scaled = apply_scale(&deployment(), &crate::kinds::DEPLOYMENT, &scale).unwrap();
        let mut expected = deployment();
        expected["spec"]["replicas"] = json!(5);
        expected["metadata"]["resourceVersion"] = json!("6");
        assert_eq!(scaled, expected);
        assert_eq!(
            apply_scale(&deployment(), &crate::kinds::DEPLOYMENT, &json!({})).unwrap()["spec"]["replicas"],
            0
        );
        let error = apply_scale(
            &deployment(),
            &crate::kinds::DEPLOYMENT,
            &json!({"spec": {"replicas": -1}}),
        )
        .unwrap_err();
        assert_eq!(
            error[0].to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }
}
