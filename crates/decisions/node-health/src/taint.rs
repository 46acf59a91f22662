//! Which taints should a node carry, and which pods tolerate them for how long?

use std::time::Duration;

use pointsman_objects::names::{NOT_READY_TAINT as NOT_READY, UNREACHABLE_TAINT as UNREACHABLE};
use pointsman_objects::node::ConditionKind;
use pointsman_objects::taint::{Effect, Taint, Toleration};
use pointsman_objects::{ConditionStatus, Node};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";

/// The keys that this controller adds and removes with effect NoSchedule.
const BY_CONDITION: [&str; 7] = [
    NOT_READY,
    UNREACHABLE,
    UNSCHEDULABLE,
    MEMORY_PRESSURE,
    DISK_PRESSURE,
    PID_PRESSURE,
    NETWORK_UNAVAILABLE,
];

/// Taints to add to and to remove from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaintChange {
    pub add: Vec<Taint>,
    pub remove: Vec<Taint>,
}

impl TaintChange {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// The node's taints after the change. What is there already is not added again.
    pub fn apply(&self, taints: &[Taint]) -> Vec<Taint> {
        let kept = taints
            .iter()
            .filter(|taint| !self.remove.iter().any(|gone| gone.same_slot(taint)));
        let mut after: Vec<Taint> = kept.cloned().collect();
        for taint in &self.add {
            if !after.iter().any(|known| known.same_slot(taint)) {
                after.push(taint.clone());
            }
        }
        after
    }

    /// This change and then a later one, in one.
    pub fn then(mut self, later: Self) -> Self {
        let later_says = |taint: &Taint| {
            let mut said = later.add.iter().chain(&later.remove);
            said.any(|other| other.same_slot(taint))
        };
        self.add.retain(|taint| !later_says(taint));
        self.remove.retain(|taint| !later_says(taint));
        self.add.extend(later.add);
        self.remove.extend(later.remove);
        self
    }
}

/// The NoSchedule taints that follow from a node's conditions, compared to those it has.
pub fn no_schedule_change(node: &Node) -> TaintChange {
    let holds = |kind: ConditionKind| {
        node.condition(kind)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    };
    let wanted: Vec<&str> = [
        (NOT_READY, node.ready() == Some(ConditionStatus::False)),
        (UNREACHABLE, node.ready() == Some(ConditionStatus::Unknown)),
        (UNSCHEDULABLE, node.unschedulable),
        (MEMORY_PRESSURE, holds(ConditionKind::MemoryPressure)),
        (DISK_PRESSURE, holds(ConditionKind::DiskPressure)),
        (PID_PRESSURE, holds(ConditionKind::PidPressure)),
        (NETWORK_UNAVAILABLE, holds(ConditionKind::NetworkUnavailable)),
    ]
    .into_iter()
    .filter(|(_, wanted)| *wanted)
    .map(|(key, _)| key)
    .collect();
    let mut change = TaintChange::default();
    for key in BY_CONDITION {
        // The first report of a node removes what admission gave it; before that it stays.
        if key == NOT_READY && node.ready().is_none() {
            continue;
        }
        let taint = Taint::new(key, Effect::NoSchedule);
        let present = node.taints.iter().any(|known| known.same_slot(&taint));
        match (wanted.contains(&key), present) {
            (true, false) => change.add.push(taint),
            (false, true) => change.remove.push(taint),
            _ => {}
        }
    }
    change
}

/// The NoExecute taint that a node deserves by its Ready condition.
pub fn no_execute_key(ready: Option<ConditionStatus>) -> Option<&'static str> {
    match ready {
        Some(ConditionStatus::False) => Some(NOT_READY),
        Some(ConditionStatus::Unknown) => Some(UNREACHABLE),
        Some(ConditionStatus::True) | None => None,
    }
}

/// Whether the node carries the NoExecute taint of this key.
pub fn has_no_execute(node: &Node, key: &str) -> bool {
    node.taints
        .iter()
        .any(|taint| taint.effect == Effect::NoExecute && &*taint.key == key)
}

/// How long a pod may stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    Forever,
    /// For this long after the taint came; zero means it has to go now.
    For(Duration),
}

/// How long a pod with these tolerations may stay with these taints, of which only NoExecute count.
/// For each taint the first toleration that covers it decides.
pub fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut shortest: Option<Duration> = None;
    for taint in taints.iter().filter(|taint| taint.effect == Effect::NoExecute) {
        let Some(toleration) = tolerations.iter().find(|toleration| toleration.covers(taint)) else {
            return Stay::For(Duration::ZERO);
        };
        if let Some(seconds) = toleration.toleration_seconds {
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = Some(shortest.map_or(time, |known| known.min(time)));
        }
    }
    shortest.map_or(Stay::Forever, Stay::For)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(add: &[&str], remove: &[&str]) -> TaintChange {
        let taints = |keys: &[&str]| {
            keys.iter()
                .map(|key| Taint::new(key, Effect::NoExecute))
                .collect()
        };
        TaintChange {
            add: taints(add),
            remove: taints(remove),
        }
    }

    #[test]
    fn two_changes_in_one_do_what_both_do_in_turn() {
        let keys: [&[&str]; 4] = [&[], &["a"], &["b"], &["a", "b"]];
        let all = || {
            keys.iter()
                .flat_map(|add| keys.iter().map(move |remove| (add, remove)))
                .filter(|(add, remove)| !add.iter().any(|key| remove.contains(key)))
                .map(|(add, remove)| change(add, remove))
        };
        for start in keys {
            let start = change(start, &[]).add;
            for first in all() {
                for second in all() {
                    let mut in_turn = second.apply(&first.apply(&start));
                    let mut at_once = first.clone().then(second.clone()).apply(&start);
                    in_turn.sort();
                    at_once.sort();
                    assert_eq!(at_once, in_turn, "{start:?}: {first:?} then {second:?}");
                }
            }
        }
    }
}
