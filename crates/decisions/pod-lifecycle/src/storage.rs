//! When does a pod have more on disk than it may?
//!
//! Limits of `ephemeral-storage` and sizes of `emptyDir`s on disk, looked at in the kubelet's order and reported in its
//! words.

use crate::action::PodEvent;
use crate::ending::Why;
use crate::machine::Machine;
use crate::status::EVICTED;
use pointsman_objects::pod_manifest::{Container, PodSpec, RestartPolicy, VolumeKind};
use std::collections::BTreeMap;

/// What a pod has on disk, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Of each `emptyDir` on disk.
    pub volumes: BTreeMap<String, u64>,
    /// Of each container, besides volumes: its logs and what it wrote.
    pub containers: BTreeMap<String, u64>,
}

/// Pods from this priority on stay whatever they use (`system-cluster-critical`).
const CRITICAL: i64 = 2_000_000_000;

impl Machine {
    /// Whether somebody has to look how much the pod has on disk.
    pub fn has_disk_limits(&self) -> bool {
        self.sandbox_is_up() && self.ending.is_none() && is_limited(&self.spec)
    }

    pub(crate) fn is_evicted(&self) -> bool {
        matches!(self.memory.verdict, Some((EVICTED, _)))
    }

    pub(crate) fn disk_used(&mut self, used: &DiskUse) -> Option<PodEvent> {
        let message = excess(&self.spec, used).filter(|_| self.ending.is_none())?;
        self.memory.verdict = Some((EVICTED, message.clone()));
        self.begin_ending(Why::Evicted);
        Some(PodEvent::warning(EVICTED, message))
    }
}

/// Whether anything limits what the pod has on disk. Others need not be looked at.
fn is_limited(spec: &PodSpec) -> bool {
    let mut containers = spec.init_containers.iter().chain(&spec.containers);
    let is_limited = containers.any(|container| limit(container).is_some()) || sizes(spec).next().is_some();
    is_limited && spec.priority < CRITICAL
}

/// What is too much, if anything is.
fn excess(spec: &PodSpec, used: &DiskUse) -> Option<String> {
    if let Some((name, most)) = sizes(spec).find(|(name, most)| used.volumes.get(*name) > Some(most)) {
        let most = shown(most);
        return Some(format!(
            "Usage of EmptyDir volume {name:?} exceeds the limit {most:?}. "
        ));
    }
    let all: u64 = used.volumes.values().chain(used.containers.values()).sum();
    if let Some(most) = total(spec).filter(|most| all > *most) {
        let most = shown(most);
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {most}. "
        ));
    }
    let sidecars = spec.init_containers.iter().filter(|init| is_sidecar(init));
    let mut lasting = spec.containers.iter().chain(sidecars);
    let (name, most) = lasting.find_map(|container| {
        let most = limit(container).filter(|most| *most > 0)?;
        let used = used.containers.get(&container.name)?;
        (*used > most).then_some((&container.name, shown(most)))
    })?;
    Some(format!(
        "Container {name} exceeded its local ephemeral storage limit {most:?}. "
    ))
}

fn limit(container: &Container) -> Option<u64> {
    container.resource("limits.ephemeral-storage")
}

fn is_sidecar(init: &Container) -> bool {
    init.restart_policy == Some(RestartPolicy::Always)
}

/// The sizes of `emptyDir`s on disk; the kernel sees to those in memory.
fn sizes(spec: &PodSpec) -> impl Iterator<Item = (&String, u64)> {
    spec.volumes.iter().filter_map(|volume| match &volume.kind {
        VolumeKind::EmptyDir(scratch) if scratch.medium != "Memory" => {
            let most = scratch.size_limit?.to_units().filter(|most| *most > 0)?;
            Some((&volume.name, most))
        }
        _ => None,
    })
}

/// What all containers together may have, if any has a limit: those that run at once, or one init container beside the
/// sidecars before it if that is more.
fn total(spec: &PodSpec) -> Option<u64> {
    let plus = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    };
    let (mut beside, mut most) = (None, None);
    for init in &spec.init_containers {
        let with = plus(beside, limit(init));
        most = most.max(with);
        if is_sidecar(init) {
            beside = with;
        }
    }
    let mains = spec.containers.iter().map(limit).fold(beside, plus);
    most.max(mains)
}

