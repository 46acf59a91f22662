//! Which taints should a node carry, and which pods tolerate them for how long?

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::{ConditionKind, Node, Status};

/// Taint key of a node that says it is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint key of a node that says nothing.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

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

/// What a taint does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// New pods stay away.
    #[default]
    NoSchedule,
    /// New pods stay away if they can.
    PreferNoSchedule,
    /// New pods stay away and running ones leave.
    NoExecute,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Effect.
    pub effect: Effect,
}

impl Taint {
    /// A taint without a value.
    pub fn new(key: &str, effect: Effect) -> Self {
        Self {
            key: key.into(),
            value: String::new(),
            effect,
        }
    }

    /// Whether both are about the same key and effect, of which a node has at most one.
    pub fn same_slot(&self, other: &Taint) -> bool {
        self.key == other.key && self.effect == other.effect
    }
}

/// Taints to add to and to remove from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaintChange {
    /// To add.
    pub add: Vec<Taint>,
    /// To remove.
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
            .is_some_and(|condition| condition.status == Status::True)
    };
    let wanted: Vec<&str> = [
        (NOT_READY, node.ready() == Some(Status::False)),
        (UNREACHABLE, node.ready() == Some(Status::Unknown)),
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
pub fn no_execute_key(ready: Option<Status>) -> Option<&'static str> {
    match ready {
        Some(Status::False) => Some(NOT_READY),
        Some(Status::Unknown) => Some(UNREACHABLE),
        Some(Status::True) | None => None,
    }
}

/// Whether the node carries the NoExecute taint of this key.
pub fn has_no_execute(node: &Node, key: &str) -> bool {
    node.taints
        .iter()
        .any(|taint| taint.effect == Effect::NoExecute && taint.key == key)
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty means all.
    pub key: String,
    /// `Equal` (the default) or `Exists`.
    pub operator: String,
    /// Taint value.
    pub value: String,
    /// Taint effect; absent means all.
    pub effect: Option<Effect>,
    /// For how long; absent means for ever.
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Whether the toleration is about this taint.
    pub fn covers(&self, taint: &Taint) -> bool {
        let value = match self.operator.as_str() {
            "" | "Equal" => self.value == taint.value,
            "Exists" => true,
            _ => false,
        };
        value
            && (self.key.is_empty() || self.key == taint.key)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

/// How long a pod may stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// For ever.
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
