//! How is a `LabelSelector` object (matchLabels, matchExpressions) read?

use super::label::{LabelSelector, Requirement, Test};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names, strings, validate_labels};
use crate::value::{at, list_at, map_at, str_at};
use serde_json::Value;

impl LabelSelector {
    /// Reads a `LabelSelector` object at `path`. Absent selects nothing, empty selects everything.
    pub fn from_object(selector: Option<&Value>, path: &str) -> Result<Self, FieldErrors> {
        let Some(selector) = selector else {
            return Ok(Self::nothing());
        };
        let mut errors = validate_labels(at(selector, &["matchLabels"]), &format!("{path}.matchLabels"));
        let mut requirements = Self::from_labels(at(selector, &["matchLabels"]))
            .requirements()
            .to_vec();
        for (index, expression) in list_at(selector, &["matchExpressions"]).iter().enumerate() {
            let path = format!("{path}.matchExpressions[{index}]");
            requirements.extend(from_expression(expression, &path, &mut errors));
        }
        if errors.is_empty() {
            Ok(Self::new(requirements))
        } else {
            Err(errors)
        }
    }

    /// The selector of a plain map, as in a Service's `spec.selector`; absent selects everything.
    pub fn from_labels(labels: Option<&Value>) -> Self {
        let requirements = labels
            .and_then(|labels| map_at(labels, &[]))
            .into_iter()
            .flatten()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                test: Test::Equals(value.as_str().unwrap_or("").to_owned()),
            });
        Self::new(requirements.collect())
    }
}

fn from_expression(expression: &Value, path: &str, errors: &mut FieldErrors) -> Option<Requirement> {
    let key = str_at(expression, &["key"]);
    let operator = str_at(expression, &["operator"]);
    let values: Vec<String> = strings(expression, &["values"]).map(str::to_owned).collect();
    let before = errors.len();
    let values_path = format!("{path}.values");
    match (operator, values.is_empty()) {
        ("In" | "NotIn", true) => errors.push(FieldError::required(
            &values_path,
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        ("Exists" | "DoesNotExist", false) => errors.push(FieldError::forbidden(
            &values_path,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
        _ => errors.push(FieldError::invalid(
            format!("{path}.operator"),
            operator,
            "not a valid selector operator",
        )),
    }
    invalid_each(errors, &format!("{path}.key"), key, names::qualified_name(key));
    for (index, value) in values.iter().enumerate() {
        let path = format!("{values_path}[{index}]");
        invalid_each(errors, &path, value.as_str(), names::label_value(value));
    }
    let test = match operator {
        "In" => Test::In(values),
        "NotIn" => Test::NotIn(values),
        "Exists" => Test::Exists,
        "DoesNotExist" => Test::Absent,
        _ => return None,
    };
    (errors.len() == before).then(|| Requirement {
        key: key.to_owned(),
        test,
    })
}
