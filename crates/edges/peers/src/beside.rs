//! How does a process give its node's opinions beside an agent that gives none?
//!
//! It follows all Nodes by itself: where they are asked, and how often its own reports, since patience with peers
//! follows the latency profile. A kubelet does not announce that, so whoever changes its period annotates the Node.

use crate::ask::{Places, ask, place, placed};
use crate::lease;
use crate::metrics::Metrics;
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_model::duration;
use pointsman_node_health::peers::Thresholds;
use pointsman_objects::Node;
use pointsman_objects::names::REPORT_PERIOD_ANNOTATION;
use tokio::sync::watch;

/// Asks the peers of `node` and keeps its Lease in `namespace`. Ends only if this process is not able to ask.
pub async fn give_opinions(client: Client, namespace: String, node: String, metrics: Metrics) {
    let (places, known) = watch::channel(Places::new());
    let (thresholds, patience) = watch::channel(Thresholds::default());
    let (opinions, given) = watch::channel(None);
    let asking = ask(node.as_str().into(), known, patience, opinions, metrics);
    let following = follow(client.clone(), &node, &places, &thresholds);
    tokio::select! {
        () = asking => {}
        () = following => {}
        () = lease::keep(client, namespace, node.clone(), given) => {}
    }
}

async fn follow(
    client: Client,
    own: &str,
    places: &watch::Sender<Places>,
    thresholds: &watch::Sender<Thresholds>,
) {
    let mut nodes = Watcher::<Node>::new(client, Scope::all(Resource::NODES));
    let mut synced = false;
    loop {
        match nodes.next().await {
            Event::Init => synced = false,
            Event::Synced(_) => {
                synced = true;
                places.send_modify(|_| {});
            }
            Event::Applied { key, object, .. } => {
                placed(places, key.name(), place(&object), synced);
                if key.name() == own {
                    let now = patience(&object);
                    thresholds.send_if_modified(|before| std::mem::replace(before, now) != now);
                }
            }
            Event::Deleted { key, .. } => placed(places, key.name(), None, synced),
        }
    }
}

/// As patient as the node reports; what makes no sense is as good as nothing.
fn patience(node: &Node) -> Thresholds {
    let announced = node.metadata.annotations.get(REPORT_PERIOD_ANNOTATION);
    let period = announced.and_then(duration::parse);
    period.map_or_else(Thresholds::default, Thresholds::of_report_period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn patience_follows_what_the_node_announces() {
        let of = |annotations: serde_json::Value| {
            let node = json!({ "metadata": { "name": "n1", "annotations": annotations } });
            patience(&serde_json::from_value(node).unwrap())
        };
        let silence = |text: &str| of(json!({ REPORT_PERIOD_ANNOTATION: text })).silence;
        assert_eq!(of(json!({})), Thresholds::default());
        assert_eq!(silence("10s"), Duration::from_millis(550));
        assert_eq!(silence("20s"), Duration::from_millis(1100));
        assert_eq!(silence("1m0s"), Duration::from_millis(2200));
        assert_eq!(silence("soon"), Duration::from_millis(550));
    }
}
