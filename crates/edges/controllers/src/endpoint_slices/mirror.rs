//! How do Endpoints that somebody writes for a Service without a selector get into slices?
//!
//! A loop of its own over the same cache of Services and slices. Endpoints that the other loop makes from pods are not kept;
//! should their Service lose its selector they are read once.

use super::send::{Answer, delete_slice};
use crate::writer::Writers;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{Api, ApiError, Client, ObjectKey, Patch, Resource};
use pointsman_model::Text;
use pointsman_objects::endpoints::Endpoints;
use pointsman_objects::{EndpointSlice, Service};
use pointsman_slices::ServiceKey;
use pointsman_slices::controller::{Event, Now, Written};
use pointsman_slices::index::Index;
use pointsman_slices::mirror::{MAX_ADDRESSES, MirrorPlan, plan};
use pointsman_slices::queue::{Outcome, Pace, Tick, WorkQueue};
use pointsman_slices::tracker::SliceTracker;
use std::collections::{BTreeMap, HashMap};

/// The mirroring loop's state.
pub(super) struct Mirrors {
    client: Client,
    recorder: Recorder,
    queue: WorkQueue<ServiceKey>,
    pub writers: Writers<Done>,
    /// Endpoints of Services without a selector, as far as Services are known.
    endpoints: BTreeMap<ServiceKey, Endpoints>,
    tracker: SliceTracker,
    /// Slices that left the cache while their Service is being written: they are not waited for.
    in_flight: HashMap<ServiceKey, Vec<Text>>,
    listed: bool,
}

/// What became of one key.
pub(super) struct Done {
    key: ServiceKey,
    /// Endpoints that were missing here.
    read: Option<Endpoints>,
    written: Vec<Written>,
    failure: Option<ApiError>,
}

fn selects(service: &Service) -> bool {
    service.selector.is_some()
}

/// Whether an event may be about a mirror.
pub(super) fn reads(event: &Event) -> bool {
    match event {
        Event::Slice(slice) => slice.mirrored_by_us(),
        other => matches!(
            other,
            Event::Service(_) | Event::ServiceGone(_) | Event::SliceGone(..)
        ),
    }
}

impl Mirrors {
    pub fn new(client: Client, recorder: Recorder, pace: Pace, writers: usize) -> Self {
        Self {
            client,
            recorder,
            queue: WorkQueue::by_namespace(pace),
            writers: Writers::new(writers),
            endpoints: BTreeMap::new(),
            tracker: SliceTracker::default(),
            in_flight: HashMap::new(),
            listed: false,
        }
    }

    pub fn wake_at(&self) -> Option<Tick> {
        self.queue
            .wake_at()
            .filter(|_| self.listed && self.writers.has_room())
    }

    /// The first lists are complete: every Service without a selector is looked at, and slices whose Endpoints went.
    pub fn listed(&mut self, index: &Index, now: Now) {
        self.listed = true;
        self.endpoints
            .retain(|key, _| index.service(key).is_none_or(|service| !selects(service)));
        for key in self.endpoints.keys().cloned().chain(index.mirrored()) {
            self.queue.add(&key, now.tick);
        }
    }

    /// Takes in what the cache has taken in already.
    pub fn observe(&mut self, index: &Index, event: &Event, now: Now) {
        match event {
            _ if !self.listed => {}
            Event::Service(service) => self.service_changed(index, &ServiceKey::of(service), now),
            Event::ServiceGone(key) => self.service_changed(index, key, now),
            Event::Slice(slice) => {
                if let Some(key) = ServiceKey::of_slice(slice) {
                    self.queue.add(&key, now.tick);
                }
            }
            _ => {}
        }
    }

    /// A slice is about to leave the cache.
    pub fn slice_gone(&mut self, slice: &EndpointSlice, now: Now) {
        let Some(key) = ServiceKey::of_slice(slice).filter(|_| slice.mirrored_by_us()) else {
            return;
        };
        self.tracker.gone(&key, &slice.metadata.uid);
        if let Some(gone) = self.in_flight.get_mut(&key) {
            gone.push(slice.metadata.uid.clone());
        }
        self.queue.add(&key, now.tick);
    }

    fn service_changed(&mut self, index: &Index, key: &ServiceKey, now: Now) {
        let selects = index.service(key).is_some_and(|service| selects(service));
        let known = if selects {
            self.endpoints.remove(key).is_some()
        } else {
            true
        };
        if known || index.slices(key).any(|slice| slice.mirrored_by_us()) {
            self.queue.add(key, now.tick);
        }
    }

