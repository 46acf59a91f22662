//! What does the slice controller need to know about a node?

use std::collections::HashMap;

use serde::Deserialize;

use crate::text::{Interner, Text, non_empty, nullable};

/// The fields of a node that endpoints and hints show.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawNode")]
pub struct Node {
    /// Name.
    pub name: Text,
    /// Zone label, when not empty.
    pub zone: Option<Text>,
    /// Allocatable CPU in thousandths; 0 when unknown.
    pub cpu_millis: u64,
    /// The Ready condition is True.
    pub ready: bool,
    /// Carries a control-plane label, so that it does not count for hints.
    pub control_plane: bool,
}

/// All nodes by name.
pub type Nodes = HashMap<Text, Node>;

impl Node {
    /// Shares the texts that repeat from node to node.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.share(&mut self.name);
        interner.share_option(&mut self.zone);
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNode {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawMetadata {
    name: String,
    #[serde(deserialize_with = "nullable")]
    labels: RawLabels,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLabels {
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
    #[serde(rename = "node-role.kubernetes.io/control-plane")]
    control_plane: Option<String>,
    #[serde(rename = "node-role.kubernetes.io/master")]
    master: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    #[serde(deserialize_with = "nullable")]
    allocatable: RawAllocatable,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<RawCondition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAllocatable {
    cpu: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawCondition {
    r#type: String,
    status: String,
}

impl From<RawNode> for Node {
    fn from(raw: RawNode) -> Self {
        let labels = raw.metadata.labels;
        let cpu = raw.status.allocatable.cpu;
        Self {
            name: raw.metadata.name.into(),
            zone: non_empty(labels.zone),
            cpu_millis: match &cpu {
                Some(serde_json::Value::String(text)) => cpu_millis(text).unwrap_or(0),
                Some(serde_json::Value::Number(number)) => cpu_millis(&number.to_string()).unwrap_or(0),
                _ => 0,
            },
            ready: raw
                .status
                .conditions
                .iter()
                .any(|c| c.r#type == "Ready" && c.status == "True"),
            control_plane: labels.control_plane.is_some() || labels.master.is_some(),
        }
    }
}

/// Reads a CPU quantity (`2`, `1500m`, `0.5`, `1k`, `2e1`) as thousandths, rounding up.
pub(crate) fn cpu_millis(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(value) = text.parse::<f64>() {
        return scale(value, 1_000.0);
    }
    let unit = text.chars().last()?;
    let factor = match unit {
        'n' => 1e-6,
        'u' => 1e-3,
        'm' => 1.0,
        'k' => 1e6,
        'M' => 1e9,
        _ => return None,
    };
    scale(text[..text.len() - unit.len_utf8()].parse().ok()?, factor)
}

fn scale(value: f64, factor: f64) -> Option<u64> {
    let millis = (value * factor).ceil();
    // Far above any machine, and far below where a sum over a cluster could overflow.
    (0.0..=1e12).contains(&millis).then_some(millis as u64)
}

#[cfg(test)]
mod tests {
    use super::cpu_millis;

    #[test]
    fn cpu_quantities_are_read_in_thousandths() {
        let cases = [
            ("2", 2000),
            ("1500m", 1500),
            ("0.5", 500),
            ("1k", 1_000_000),
            ("250000u", 250),
            ("2e1", 20_000),
        ];
        for (text, millis) in cases {
            assert_eq!(cpu_millis(text), Some(millis), "{text}");
        }
        for text in ["", "x", "-1", "NaN", "inf", "1Gi"] {
            assert_eq!(cpu_millis(text), None, "{text}");
        }
    }
}
