//! How far is a DaemonSet?

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{DaemonSet, DaemonSetStatus, Fit, Place};

pub(super) fn status(set: &DaemonSet, places: &BTreeMap<&str, Place<'_>>, now: Timestamp) -> DaemonSetStatus {
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        conditions: set.status.conditions.clone(),
        ..DaemonSetStatus::default()
    };
    for place in places.values() {
        let occupied = i32::from(!place.is_empty());
        if place.fit != Fit::Run {
            status.number_misscheduled += occupied;
            continue;
        }
        status.desired_number_scheduled += 1;
        status.current_number_scheduled += occupied;
        status.updated_number_scheduled += i32::from(!place.new.is_empty());
        status.number_ready += i32::from(place.staying().any(|pod| pod.ready()));
        status.number_available += i32::from(place.staying().any(|pod| set.is_available(pod, now)));
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    status
}