    /// An Endpoints object showed up or changed.
    pub fn seen(&mut self, index: &Index, key: &ObjectKey, endpoints: &Endpoints, now: Now) {
        let key = ServiceKey::new(key.namespace(), key.name());
        if index.service(&key).is_some_and(|service| selects(service)) {
            return;
        }
        self.endpoints.insert(key.clone(), endpoints.clone());
        self.queue.add_batched(&key, now.tick);
    }

    /// An Endpoints object is gone.
    pub fn gone(&mut self, key: &ObjectKey, now: Now) {
        let key = ServiceKey::new(key.namespace(), key.name());
        if self.endpoints.remove(&key).is_some() {
            self.queue.add(&key, now.tick);
        }
    }

    /// Starts as many writes as there is room for.
    pub fn start(&mut self, index: &Index, now: Now) {
        while self.listed
            && self.writers.has_room()
            && let Some(key) = self.queue.next(now.tick)
        {
            let service = index.service(&key).map(|service| &**service);
            let endpoints = self.endpoints.get(&key);
            let ours = index.slices(&key).filter(|slice| slice.mirrored_by_us());
            if service.is_none() && endpoints.is_none() {
                self.tracker.forget(&key);
            }
            if self.tracker.is_stale(&key, ours) {
                self.queue.finish(&key, Outcome::Retry, now.tick);
                continue;
            }
            let lost_selector = endpoints.is_none() && service.is_some_and(|service| !selects(service));
            let plan = plan(&key, service, endpoints, index.slices(&key));
            if plan.writes() == 0 && !lost_selector {
                self.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            }
            if let Some(endpoints) = endpoints.filter(|_| plan.writes() > 0) {
                self.tell(&key, endpoints, &plan);
            }
            self.writers
                .start(send(self.client.clone(), key, plan, lost_selector));
        }
    }

    /// Takes back a write.
    pub fn finish(&mut self, done: Done, now: Now) {
        let key = done.key;
        let gone = self.in_flight.remove(&key).unwrap_or_default();
        for answer in &done.written {
            match answer {
                Written::Slice { uid, .. } | Written::Deleted { uid } if gone.contains(uid) => {}
                Written::Slice { uid, generation } => self.tracker.written(&key, uid, *generation),
                Written::Deleted { uid } => self.tracker.deleted(&key, uid),
            }
        }
        if let Some(endpoints) = done.read {
            self.endpoints.entry(key.clone()).or_insert(endpoints);
            self.queue.add(&key, now.tick);
        }
        let outcome = match &done.failure {
            None | Some(ApiError::NamespaceTerminating(_)) => Outcome::Done,
            Some(error) => {
                if !error.is_missing_right() {
                    tracing::debug!(service = %key, %error, "mirrored slices are written again");
                }
                Outcome::Retry
            }
        };
        self.queue.finish(&key, outcome, now.tick);
    }

    fn tell(&self, key: &ServiceKey, endpoints: &Endpoints, plan: &MirrorPlan) {
        let subject = Subject {
            api_version: "v1".into(),
            kind: "Endpoints".into(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: endpoints.uid.to_string(),
        };
        let invalid = format!(
            "Skipped {} invalid IP addresses when mirroring to EndpointSlices",
            endpoints.invalid
        );
        let many = format!(
            "A max of {MAX_ADDRESSES} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
            plan.skipped
        );
        for (count, reason, message) in [
            (endpoints.invalid, "InvalidIPAddress", invalid),
            (plan.skipped, "TooManyAddressesToMirror", many),
        ] {
            if count > 0 {
                self.recorder.record(News {
                    subject: subject.clone(),
                    severity: Severity::Warning,
                    reason: reason.into(),
                    message,
                });
            }
        }
    }
}

async fn send(client: Client, key: ServiceKey, plan: MirrorPlan, read: bool) -> Done {
    let mut done = Done {
        key,
        read: None,
        written: Vec::new(),
        failure: None,
    };
    let api = client.api(Resource::ENDPOINT_SLICES, Some(&done.key.namespace));
    done.failure = send_all(&api, &plan, &mut done.written).await.err();
    if read && done.failure.is_none() {
        let endpoints = client.api(Resource::ENDPOINTS, Some(&done.key.namespace));
        match endpoints.get(&done.key.name).await {
            Ok(endpoints) => done.read = Some(endpoints),
            Err(ApiError::NotFound(_)) => {}
            Err(error) => done.failure = Some(error),
        }
    }
    done
}

async fn send_all(api: &Api, plan: &MirrorPlan, written: &mut Vec<Written>) -> Result<(), ApiError> {
    for mirror in &plan.create {
        written.push(api.create::<Answer>(mirror.body()).await?.into());
    }
    for update in &plan.update {
        let patch = Patch::Merge(update.body());
        written.push(api.patch::<Answer>(&update.name, patch).await?.into());
    }
    for delete in &plan.delete {
        written.push(delete_slice(api, delete).await?);
    }
    Ok(())
}
