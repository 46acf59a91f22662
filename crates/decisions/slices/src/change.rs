//! Did a pod change in a way that its endpoints show, and when did that happen?

use pointsman_model::{Began, Moment};
use pointsman_objects::Pod;

/// The time of the oldest change between two versions of a pod that endpoints show, or `None`.
///
/// A readiness change has the time of the Ready condition, as the SLI defines it. That of a kubelet and
/// the start of a deletion are known to the second only, so the latest moment is taken that this allows
/// ([`Began::of`]). Everything else (an address, a removal) is dated `now`, the time our watch delivered it. The
/// answer is never later than `now` and never before a change that the old version already showed.
pub fn endpoint_change(old: Option<&Pod>, new: Option<&Pod>, now: Moment) -> Option<Moment> {
    let old_endpoint = old.filter(|pod| pod.has_endpoint());
    let new_endpoint = new.filter(|pod| pod.has_endpoint());
    match (old_endpoint, new_endpoint) {
        (None, None) => None,
        (None, Some(pod)) if pod.is_ready() => Some(readiness_time(old, pod, now)),
        (Some(before), None) => {
            let became_unready = new.filter(|pod| {
                pod.metadata.uid == before.metadata.uid && before.is_ready() && !pod.is_ready()
            });
            Some(became_unready.map_or(now, |pod| readiness_time(old, pod, now)))
        }
        (None, Some(_)) => Some(now),
        (Some(before), Some(after)) if before.metadata.uid != after.metadata.uid => Some(now),
        (Some(before), Some(after)) => change_between(before, after, now),
    }
}

fn change_between(before: &Pod, after: &Pod, now: Moment) -> Option<Moment> {
    let readiness = (before.is_ready() != after.is_ready()).then(|| readiness_time(Some(before), after, now));
    let deletion = after
        .metadata
        .deletion_requested()
        .filter(|_| !before.is_terminating())
        .map(|requested| Began::of(Some(requested), now).at);
    let other = before.is_terminating() && !after.is_terminating()
        || before.ips != after.ips
        || before.node_name != after.node_name
        || before.hostname != after.hostname
        || before.common.subdomain != after.common.subdomain
        || before.common.named_ports != after.common.named_ports;
    [readiness, deletion, other.then_some(now)]
        .into_iter()
        .flatten()
        .min()
}

/// Conditions have whole seconds: a second change within one second must not be dated before the first.
fn readiness_time(old: Option<&Pod>, new: &Pod, now: Moment) -> Moment {
    let known_before = old
        .filter(|old| old.metadata.uid == new.metadata.uid)
        .and_then(Pod::ready_changed);
    let began = Began::of(new.ready_changed(), now);
    known_before
        .map_or(began.at, |known| began.at.max(known))
        .min(now)
}
