//! What makes an event well-formed, and by which fields is it found?
//!
//! Both API groups that show events use these rules, on the stored core form (see
//! [`crate::event_views`]). `events.k8s.io` is the stricter one.

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{NameRule, immutable, invalid_each, names};
use crate::value::{at, int_at, str_at};
use serde_json::Value;
use std::borrow::Cow;

/// Rules for events, in the core form.
pub enum EventStrategy {
    /// Written through the core group, where old recorders are tolerated.
    Core,
    /// Written through `events.k8s.io`.
    Events,
}

impl Strategy for EventStrategy {
    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = self.validate(object);
        if matches!(self, EventStrategy::Events) {
            errors.extend(validate_new_style(object));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = self.validate(new);
        if matches!(self, EventStrategy::Events) {
            if at(new, &["series"]) != at(old, &["series"]) {
                validate_series(new, &mut errors);
            }
            for field in [
                "involvedObject",
                "reason",
                "message",
                "source",
                "firstTimestamp",
                "lastTimestamp",
                "count",
                "type",
                "eventTime",
                "action",
                "related",
                "reportingComponent",
                "reportingInstance",
            ] {
                immutable(&mut errors, new, old, &[field]);
            }
        }
        errors
    }

    fn name_rule(&self) -> NameRule {
        match self {
            EventStrategy::Core => NameRule::PathSegment,
            EventStrategy::Events => NameRule::DnsSubdomain,
        }
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        let field = match self {
            EventStrategy::Core => Cow::Borrowed(field),
            EventStrategy::Events => Cow::Owned(crate::event_views::core_field(field)?),
        };
        if let Some(name) = field.strip_prefix("involvedObject.") {
            let known = [
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            ];
            return known
                .contains(&name)
                .then(|| str_at(object, &["involvedObject", name]).into());
        }
        match &*field {
            "reason" | "type" | "reportingComponent" => Some(str_at(object, &[&field]).into()),
            "source" => Some(match str_at(object, &["source", "component"]) {
                "" => str_at(object, &["reportingComponent"]).into(),
                component => component.into(),
            }),
            _ => None,
        }
    }
}

impl EventStrategy {
    fn validate(&self, event: &Value) -> FieldErrors {
        let mut errors = Vec::new();
        let about = str_at(event, &["involvedObject", "namespace"]);
        let namespace = str_at(event, &["metadata", "namespace"]);
        let new_style = at(event, &["eventTime"]).is_some();
        let fits = match (new_style, about) {
            (false, "") => matches!(namespace, "" | "default"),
            (false, about) => about == namespace,
            (true, "") => matches!(namespace, "default" | "kube-system"),
            (true, _) => true,
        };
        if !fits {
            errors.push(FieldError::invalid(
                "involvedObject.namespace",
                about,
                "does not match event.namespace",
            ));
        }
        if new_style {
            self.validate_reporter(event, &mut errors);
        }
        errors
    }

    fn validate_reporter(&self, event: &Value, errors: &mut FieldErrors) {
        let controller = str_at(event, &["reportingComponent"]);
        let path = match self {
            EventStrategy::Core => "reportingComponent",
            EventStrategy::Events => "reportingController",
        };
        if controller.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
        invalid_each(errors, path, controller, names::qualified_name(controller));
        for (field, limit) in [
            ("reportingInstance", 128),
            ("action", 128),
            ("reason", 128),
            ("message", 1024),
        ] {
            let text = str_at(event, &[field]);
            if text.is_empty() && field != "message" {
                errors.push(FieldError::required(field, ""));
            }
            if text.len() > limit {
                let why = format!("can have at most {limit} characters");
                errors.push(FieldError::invalid(field, "", why));
            }
        }
    }
}

fn validate_new_style(event: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    validate_series(event, &mut errors);
    if at(event, &["eventTime"]).is_none() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = str_at(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid(
            "type",
            "",
            format!("has invalid value: {kind}"),
        ));
    }
    let source_set = ["component", "host"]
        .iter()
        .any(|field| !str_at(event, &["source", field]).is_empty());
    let leftovers = [
        ("firstTimestamp", at(event, &["firstTimestamp"]).is_some()),
        ("lastTimestamp", at(event, &["lastTimestamp"]).is_some()),
        ("count", int_at(event, &["count"]).unwrap_or(0) != 0),
        ("source", source_set),
    ];
    for (field, set) in leftovers {
        if set {
            errors.push(FieldError::invalid(field, "", "needs to be unset"));
        }
    }
    errors
}

fn validate_series(event: &Value, errors: &mut FieldErrors) {
    if at(event, &["series"]).is_none() {
        return;
    }
    if int_at(event, &["series", "count"]).unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if at(event, &["series", "lastObservedTime"]).is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    fn old_style() -> Value {
        json!({"metadata": {"namespace": "n"}, "involvedObject": {"kind": "Pod", "namespace": "n", "name": "p"},
            "reason": "Started", "type": "Normal", "source": {"component": "kubelet"}, "count": 1})
    }

    fn new_style() -> Value {
        json!({"metadata": {"namespace": "n"}, "involvedObject": {"kind": "Pod", "namespace": "n", "name": "p"},
            "reason": "Started", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingComponent": "x.io/c", "reportingInstance": "i", "action": "Start"})
    }

    #[test]
    fn events_belong_to_the_namespace_of_their_subject() {
        assert!(created(&EventStrategy::Core, old_style()).1.is_empty());
        let mut other = old_style();
        other["metadata"]["namespace"] = json!("m");
        assert_eq!(
            created(&EventStrategy::Core, other).1,
            [r#"involvedObject.namespace: Invalid value: "n": does not match event.namespace"#]
        );
        let node =
            json!({"metadata": {"namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n1"}});
        assert!(created(&EventStrategy::Core, node).1.is_empty());
    }

    #[test]
    fn the_events_group_is_strict() {
        assert!(created(&EventStrategy::Events, new_style()).1.is_empty());
        assert_eq!(
            created(&EventStrategy::Events, old_style()).1,
            [
                "eventTime: Required value",
                r#"count: Invalid value: "": needs to be unset"#,
                r#"source: Invalid value: "": needs to be unset"#,
            ]
        );
        let mut series = new_style();
        series["series"] = json!({"count": 1});
        series["reason"] = json!("Other");
        assert_eq!(
            updated(&EventStrategy::Events, series, &new_style(), Part::Main).1,
            [
                r#"series.count: Invalid value: "": should be at least 2"#,
                "series.lastObservedTime: Required value",
                r#"reason: Invalid value: "Other": field is immutable"#,
            ]
        );
    }

    #[test]
    fn kubectl_describe_finds_events_by_their_subject() {
        let event = old_style();
        let core = |field| EventStrategy::Core.selectable(&event, field).map(Cow::into_owned);
        assert_eq!(core("involvedObject.name").as_deref(), Some("p"));
        assert_eq!(core("involvedObject.uid").as_deref(), Some(""));
        assert_eq!(core("source").as_deref(), Some("kubelet"));
        assert_eq!(core("regarding.name"), None);
        assert_eq!(core("involvedObject.other"), None);
        let view = EventStrategy::Events.selectable(&event, "regarding.name");
        assert_eq!(view.as_deref(), Some("p"));
    }
}
