//! How are the classic Endpoints kept for readers that know nothing newer?
//!
//! A loop of its own over the same cache of Services and pods. Of the Endpoints themselves only a
//! digest is kept. What the server answers to a write is taken into the cache at once, so a watch that
//! lags behind cannot make us write twice.

use crate::writer::Writers;
use pointsman_api_client::{ApiError, Client, DeleteOptions, ObjectKey, Patch, Resource};
use pointsman_model::{Labels, Moment};
use pointsman_objects::Service;
use pointsman_objects::endpoints::{CONTROLLER_NAME, Endpoints, MANAGED_BY_LABEL};
use pointsman_slices::ServiceKey;
use pointsman_slices::controller::Now;
use pointsman_slices::endpoints::Planner;
use pointsman_slices::index::{Index, Touched};
use pointsman_slices::queue::{Outcome, Pace, Tick, WorkQueue};
use std::collections::{BTreeSet, HashMap, hash_map::DefaultHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The Endpoints loop's state.
pub(super) struct Classic {
    client: Client,
    queue: WorkQueue<ServiceKey>,
    planner: Planner,
    pub writers: Writers<Done>,
    existing: HashMap<ServiceKey, Existing>,
    /// The oldest change of each Service that no write has reported yet.
    unreported: HashMap<ServiceKey, Moment>,
    /// Services whose Endpoints are to go.
    doomed: BTreeSet<ServiceKey>,
    listed: bool,
}

/// Endpoints as the server has them, without their addresses.
#[derive(Clone, Debug)]
struct Existing {
    shell: Endpoints,
    digest: u64,
}

/// What became of one write.
pub(super) struct Done {
    key: ServiceKey,
    trigger: Option<Moment>,
    outcome: Result<Option<Existing>, ApiError>,
}

impl Classic {
    pub fn new(client: Client, pace: Pace, writers: usize) -> Self {
        Self {
            client,
            queue: WorkQueue::by_namespace(pace),
            planner: Planner::default(),
            writers: Writers::new(writers),
            existing: HashMap::new(),
            unreported: HashMap::new(),
            doomed: BTreeSet::new(),
            listed: false,
        }
    }

    pub fn wake_at(&self) -> Option<Tick> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }

    /// Everything is listed: all Services have to be looked at, and Endpoints that lost theirs.
    pub fn listed(&mut self, index: &Index, now: Now) {
        self.listed = true;
        let mut keys: Vec<ServiceKey> = index.services().map(|service| ServiceKey::of(service)).collect();
        for (key, existing) in &self.existing {
            let ours = existing.shell.labels.get(MANAGED_BY_LABEL) == Some(CONTROLLER_NAME);
            if ours && index.service(key).is_none() {
                self.doomed.insert(key.clone());
                keys.push(key.clone());
            }
        }
        keys.sort();
        keys.iter().for_each(|key| self.queue.add(key, now.tick));
    }

    pub fn touched(&mut self, index: &Index, touched: Vec<Touched>, now: Now) {
        for touched in touched {
            self.planner.touched(&touched);
            let Touched { key, at, .. } = touched;
            self.report_later(&key, at);
            if index.service(&key).is_none() && self.existing.contains_key(&key) {
                self.doomed.insert(key.clone());
            }
            self.queue.add_batched(&key, now.tick);
        }
    }

    /// An Endpoints object showed up or changed.
    pub fn seen(&mut self, key: &ObjectKey, endpoints: Endpoints, now: Now) {
        let key = ServiceKey::new(key.namespace(), key.name());
        let newer = |known: &Existing| version(&endpoints) > version(&known.shell);
        if self.existing.get(&key).is_none_or(newer) {
            self.existing.insert(key.clone(), Existing::of(endpoints));
            if self.listed {
                self.queue.add(&key, now.tick);
            }
        }
    }

    /// An Endpoints object is gone.
    pub fn gone(&mut self, key: &ObjectKey, now: Now) {
        let key = ServiceKey::new(key.namespace(), key.name());
        if self.existing.remove(&key).is_some() && self.listed {
            self.report_later(&key, now.moment);
            self.queue.add(&key, now.tick);
        }
    }

    fn report_later(&mut self, key: &ServiceKey, at: Moment) {
        let first = self.unreported.entry(key.clone()).or_insert(at);
        *first = at.min(*first);
    }

    /// Starts as many writes as there is room for.
    pub fn start(&mut self, index: &Index, now: Now) {
        while self.listed
            && self.writers.has_room()
            && let Some(key) = self.queue.next(now.tick)
        {
            if let Some(write) = self.plan(index, &key) {
                self.writers.start(write);
            } else {
                self.unreported.remove(&key);
                self.queue.finish(&key, Outcome::Done, now.tick);
            }
        }
    }

    fn plan(
        &mut self,
        index: &Index,
        key: &ServiceKey,
    ) -> Option<impl Future<Output = Done> + Send + 'static + use<>> {
        let doomed = self.doomed.remove(key);
        let existing = self.existing.get(key);
        let wanted = self.planner.desired(index, key);
        let wanted = index.service(key).cloned().zip(wanted);
        let write = match (wanted, existing) {
            (None, Some(existing)) if doomed && index.service(key).is_none() => {
                Write::Delete(existing.shell.resource_version.to_string())
            }
            (Some((service, wanted)), existing) => {
                let shown = existing.is_some_and(|existing| existing.shows(&wanted));
                if shown || (existing.is_none() && service.metadata.is_terminating()) {
                    return None;
                }
                Write::Put(
                    service,
                    Box::new(wanted),
                    existing.map(|existing| existing.shell.clone()),
                )
            }
            (None, _) => return None,
        };
        let mut trigger = self.unreported.remove(key);
        if let Write::Put(service, _, None) = &write {
            // Never reported before, so it counts from its creation.
            trigger = trigger.into_iter().chain(service.metadata.created).min();
        }
        Some(send(self.client.clone(), key.clone(), write, trigger))
    }

    /// Takes back a write.
    pub fn finish(&mut self, done: Done, now: Now) {
        let Done {
            key,
            trigger,
            outcome,
        } = done;
        let outcome = match outcome {
            Ok(Some(existing)) => {
                let newer = |known: &Existing| version(&existing.shell) > version(&known.shell);
                if self.existing.get(&key).is_none_or(newer) {
                    self.existing.insert(key.clone(), existing);
                }
                Outcome::Done
            }
            Ok(None) => {
                self.existing.remove(&key);
                Outcome::Done
            }
            Err(error) => {
                if let Some(at) = trigger {
                    self.report_later(&key, at);
                }
                match error {
                    ApiError::Conflict(_)
                    | ApiError::NotFound(_)
                    | ApiError::AlreadyExists(_)
                    | ApiError::NamespaceTerminating(_) => {
                        tracing::debug!(service = %key, %error, "Endpoints are written again");
                    }
                    _ if error.is_missing_right() => {}
                    _ => tracing::warn!(service = %key, %error, "Endpoints could not be written"),
                }
                Outcome::Retry
            }
        };
        self.queue.finish(&key, outcome, now.tick);
    }
}