/// An amount as people write it.
fn shown(bytes: u64) -> String {
    let scaled = |step: u64, names: &[&str]| {
        let (mut amount, mut name) = (bytes, "");
        for larger in names {
            if amount == 0 || !amount.is_multiple_of(step) {
                break;
            }
            (amount, name) = (amount / step, larger);
        }
        (!name.is_empty()).then(|| format!("{amount}{name}"))
    };
    scaled(1024, &["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
        .or_else(|| scaled(1000, &["k", "M", "G", "T", "P", "E"]))
        .unwrap_or_else(|| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn limited(name: &str, limit: Option<&str>) -> Value {
        let limits = limit.map_or(json!({}), |limit| json!({"ephemeral-storage": limit}));
        json!({"name": name, "resources": {"limits": limits}})
    }

    fn spec(init: Value, containers: &[Value], volumes: Value) -> PodSpec {
        let spec = json!({"initContainers": init, "containers": containers, "volumes": volumes});
        serde_json::from_value(spec).unwrap()
    }

    fn used(volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> DiskUse {
        let map = |list: &[(&str, u64)]| list.iter().map(|(name, size)| ((*name).into(), *size)).collect();
        DiskUse {
            volumes: map(volumes),
            containers: map(containers),
        }
    }

    #[test]
    fn what_is_too_much_is_said_in_upstreams_words() {
        let volumes = json!([
            {"name": "data", "emptyDir": {"sizeLimit": "2Mi"}},
            {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}},
        ]);
        let two = [limited("a", Some("5Mi")), limited("b", Some("1500k"))];
        let pod = spec(json!([]), &two, volumes);
        assert!(is_limited(&pod));
        let said = |volumes: &[(&str, u64)], containers: &[(&str, u64)]| {
            excess(&pod, &used(volumes, containers)).unwrap_or_default()
        };
        let (mi, a) = (1 << 20, 5 << 20);
        assert_eq!(
            said(&[("data", 2 * mi), ("ram", 9 * mi)], &[]),
            "Pod ephemeral local storage usage exceeds the total limit of containers 6742880. "
        );
        assert_eq!(said(&[("data", 2 * mi)], &[("a", mi), ("b", mi)]), "");
        assert_eq!(
            said(&[("data", 2 * mi + 1)], &[("a", 2 * a)]),
            "Usage of EmptyDir volume \"data\" exceeds the limit \"2Mi\". "
        );
        assert_eq!(said(&[], &[("a", a), ("b", 1_500_000)]), "");
        assert_eq!(
            said(&[], &[("a", a + 1)]),
            "Container a exceeded its local ephemeral storage limit \"5Mi\". "
        );
        assert_eq!(
            said(&[], &[("b", 1_500_001)]),
            "Container b exceeded its local ephemeral storage limit \"1500k\". "
        );
    }

    #[test]
    fn containers_without_a_limit_count_where_another_has_one() {
        let pod = spec(
            json!([]),
            &[limited("a", Some("5Mi")), limited("b", None)],
            json!([]),
        );
        assert_eq!(
            excess(&pod, &used(&[("any", 1)], &[("b", 5 << 20)])).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. "
        );
        let free = spec(
            json!([]),
            &[limited("a", None)],
            json!([{"name": "v", "emptyDir": {}}]),
        );
        assert!(!is_limited(&free));
        assert_eq!(excess(&free, &used(&[("v", u64::MAX / 2)], &[("a", 1)])), None);
        let critical = PodSpec {
            priority: CRITICAL,
            ..pod
        };
        assert!(!is_limited(&critical));
    }

    #[test]
    fn init_containers_may_have_more_than_those_that_follow() {
        let mut side = limited("side", Some("1Mi"));
        side["restartPolicy"] = json!("Always");
        let main = [limited("a", Some("2Mi"))];
        let of = |init: Value| total(&spec(init, &main, json!([])));
        assert_eq!(of(json!([])), Some(2 << 20));
        assert_eq!(of(json!([side])), Some(3 << 20));
        assert_eq!(of(json!([side, limited("i", Some("4Mi"))])), Some(5 << 20));
        assert_eq!(of(json!([limited("i", Some("4Mi")), side])), Some(4 << 20));
        assert_eq!(
            total(&spec(
                json!([limited("i", None)]),
                &[limited("a", None)],
                json!([])
            )),
            None
        );
    }

    proptest! {
        #[test]
        fn a_shown_amount_is_that_amount(bytes in any::<u64>(), zeros in 0..60_u32) {
            for bytes in [bytes, bytes >> zeros << zeros, bytes / 1_000_000 * 1_000_000] {
                let read = pointsman_model::Quantity::parse(&shown(bytes)).unwrap();
                prop_assert_eq!(read.to_units(), Some(bytes));
            }
        }

        #[test]
        fn who_uses_less_is_not_the_one_to_go(limit in 1..1_u64 << 40, share in 0..=100_u64) {
            let pod = spec(json!([]), &[limited("a", Some(&limit.to_string()))], json!([]));
            let (part, over) = (limit / 100 * share, limit + 1);
            prop_assert_eq!(excess(&pod, &used(&[("v", limit - part)], &[("a", part)])), None);
            prop_assert!(excess(&pod, &used(&[], &[("a", over)])).is_some());
        }
    }
}
