//! Is there room for a pod on this node?
//!
//! What the pods of a node request is never more than the node has, as with the kubelet. A pod that does not fit waits
//! until others have gone, with an event that says what is missing.

use crate::host::Host;
use crate::node::LEAST_MEMORY;
use pointsman_model::Quantity;
use pointsman_objects::pod_manifest::{Container, PodManifest, RestartPolicy};

/// Amounts of what pods request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    cpu_millis: u64,
    memory_bytes: u64,
}

impl Room {
    /// What a machine has for its pods, as its Node says.
    pub(crate) fn of_host(host: &Host) -> Self {
        Self {
            cpu_millis: host.cpus as u64 * 1000,
            memory_bytes: host.memory_total.saturating_sub(LEAST_MEMORY),
        }
    }

    /// What a pod requests: all that runs at once, or one init container if that is more.
    pub(crate) fn requested(pod: &PodManifest) -> Self {
        let is_sidecar = |container: &&Container| container.restart_policy == Some(RestartPolicy::Always);
        let init = pod.spec.init_containers.iter();
        let beside: Self = init.clone().filter(is_sidecar).map(Self::of).sum();
        let mains: Self = pod.spec.containers.iter().map(Self::of).sum();
        let alone = init.filter(|container| !is_sidecar(container)).map(Self::of);
        alone.fold([mains, beside].into_iter().sum(), |most, one| {
            let one: Self = [one, beside].into_iter().sum();
            Self {
                cpu_millis: most.cpu_millis.max(one.cpu_millis),
                memory_bytes: most.memory_bytes.max(one.memory_bytes),
            }
        })
    }

    fn of(container: &Container) -> Self {
        // A limit without a request is one; the API server writes it so.
        let amount = |name: &str| {
            let resources = &container.resources;
            resources
                .requests
                .get(name)
                .or(resources.limits.get(name))
                .copied()
        };
        Self {
            cpu_millis: amount("cpu").and_then(Quantity::to_millis).unwrap_or(0),
            memory_bytes: amount("memory").and_then(Quantity::to_units).unwrap_or(0),
        }
    }

    /// What is missing for a pod that requests so much, in the kubelet's words, where others have `taken` so much.
    pub(crate) fn missing_for(self, wanted: Self, taken: Self) -> Option<String> {
        let each = [
            (
                "cpu",
                "thousandths of a CPU",
                wanted.cpu_millis,
                taken.cpu_millis,
                self.cpu_millis,
            ),
            (
                "memory",
                "bytes",
                wanted.memory_bytes,
                taken.memory_bytes,
                self.memory_bytes,
            ),
        ];
        let missing = each
            .into_iter()
            .find(|(_, _, wanted, taken, all)| *wanted > 0 && wanted.saturating_add(*taken) > *all);
        missing.map(|(name, unit, wanted, taken, all)| {
            format!("Node didn't have enough resource: {name}, requested: {wanted} {unit}, used: {taken}, capacity: {all}")
        })
    }
}

impl std::iter::Sum for Room {
    fn sum<I: Iterator<Item = Self>>(rooms: I) -> Self {
        rooms.fold(Self::default(), |sum, one| Self {
            cpu_millis: sum.cpu_millis.saturating_add(one.cpu_millis),
            memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn room(cpu_millis: u64, memory_bytes: u64) -> Room {
        Room {
            cpu_millis,
            memory_bytes,
        }
    }

    #[test]
    fn a_pod_requests_what_runs_at_once() {
        let asks = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Ki"}});
        let pod: PodManifest = serde_json::from_value(json!({"spec": {
            "initContainers": [
                {"name": "once", "resources": asks("900m")},
                {"name": "beside", "restartPolicy": "Always", "resources": asks("200m")},
            ],
            "containers": [
                {"name": "a", "resources": asks("300m")},
                {"name": "b", "resources": {"limits": {"cpu": "100m"}}},
                {"name": "c"},
            ],
        }}))
        .unwrap();
        assert_eq!(Room::requested(&pod), room(1100, 2048));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let node = room(2000, 1000);
        assert_eq!(node.missing_for(room(500, 100), room(1500, 900)), None);
        assert_eq!(
            node.missing_for(room(0, 0), room(9000, 9000)),
            None,
            "who wants nothing fits"
        );
        let cpu = node.missing_for(room(501, 0), room(1500, 0)).unwrap();
        assert!(cpu.contains("enough resource: cpu"), "{cpu}");
        let memory = node.missing_for(room(1, 101), room(0, 900)).unwrap();
        assert!(
            memory.contains("memory, requested: 101 bytes, used: 900, capacity: 1000"),
            "{memory}"
        );
    }
}
