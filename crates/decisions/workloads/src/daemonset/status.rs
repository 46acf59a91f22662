//! How far is a DaemonSet?

use std::collections::BTreeMap;

use pointsman_model::Moment;
use pointsman_objects::DaemonSet;
use pointsman_objects::workload::DaemonSetStatus;

use super::{Fit, Place, is_available};

pub(super) fn status(set: &DaemonSet, places: &BTreeMap<&str, Place<'_>>, now: Moment) -> DaemonSetStatus {
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
        status.number_ready += i32::from(place.staying().any(|pod| pod.is_ready()));
        status.number_available += i32::from(place.staying().any(|pod| is_available(set, pod, now)));
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    status
}
