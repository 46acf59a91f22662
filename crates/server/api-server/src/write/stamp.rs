//! When was a Service written?
//!
//! The latency of a change counts from its write, and metadata know only the creation, in whole seconds. So
//! every write of a Service carries its time in microseconds, as an annotation that clients can neither set
//! nor lose. A removal leaves no version to carry it: its time goes into a key of its own, in the same
//! transaction, and watchers find it in the last state that they are shown.

use crate::keys;
use bytes::Bytes;
use jiff::Timestamp;
use pointsman_objects::names::CHANGE_TIME_ANNOTATION;
use pointsman_rules::value::{at, remove, set};
use pointsman_rules::{Kind, kinds};
use pointsman_store::{Event, Op, Revision, Transaction};
use serde_json::Value;
use std::collections::HashMap;

const PATH: &[&str] = &["metadata", "annotations", CHANGE_TIME_ANNOTATION];

fn stamped(kind: &Kind) -> bool {
    kind == &kinds::SERVICE
}

fn text(now: Timestamp) -> String {
    format!("{now:.6}")
}

/// Gives the next version the stamp of the present one, whatever the client sent.
pub fn keep(kind: &Kind, new: &mut Value, old: &Value) {
    if !stamped(kind) {
        return;
    }
    match at(old, PATH) {
        Some(stamp) => set(new, PATH, stamp.clone()),
        None => drop(remove(new, PATH)),
    }
}

/// Dates the version that is to be stored.
pub fn written(kind: &Kind, object: &mut Value, now: Timestamp) {
    if stamped(kind) {
        set(object, PATH, text(now));
    }
}

/// Dates the removal that the transaction holds.
pub fn removal(kind: &Kind, transaction: &mut Transaction, now: Timestamp) {
    if stamped(kind) {
        transaction
            .ops
            .push(Op::Put(keys::REMOVED.into(), text(now).into()));
    }
}

/// When Services were removed, by the revision of the removal.
pub type Removals = HashMap<Revision, Bytes>;

/// The times of the removals among these events.
pub fn removals(events: &[Event]) -> Removals {
    let dated = events.iter().filter_map(|event| match event {
        Event::Put { entry, .. } if &*entry.key == keys::REMOVED => {
            Some((entry.revision, entry.value.clone()))
        }
        _ => None,
    });
    dated.collect()
}

/// The last state of a removed object, with the time of its removal.
pub fn last_state(kind: &Kind, stored: Bytes, removed: Option<&Bytes>) -> Bytes {
    let removed = removed
        .filter(|_| stamped(kind))
        .and_then(|at| std::str::from_utf8(at).ok());
    let Some(removed) = removed else { return stored };
    // What cannot be read is reported by whoever reads it next.
    let Ok(mut object) = serde_json::from_slice::<Value>(&stored) else {
        return stored;
    };
    set(&mut object, PATH, removed);
    crate::stored::encode(kind, &object)
}
