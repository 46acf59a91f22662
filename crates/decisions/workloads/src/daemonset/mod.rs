//! On which nodes should a DaemonSet have a pod, and which of its pods go?
//!
//! One call is one step, as for Deployments. A node whose pod is on its way out gets the next one when it
//! is gone, so that two never fight over a port of the node; with `maxSurge` the new one comes first.
//!
//! Laws, tested in `tests/daemons.rs`: every node that fits ends up with exactly one pod of the newest
//! template, and no update takes more pods away at once than `maxUnavailable` says.

mod fit;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::template::DAEMON_HASH_LABEL;
use pointsman_objects::workload::DaemonSetStatus;
use pointsman_objects::{DaemonSet, Node, Pod};

use crate::ownership::{Claim, claim};

pub use fit::{Fit, target};

/// Most pods created or deleted in one pass (upstream's burst).
const BURST: usize = 250;
/// A pod that ended is replaced this long after it was created at the earliest, so that one that always
/// fails does not keep everybody busy.
const PAUSE: Duration = Duration::from_secs(10);

/// What to do for a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonSetPlan {
    /// Pods to adopt, by name and uid.
    pub adopt: Vec<(String, String)>,
    /// Pods to let go, by name and uid.
    pub release: Vec<(String, String)>,
    /// Nodes that get a pod.
    pub create: Vec<String>,
    /// Pods to delete, by name and uid.
    pub delete: Vec<(String, String)>,
    /// The status to write, if it differs from the one there is.
    pub status: Option<DaemonSetStatus>,
    /// When the answer may change without an event.
    pub look_again: Option<Moment>,
}

impl DaemonSetPlan {
    /// Whether there is nothing to do now.
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                look_again: self.look_again,
                ..Self::default()
            }
    }
}

/// Decides the next step for one DaemonSet.
///
/// `pods` are those of its namespace that it controls or selects, `nodes` all there are.
pub fn plan(set: &DaemonSet, pods: &[&Pod], nodes: &[&Node], now: Moment) -> DaemonSetPlan {
    let mut plan = DaemonSetPlan::default();
    let sample = set.sample_pod();
    let mut places: BTreeMap<&str, Place<'_>> = nodes
        .iter()
        .map(|node| (&*node.metadata.name, Place::new(fit::fit(&sample, node))))
        .collect();
    let hash = set.spec.template.hash(0);
    for pod in pods.iter().copied() {
        let matches = set.spec.selector.matches(&pod.metadata.labels);
        let owners = &pod.metadata.owner_references;
        let deleting = set.metadata.is_terminating();
        match claim(&set.metadata.uid, deleting, owners, matches, pod.is_terminating()) {
            Claim::Owned => match target(pod).and_then(|node| places.get_mut(node)) {
                Some(place) => place.put(pod, &hash),
                // Its node is gone. If it was there already, garbage collection knows when to remove it.
                None if pod.node_name.as_deref().is_none() && pod.is_active() => {
                    plan.delete.push(identity(pod))
                }
                None => {}
            },
            Claim::Adopt => plan.adopt.push(identity(pod)),
            Claim::Release => plan.release.push(identity(pod)),
            Claim::Other => {}
        }
    }
    let status = status::status(set, &places, now);
    plan.look_again = next_look(set, &places, now);
    if set.metadata.is_terminating() {
        plan.delete.clear();
    } else if plan.adopt.is_empty() {
        // A pod that is about to be adopted may be what a node seems to miss.
        settle(&places, now, &mut plan);
        if set.spec.update_strategy.r#type != "OnDelete" {
            update(set, &places, now, &mut plan);
        }
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan.status = (status != set.status).then_some(status);
    plan
}

/// A node and the set's pods on it.
struct Place<'a> {
    fit: Fit,
    /// Of the newest template, oldest first.
    new: Vec<&'a Pod>,
    /// Of others, oldest first.
    old: Vec<&'a Pod>,
    /// At their end.
    finished: Vec<&'a Pod>,
    /// On their way out.
    leaving: usize,
}

impl<'a> Place<'a> {
    fn new(fit: Fit) -> Self {
        Self {
            fit,
            new: Vec::new(),
            old: Vec::new(),
            finished: Vec::new(),
            leaving: 0,
        }
    }

