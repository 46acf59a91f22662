//! What does the schema fill in, and what does it ask for?

use super::{ObjectType, Shape};
use crate::field_error::{FieldError, FieldErrors};
use serde_json::Value;

/// Pods and their templates have rules of their own.
const POD_TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";

/// Gives fields that are not set the values that the schema names for them.
pub fn fill_in(value: &mut Value, shape: &ObjectType) {
    let Value::Object(map) = value else { return };
    if shape.id == POD_TEMPLATE {
        return;
    }
    for field in &shape.fields {
        if let Some(default) = &field.default
            && !map.contains_key(field.name)
        {
            map.insert(field.name.to_owned(), default.clone());
        }
        if let Some(inner) = map.get_mut(field.name) {
            fill_shape(inner, &field.shape);
        }
    }
}

fn fill_shape(value: &mut Value, shape: &Shape) {
    match (shape, value) {
        (Shape::Object(index), value) => fill_in(value, index.get()),
        (Shape::List(item), Value::Array(items)) if item.has_fields() => {
            items.iter_mut().for_each(|value| fill_shape(value, item));
        }
        (Shape::Map(inner), Value::Object(map)) if inner.has_fields() => {
            map.values_mut().for_each(|value| fill_shape(value, inner));
        }
        _ => {}
    }
}

/// Adds the fields outside of status that the schema asks for and the object does not have.
pub fn missing(object: &Value, shape: &ObjectType, errors: &mut FieldErrors) {
    missing_below(object, shape, "", errors);
}

fn missing_below(value: &Value, shape: &ObjectType, path: &str, errors: &mut FieldErrors) {
    let Value::Object(map) = value else { return };
    if shape.id == POD_TEMPLATE {
        return;
    }
    for field in &shape.fields {
        if path.is_empty() && matches!(field.name, "metadata" | "status") {
            continue;
        }
        let here = match path {
            "" => field.name.to_owned(),
            path => format!("{path}.{}", field.name),
        };
        match map.get(field.name) {
            Some(inner) => missing_in(inner, &field.shape, &here, errors),
            // Go writes an empty list or map as null and reads it back as empty: a kubelet's CSINode without drivers.
            None if matches!(field.shape, Shape::List(_) | Shape::Map(_)) => {}
            None if field.required => errors.push(FieldError::required(here, "")),
            None => {}
        }
    }
}

fn missing_in(value: &Value, shape: &Shape, path: &str, errors: &mut FieldErrors) {
    match (shape, value) {
        (Shape::Object(index), value) => missing_below(value, index.get(), path, errors),
        (Shape::List(item), Value::Array(items)) if item.has_fields() => {
            for (at, value) in items.iter().enumerate() {
                missing_in(value, item, &format!("{path}[{at}]"), errors);
            }
        }
        (Shape::Map(inner), Value::Object(map)) if inner.has_fields() => {
            for (key, value) in map {
                missing_in(value, inner, &format!("{path}[{key}]"), errors);
            }
        }
        _ => {}
    }
}

impl Shape {
    /// Whether it leads to an object with known fields.
    fn has_fields(&self) -> bool {
        match self {
            Shape::Object(_) => true,
            Shape::List(inner) | Shape::Map(inner) => inner.has_fields(),
            Shape::Scalar(_) | Shape::Any => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::{self, declared};
    use serde_json::json;

    #[test]
    fn a_list_that_is_asked_for_may_be_empty_and_so_absent() {
        let shape = schema::named("storage.k8s.io", "v1", "CSINode").unwrap();
        let mut errors = Vec::new();
        declared::missing(&json!({"spec": {}}), shape, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        declared::missing(&json!({"spec": {"drivers": [{}]}}), shape, &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.drivers[0].name: Required value",
                "spec.drivers[0].nodeID: Required value"
            ]
        );
    }

    #[test]
    fn defaults_and_required_fields_come_from_the_schema() {
        let shape = schema::named("storage.k8s.io", "v1", "StorageClass").unwrap();
        let mut class = json!({"reclaimPolicy": "Retain"});
        declared::fill_in(&mut class, shape);
        assert_eq!(
            class,
            json!({"reclaimPolicy": "Retain", "volumeBindingMode": "Immediate"})
        );
        let mut errors = Vec::new();
        declared::missing(&class, shape, &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["provisioner: Required value"]);
        let set = schema::named("apps", "v1", "StatefulSet").unwrap();
        let mut object = json!({"spec": {"updateStrategy": {}}});
        declared::fill_in(&mut object, set);
        assert_eq!(object["spec"]["updateStrategy"], json!({"type": "RollingUpdate"}));
        assert_eq!(
            object["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"],
            "Retain"
        );
        let driver = schema::named("storage.k8s.io", "v1", "CSIDriver").unwrap();
        let mut object = json!({});
        declared::fill_in(&mut object, driver);
        assert_eq!(object["spec"]["attachRequired"], true);
    }
}
