//! Does a label selector match?

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::meta::nullable;

/// A label selector as ReplicaSets and Deployments carry it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Pairs that must all be there.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`; node affinity also has `Gt` and `Lt`.
    pub operator: String,
    /// Values the operator works on.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Anything that can be asked for a label.
pub trait LabelSource {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<&str>;
}

impl LabelSource for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl LabelSelector {
    /// Whether everything that the selector asks for holds. A selector that asks for nothing would
    /// match everything; that is never meant here, so it matches nothing.
    pub fn matches(&self, labels: &impl LabelSource) -> bool {
        let empty = self.match_labels.is_empty() && self.match_expressions.is_empty();
        !empty
            && self
                .match_labels
                .iter()
                .all(|(key, value)| labels.label(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    /// Whether the labels satisfy the requirement; an unknown operator never holds.
    pub fn holds(&self, labels: &impl LabelSource) -> bool {
        let value = labels.label(&self.key);
        let listed = value.is_some_and(|value| self.values.iter().any(|known| known == value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => self.compare(value).is_some_and(|(have, bound)| have > bound),
            "Lt" => self.compare(value).is_some_and(|(have, bound)| have < bound),
            _ => false,
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(operator: &str, values: &[&str], label: Option<&str>) -> bool {
        let requirement = Requirement {
            key: "k".into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        requirement.holds(
            &label
                .map(|value| ("k".to_owned(), value.to_owned()))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
        )
    }

    #[test]
    fn operators_mean_what_kubernetes_says() {
        for (operator, values, label, expected) in [
            ("In", &["a", "b"][..], Some("a"), true),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], None, true),
            ("NotIn", &["a"], Some("a"), false),
            ("Exists", &[], Some(""), true),
            ("DoesNotExist", &[], Some(""), false),
            ("Gt", &["5"], Some("6"), true),
            ("Gt", &["5"], Some("x"), false),
            ("Lt", &["5"], Some("4"), true),
            ("Sideways", &[], Some("a"), false),
        ] {
            assert_eq!(
                holds(operator, values, label),
                expected,
                "{operator} {values:?} {label:?}"
            );
        }
    }

    #[test]
    fn an_empty_selector_matches_nothing() {
        assert!(!LabelSelector::default().matches(&BTreeMap::from([("a".to_owned(), "b".to_owned())])));
    }
}
