//! How does one stored event look in the two API groups that show it?
//!
//! Events are stored in the core form. `events.k8s.io` names some fields differently; a view is the
//! same object with those fields renamed, so that fields unknown to us survive either way.

use serde_json::Value;

/// Core name and `events.k8s.io` name of each field that differs.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Turns an `events.k8s.io` event into the core form that is stored.
pub fn to_core(event: &mut Value) {
    rename(event, "v1", RENAMED.map(|(core, view)| (view, core)));
}

/// Turns a stored core event into the `events.k8s.io` form.
pub fn from_core(event: &mut Value) {
    rename(event, "events.k8s.io/v1", RENAMED);
}

/// The core field that a field selector of `events.k8s.io` means.
pub fn core_field(field: &str) -> Option<String> {
    if let Some(rest) = field.strip_prefix("regarding.") {
        return Some(format!("involvedObject.{rest}"));
    }
    match field {
        "reportingController" => Some("reportingComponent".into()),
        "reason" | "type" | "metadata.name" | "metadata.namespace" => Some(field.into()),
        _ => None,
    }
}

fn rename(event: &mut Value, api_version: &str, names: [(&str, &str); 7]) {
    let Some(fields) = event.as_object_mut() else {
        return;
    };
    // Taken out first: no new name may collide with an old one that is still to be renamed.
    let taken = names.map(|(from, to)| (to, fields.remove(from)));
    for (to, value) in taken {
        if let Some(value) = value {
            fields.insert(to.to_owned(), value);
        }
    }
    if fields.contains_key("apiVersion") {
        fields.insert("apiVersion".into(), api_version.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_views_hold_the_same_event() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Started", "message": "text",
            "source": {"component": "c"}, "count": 2, "firstTimestamp": "t1", "lastTimestamp": "t2",
            "reportingComponent": "r", "reportingInstance": "i", "extra": true});
        let mut view = core.clone();
        from_core(&mut view);
        assert_eq!(
            view,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
                "regarding": {"kind": "Pod", "name": "p"}, "reason": "Started", "note": "text",
                "deprecatedSource": {"component": "c"}, "deprecatedCount": 2, "deprecatedFirstTimestamp": "t1",
                "deprecatedLastTimestamp": "t2", "reportingController": "r", "reportingInstance": "i",
                "extra": true})
        );
        to_core(&mut view);
        assert_eq!(view, core);
    }

    #[test]
    fn selectors_of_the_view_mean_core_fields() {
        assert_eq!(
            core_field("regarding.name").as_deref(),
            Some("involvedObject.name")
        );
        assert_eq!(
            core_field("reportingController").as_deref(),
            Some("reportingComponent")
        );
        assert_eq!(core_field("involvedObject.name"), None);
    }
}