enum Write {
    Put(Arc<Service>, Box<Endpoints>, Option<Endpoints>),
    /// The Service is gone; only this version goes with it.
    Delete(String),
}

async fn send(client: Client, key: ServiceKey, write: Write, trigger: Option<Moment>) -> Done {
    let api = client.api(Resource::ENDPOINTS, Some(&key.namespace));
    let outcome = match write {
        Write::Put(_, wanted, existing) => {
            let body = wanted.body(&key.namespace, &key.name, existing.as_ref(), trigger);
            let answer: Result<Endpoints, ApiError> = match existing {
                Some(_) => api.patch(&key.name, Patch::Merge(body)).await,
                None => api.create(body).await,
            };
            answer.map(|endpoints| Some(Existing::of(endpoints)))
        }
        Write::Delete(version) => {
            tracing::debug!(service = %key, version, "removing the Endpoints of a Service that is gone");
            match api.delete(&key.name, &DeleteOptions::default()).await {
                Ok(()) | Err(ApiError::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            }
        }
    };
    Done {
        key,
        trigger,
        outcome,
    }
}

impl Existing {
    fn of(mut endpoints: Endpoints) -> Self {
        let digest = digest(&endpoints);
        endpoints.subsets.clear();
        endpoints.annotations = Labels::default();
        Self {
            shell: endpoints,
            digest,
        }
    }

    fn shows(&self, wanted: &Endpoints) -> bool {
        self.shell.labels == wanted.labels
            && self.shell.truncated == wanted.truncated
            && self.digest == digest(wanted)
    }
}

fn digest(endpoints: &Endpoints) -> u64 {
    let mut hasher = DefaultHasher::new();
    endpoints.subsets.hash(&mut hasher);
    hasher.finish()
}

/// Versions are numbers on every server we know; one that is not is believed to be new.
fn version(endpoints: &Endpoints) -> u64 {
    endpoints.resource_version.parse().unwrap_or(u64::MAX)
}
