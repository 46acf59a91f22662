//! Which quality of service do a pod's requests and limits add up to?

use crate::value::{at, list_at, map_at, quantity};
use pointsman_model::Quantity;
use serde_json::{Map, Value};

/// `Guaranteed` if every container limits cpu and memory to exactly what it requests, `BestEffort`
/// if none asks for either, `Burstable` otherwise.
pub fn class(spec: &Value) -> &'static str {
    let mut whole = None;
    for container in list_at(spec, &["initContainers"])
        .iter()
        .chain(list_at(spec, &["containers"]))
    {
        let one = class_of(at(container, &["resources"]));
        match whole {
            None => whole = Some(one),
            Some(other) if other == one => {}
            Some(_) => return "Burstable",
        }
    }
    whole.unwrap_or("BestEffort")
}

fn class_of(resources: Option<&Value>) -> &'static str {
    let Some(resources) = resources else {
        return "BestEffort";
    };
    let nothing =
        ["limits", "requests"].map(|half| map_at(resources, &[half]).is_none_or(Map::is_empty)) == [true; 2];
    if nothing {
        return "BestEffort";
    }
    let [cpu, memory] = ["cpu", "memory"].map(|resource| {
        let [request, limit] = ["requests", "limits"].map(|half| {
            at(resources, &[half, resource])
                .and_then(quantity)
                .unwrap_or(Quantity::ZERO)
        });
        match request == limit {
            false => "Burstable",
            true if request == Quantity::ZERO => "BestEffort",
            true => "Guaranteed",
        }
    });
    if cpu == memory { cpu } else { "Burstable" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_follow_requests_and_limits() {
        let both =
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}});
        let cpu = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
        for (containers, expected) in [
            (json!([]), "BestEffort"),
            (json!([{"resources": {}}]), "BestEffort"),
            (json!([{"resources": both}]), "Guaranteed"),
            (json!([{"resources": both}, {}]), "Burstable"),
            (json!([{"resources": cpu}]), "Burstable"),
            (
                json!([{"resources": {"requests": {"memory": "1Mi"}}}]),
                "Burstable",
            ),
            (
                json!([{"resources": {"limits": {"example.com/gpu": "1"}}}]),
                "BestEffort",
            ),
        ] {
            let spec = json!({"containers": containers});
            assert_eq!(class(&spec), expected, "{spec}");
        }
    }
}
