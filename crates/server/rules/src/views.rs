//! How does a kind look that shows what another one stores?
//!
//! `events.k8s.io` calls fields of core events by other names. The versions of a custom resource have the same fields.

use crate::event_views;
use crate::kind::Kind;
use crate::value::set;
use serde_json::Value;

/// Turns what is stored into what `kind` shows.
pub fn show(kind: &Kind, value: &mut Value) {
    match (kind.stored_as, kind.defined) {
        (None, _) => {}
        (Some(_), Some(_)) => set(value, &["apiVersion"], kind.api_version()),
        (Some(_), None) => event_views::from_core(value),
    }
}

/// Turns what `kind` shows into what is stored.
pub fn store(kind: &Kind, value: &mut Value) {
    match (kind.stored_as, kind.defined) {
        (None, _) => {}
        (Some(stored), Some(_)) => set(value, &["apiVersion"], stored.api_version()),
        (Some(_), None) => event_views::to_core(value),
    }
}

/// What the stored object calls a field that `kind` can be selected by.
pub fn stored_field(kind: &Kind, field: &str) -> String {
    match (kind.stored_as, kind.defined) {
        (Some(_), None) => event_views::core_field(field).unwrap_or_else(|| field.to_owned()),
        _ => field.to_owned(),
    }
}
