//! From which nodes is traffic withheld, and by whose word?
//!
//! Slices only say that endpoints are out of use. The controllers tell on the Node that its peers do not reach it, by events,
//! which last an hour and which not everybody may read: what cannot be found out is left out.

use std::collections::BTreeSet;
use std::time::Duration;

use pointsman_api_client::{Resource, Scope, Source, connect};
use pointsman_objects::Event;
use pointsman_protocol::peers::{RESTORED, WITHDRAWN};

use crate::explain::Explanation;

/// How long an answer that is complete without this waits for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Says of the nodes of endpoints that are out of use whether their peers do not reach them.
pub async fn withdrawn(source: &Source, answer: &Explanation) -> Vec<String> {
    let nodes = suspects(answer);
    if nodes.is_empty() {
        return Vec::new();
    }
    let events = tokio::time::timeout(PATIENCE, read(source)).await;
    notes(&nodes, &events.ok().flatten().unwrap_or_default())
}

async fn read(source: &Source) -> Option<Vec<Event>> {
    let client = connect::connect(source, "pointsman-explain").await.ok()?;
    let mut events = Vec::new();
    for reason in [WITHDRAWN, RESTORED] {
        let mut scope = Scope::all(Resource::EVENTS).fields(&format!("reason={reason}"));
        // Where events about objects without a namespace are.
        scope.namespace = Some("default".to_owned());
        events.extend(client.list::<Event>(&scope).await.ok()?);
    }
    Some(events)
}

/// Nodes with endpoints that look as those of a withdrawn node do.
fn suspects(answer: &Explanation) -> BTreeSet<&str> {
    let endpoints = answer.ports.iter().flat_map(|port| &port.endpoints);
    let out = endpoints.filter(|it| !it.ready && !it.serving && !it.terminating);
    out.filter_map(|it| it.node.as_deref()).collect()
}

fn notes(nodes: &BTreeSet<&str>, events: &[Event]) -> Vec<String> {
    let last = |node: &&str| {
        let about = events
            .iter()
            .filter(|event| &*event.involved_object.kind == "Node" && *event.involved_object.name == **node);
        // Times are in whole seconds. Of two in one the withdrawal is later, as the endpoints are out of use now.
        about.max_by_key(|event| (event.last_timestamp, &*event.reason == WITHDRAWN))
    };
    let withdrawn = nodes.iter().filter_map(last);
    withdrawn
        .filter(|event| &*event.reason == WITHDRAWN)
        .map(|event| match event.last_timestamp {
            Some(at) => format!("{} (event {WITHDRAWN} of {at})", event.message),
            None => format!("{} (event {WITHDRAWN})", event.message),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_event_of_a_node_counts() {
        let event = |node: &str, reason: &str, second: u8| -> Event {
            let object = json!({ "involvedObject": { "kind": "Node", "name": node }, "reason": reason,
                "message": format!("{node} at {second}"), "lastTimestamp": format!("2026-01-01T00:00:0{second}Z") });
            serde_json::from_value(object).unwrap()
        };
        let events = [
            event("n1", WITHDRAWN, 1),
            event("n1", RESTORED, 2),
            event("n2", RESTORED, 3),
            event("n2", WITHDRAWN, 3),
            event("n3", WITHDRAWN, 4),
        ];
        assert_eq!(
            notes(&BTreeSet::from(["n1", "n2", "n4"]), &events),
            ["n2 at 3 (event TrafficWithdrawn of 2026-01-01T00:00:03Z)"]
        );
    }
}
