//! Which taint does every new Node start with?
//!
//! A node is not ready until its agent has said so. The taint keeps pods away in the meantime; the
//! node lifecycle controller removes it.

use crate::value::{entry, list_at, str_at};
use pointsman_objects::names::NOT_READY_TAINT as NOT_READY;
use serde_json::{Value, json};

/// Adds the taint `node.kubernetes.io/not-ready:NoSchedule` to a Node that is being created, unless
/// it has it.
pub fn taint_new_node(node: &mut Value) {
    let present = list_at(node, &["spec", "taints"])
        .iter()
        .any(|taint| str_at(taint, &["key"]) == NOT_READY && str_at(taint, &["effect"]) == "NoSchedule");
    if present {
        return;
    }
    let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
    let taints = entry(node, &["spec"]).entry("taints").or_insert(Value::Null);
    match taints.as_array_mut() {
        Some(taints) => taints.push(taint),
        None => *taints = json!([taint]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_not_ready_once() {
        let mut node = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        taint_new_node(&mut node);
        let once = node.clone();
        assert_eq!(
            once["spec"]["taints"][1],
            json!({"key": NOT_READY, "effect": "NoSchedule"})
        );
        taint_new_node(&mut node);
        assert_eq!(node, once);
        let mut bare = json!({});
        taint_new_node(&mut bare);
        assert_eq!(bare["spec"]["taints"].as_array().unwrap().len(), 1);
    }
}