    fn put(&mut self, pod: &'a Pod, hash: &str) {
        if pod.is_terminating() {
            self.leaving += 1;
        } else if pod.is_finished() {
            self.finished.push(pod);
        } else {
            let is_new = pod.metadata.labels.get(DAEMON_HASH_LABEL) == Some(hash);
            let pods = if is_new { &mut self.new } else { &mut self.old };
            pods.push(pod);
            pods.sort_by_key(|pod| (pod.metadata.created, &*pod.metadata.name));
        }
    }

    fn staying(&self) -> impl Iterator<Item = &'a Pod> + '_ {
        self.new.iter().chain(&self.old).copied()
    }

    fn is_empty(&self) -> bool {
        self.leaving == 0 && self.finished.is_empty() && self.staying().next().is_none()
    }
}

/// Every node that fits gets a pod, and no node has more than one of each template.
fn settle(places: &BTreeMap<&str, Place<'_>>, now: Moment, plan: &mut DaemonSetPlan) {
    for (node, place) in places {
        match place.fit {
            Fit::Run if place.is_empty() => plan.create.push((*node).to_owned()),
            Fit::Run => {
                let ended = place.finished.iter().filter(|pod| replaceable_at(pod) <= now);
                let many = place.new.iter().skip(1).chain(place.old.iter().skip(1));
                plan.delete.extend(ended.chain(many).map(|pod| identity(pod)));
            }
            Fit::Stay => {}
            Fit::Leave => plan.delete.extend(
                place
                    .staying()
                    .chain(place.finished.iter().copied())
                    .map(identity),
            ),
        }
    }
}

/// Pods of older templates make room for new ones, as many at once as may be missing.
fn update(set: &DaemonSet, places: &BTreeMap<&str, Place<'_>>, now: Moment, plan: &mut DaemonSetPlan) {
    let running = || places.iter().filter(|(_, place)| place.fit == Fit::Run);
    let desired = i32::try_from(running().count()).unwrap_or(i32::MAX);
    let bounds = &set.spec.update_strategy.rolling_update;
    let available = |pod: &&Pod| is_available(set, pod, now);
    let surge = bounds.max_surge.resolve(desired, true);
    if surge > 0 {
        let both = running().filter(|(_, place)| !place.new.is_empty() && !place.old.is_empty());
        let mut room = usize::try_from(surge).unwrap_or(0).saturating_sub(both.count());
        for (node, place) in running() {
            let Some(old) = place.old.first().copied() else {
                continue;
            };
            let replaced = place.new.iter().any(available);
            if replaced || (place.new.is_empty() && !available(&old)) {
                plan.delete.push(identity(old));
            } else if place.new.is_empty() && room > 0 {
                room -= 1;
                plan.create.push((*node).to_owned());
            }
        }
        return;
    }
    let missing = running().filter(|(_, place)| !place.staying().any(|pod| available(&pod)));
    let bound = bounds.max_unavailable.resolve(desired, true).max(1);
    let mut room = usize::try_from(bound)
        .unwrap_or(0)
        .saturating_sub(missing.count());
    for (_, place) in running() {
        let Some(old) = place.old.first().copied() else {
            continue;
        };
        // One that serves nobody, or is replaced already, can go at once.
        if !place.new.is_empty() || !available(&old) {
            plan.delete.push(identity(old));
        } else if room > 0 {
            room -= 1;
            plan.delete.push(identity(old));
        }
    }
}

fn is_available(set: &DaemonSet, pod: &Pod, now: Moment) -> bool {
    pod.available_at(set.min_ready()).is_some_and(|at| at <= now)
}

fn replaceable_at(pod: &Pod) -> Moment {
    pod.metadata.created.unwrap_or(Moment(i64::MIN)).after(PAUSE)
}

fn next_look(set: &DaemonSet, places: &BTreeMap<&str, Place<'_>>, now: Moment) -> Option<Moment> {
    let pods = places.values().flat_map(Place::staying);
    let available = pods.filter_map(|pod| pod.available_at(set.min_ready()));
    let ended = places.values().flat_map(|place| &place.finished);
    available
        .chain(ended.map(|pod| replaceable_at(pod)))
        .filter(|at| *at > now)
        .min()
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.to_string(), pod.metadata.uid.to_string())
}
