//! Which change does a write report, and when did that change happen?
//!
//! Seed of the rules: the network programming latency SLI. The annotation carries the oldest change
//! that was not reported yet; the first change of a pod inside a batch is the one that counts. A time
//! leaves this tracker only when the write that reports it succeeded, or when a sync found that there
//! is nothing left to report.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::pack::{ChangeKind, EndpointChange};
use crate::service::ServiceKey;
use pointsman_model::{Began, Moment, Text};
use pointsman_objects::Service;

/// Room that is kept for later when nothing is left to report: after a start it was made for all Services at once.
const KEPT: usize = 64;

/// Times of changes that no write has reported yet, per Service.
#[derive(Debug, Default)]
pub struct TriggerTracker {
    floor: Option<Moment>,
    services: HashMap<ServiceKey, State>,
    /// Services of which a sync of this process completed, so that every later change was seen as it happened.
    known: HashSet<ServiceKey>,
}

#[derive(Debug, Default)]
struct State {
    pending: Changes,
    in_flight: Changes,
}

#[derive(Debug, Default)]
struct Changes {
    service: Option<Moment>,
    pods: BTreeMap<Text, Moment>,
}

impl TriggerTracker {
    /// A tracker for a process that takes over at start.
    ///
    /// `floor` is the last sign of life of the former leader: what changed before that was its to
    /// report, so no time found after a restart is older. `None` when there was no former leader.
    pub fn new(floor: Option<Moment>) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// The Service was created, changed, or is affected by something other than its pods.
    pub fn service_changed(&mut self, key: &ServiceKey, at: Moment) {
        let pending = &mut self.state(key).pending;
        pending.service = Some(pending.service.map_or(at, |known| known.min(at)));
    }

    /// A pod's endpoint in the Service appeared, changed or went away.
    pub fn pod_changed(&mut self, key: &ServiceKey, pod: &Text, at: Moment) {
        remember(&mut self.state(key).pending.pods, pod, at);
    }

    /// A sync of the Service starts: all changes so far are its to report.
    ///
    /// A Service that has no slices the first time we look was never reported: it counts from its creation.
    pub fn begin(&mut self, service: &Service, has_slices: bool) {
        let (floor, key) = (self.floor, ServiceKey::of(service));
        let known = self.known.contains(&key);
        let state = self.state(&key);
        if !known && !has_slices {
            // Creation times are whole seconds.
            let created = service.metadata.created.map(Moment::end_of_second).max(floor);
            state.pending.service = created.min_some(state.pending.service);
        }
        let pending = std::mem::take(&mut state.pending);
        state.in_flight.absorb(pending);
    }

    /// The time that a write of these changes reports. To be asked between `begin` and `finish`.
    pub fn time_of(&self, service: &Service, changes: &[EndpointChange], now: Moment) -> Option<Moment> {
        let key = ServiceKey::of(service);
        let state = self.services.get(&key)?;
        let own = changes.iter().filter_map(|change| {
            let known = state.in_flight.pods.get(&change.pod).copied();
            known.or_else(|| {
                if self.known.contains(&key) {
                    None
                } else {
                    self.unseen(service, change, now)
                }
            })
        });
        let time = own.chain(state.in_flight.service).min();
        // A slice may change because endpoints elsewhere did: hints are shared out between slices.
        time.or_else(|| state.in_flight.pods.values().copied().min())
            .map(|at| at.min(now))
    }

    /// The time of the oldest change in the sync under way, for objects that show all of them.
    pub fn oldest(&self, key: &ServiceKey) -> Option<Moment> {
        let in_flight = &self.services.get(key)?.in_flight;
        in_flight.pods.values().copied().chain(in_flight.service).min()
    }

    /// The pods whose changes are all there is to report, if nothing else happened to the Service since a sync
    /// completed. To be asked between `begin` and `finish`.
    pub fn only_pods(&self, key: &ServiceKey) -> Option<impl Iterator<Item = &Text> + Clone> {
        let state = self.services.get(key)?;
        let in_flight = &state.in_flight;
        let only_pods = self.known.contains(key) && in_flight.service.is_none() && !in_flight.pods.is_empty();
        only_pods.then(|| in_flight.pods.keys())
    }

    /// The sync is over and everything is written (or nothing had to be).
    pub fn finish(&mut self, key: &ServiceKey) {
        if let Some(state) = self.services.get_mut(key) {
            state.in_flight = Changes::default();
            if state.pending.is_empty() {
                self.services.remove(key);
            }
        }
        if self.services.is_empty() {
            self.services.shrink_to(KEPT);
        }
        if !self.known.contains(key) {
            self.known.insert(key.clone());
        }
    }

    /// The sync failed before these changes were written; what they report is still to be reported.
    pub fn fail<'a>(
        &mut self,
        service: &Service,
        unwritten: impl IntoIterator<Item = &'a [EndpointChange]>,
        now: Moment,
    ) {
        let key = ServiceKey::of(service);
        let mut kept = BTreeMap::new();
        for change in unwritten.into_iter().flatten() {
            let known = self
                .services
                .get(&key)
                .and_then(|state| state.in_flight.pods.get(&change.pod).copied());
            if let Some(at) = known.or_else(|| self.time_of(service, std::slice::from_ref(change), now)) {
                remember(&mut kept, &change.pod, at);
            }
        }
        let state = self.state(&key);
        let in_flight = std::mem::take(&mut state.in_flight);
        state.pending.absorb(Changes {
            service: in_flight.service,
            pods: kept,
        });
    }

    /// The Service is gone.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.services.remove(key);
        self.known.remove(key);
    }

    fn state(&mut self, key: &ServiceKey) -> &mut State {
        if !self.services.contains_key(key) {
            self.services.insert(key.clone(), State::default());
        }
        self.services.get_mut(key).expect("inserted above")
    }

    /// A change made while nobody watched: the pod's own word for it, within what can be true.
    fn unseen(&self, service: &Service, change: &EndpointChange, now: Moment) -> Option<Moment> {
        match (change.kind, change.pod_time) {
            (ChangeKind::Removed, _) | (_, None) => Some(now),
            (_, Some(_)) => Some(Began::of(change.pod_time, now).at)
                .max(self.floor)
                .max(service.metadata.created)
                .map(|at| at.min(now)),
        }
    }
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.pods.is_empty()
    }

    fn absorb(&mut self, other: Changes) {
        self.service = self.service.min_some(other.service);
        for (pod, at) in other.pods {
            remember(&mut self.pods, &pod, at);
        }
    }
}

fn remember(pods: &mut BTreeMap<Text, Moment>, pod: &Text, at: Moment) {
    match pods.get_mut(pod) {
        Some(first) => *first = at.min(*first),
        None => {
            pods.insert(pod.clone(), at);
        }
    }
}

trait MinSome {
    /// The lesser of those that are there.
    fn min_some(self, other: Self) -> Self;
}

impl MinSome for Option<Moment> {
    fn min_some(self, other: Self) -> Self {
        self.into_iter().chain(other).min()
    }
}
