//! What does the page draw of the last two hours?

use pointsman_model::Moment;
use pointsman_sli::history::{Incident, STEP};
use serde_json::{Value, json};

use super::time;
use crate::owner::Owner;

/// Points as `[time, upper end of the SLI in seconds, changes]`, and incidents, newest first.
pub(crate) fn show(owner: &Owner, now: Moment) -> Value {
    let points = owner.history.points().map(|point| {
        let high = point.p99.map(|p99| p99.high.unwrap_or(p99.low).as_secs_f64());
        json!([time(point.at), high, point.changes])
    });
    json!({
        "time": time(now),
        "stepSeconds": STEP.as_secs(),
        "objectiveSeconds": owner.measure.day().objective().as_secs_f64(),
        "points": points.collect::<Vec<_>>(),
        "incidents": owner.history.incidents().rev().map(incident).collect::<Vec<_>>(),
    })
}

fn incident(incident: &Incident) -> Value {
    json!({
        "from": time(incident.from),
        "to": incident.to.map(time),
        "node": incident.node,
        "stage": incident.stage.as_str(),
        "nodes": incident.nodes,
        "changes": incident.changes,
        "services": incident.services,
        "waiting": incident.waiting,
    })
}
