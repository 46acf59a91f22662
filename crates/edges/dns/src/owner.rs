//! Who changes the zone?

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use pointsman_api_client::{Event, ObjectKey};
use pointsman_model::Revision;
use pointsman_names::Zone;
use pointsman_objects::{EndpointSlice, Service};
use pointsman_protocol::watermark::{Progress, Watermark};
use pointsman_watermarks::Watermarks;
use tokio::sync::{mpsc, watch};

use crate::metrics::Metrics;

/// Bunches of events that may wait for the owner.
pub(crate) const INBOX: usize = 8;

/// How lines of watermarks name us. Collectors that ask us know us by what they were told.
const PROGRAMMER: &str = "dns";

/// What the watches deliver.
pub(crate) enum Input {
    Service(Event<Service>),
    Slice(Event<EndpointSlice>),
}

/// What listeners read. They hold the lock while they look one name up, the owner while it takes in what came
/// together; nobody waits for anything meanwhile.
pub(crate) struct Known {
    pub zone: Zone,
    /// Both lists were read once, so that a name which is not there does not exist.
    pub complete: bool,
}

/// The only one who writes.
pub(crate) struct Owner {
    known: Arc<RwLock<Known>>,
    ready: watch::Sender<bool>,
    services: Followed,
    slices: Followed,
    metrics: Metrics,
    watermarks: Watermarks,
    published: Watermark,
}

/// How far a collection was followed.
#[derive(Debug, Default)]
struct Followed {
    /// What a list brings is in no order, so that nothing is known about versions until its end.
    listing: bool,
    /// A list was read to its end.
    listed: bool,
    /// All changes up to here were taken in.
    revision: Option<Revision>,
    /// Versions went back: the API server was restored from a backup.
    went_back: bool,
}

impl Followed {
    fn take<T>(&mut self, event: Event<T>, mut set: impl FnMut(&ObjectKey, Option<Arc<T>>)) {
        match event {
            // What is known stays good until the list says otherwise.
            Event::Init => self.listing = true,
            Event::Applied {
                key,
                object,
                resource_version,
            } => {
                set(&key, Some(Arc::new(object)));
                self.reached(&resource_version);
            }
            Event::Deleted {
                key,
                resource_version,
                ..
            } => {
                set(&key, None);
                if let Some(version) = resource_version {
                    self.reached(&version);
                }
            }
            Event::Synced(version) => {
                (self.listing, self.listed) = (false, true);
                let listed = Revision::parse(&version);
                self.went_back |= listed.is_some() && listed < self.revision;
                self.revision = listed.or(self.revision);
            }
        }
    }

    fn reached(&mut self, version: &str) {
        if !self.listing {
            self.revision = self.revision.max(Revision::parse(version));
        }
    }
}

impl Owner {
    pub fn new(domain: &str, metrics: Metrics) -> Self {
        let known = Known {
            zone: Zone::new(domain),
            complete: false,
        };
        Self {
            known: Arc::new(RwLock::new(known)),
            ready: watch::Sender::new(false),
            services: Followed::default(),
            slices: Followed::default(),
            metrics,
            watermarks: Watermarks::new(PROGRAMMER, Timestamp::now()),
            published: Watermark::default(),
        }
    }

    pub fn known(&self) -> Arc<RwLock<Known>> {
        Arc::clone(&self.known)
    }

    /// Whether the zone is complete.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// How far answers are.
    pub fn watermarks(&self) -> Watermarks {
        self.watermarks.clone()
    }

    /// Takes in what comes, for ever.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Vec<Input>>) {
        while let Some(inputs) = inbox.recv().await {
            self.take(inputs);
            self.publish();
        }
    }

    fn take(&mut self, inputs: Vec<Input>) {
        let mut known = self.known.write();
        let zone = &mut known.zone;
        for input in inputs {
            match input {
                Input::Service(event) => self.services.take(event, |key, object| {
                    zone.set_service(key.namespace(), key.name(), object);
                }),
                Input::Slice(event) => self.slices.take(event, |key, object| {
                    zone.set_slice(key.namespace(), key.name(), object);
                }),
            }
        }
        if !known.complete && self.services.listed && self.slices.listed {
            known.complete = true;
            tracing::info!("all names are known");
            self.ready.send_replace(true);
        }
    }

    /// What was taken in is in every answer from now on.
    fn publish(&mut self) {
        let mut went_back = false;
        for followed in [&mut self.services, &mut self.slices] {
            went_back |= std::mem::take(&mut followed.went_back);
        }
        let watermark = Watermark {
            services: self.services.revision,
            slices: self.slices.revision,
        };
        if went_back {
            tracing::warn!("the API server was restored to an older version");
            self.watermarks.begin_again(PROGRAMMER, Timestamp::now());
        }
        if watermark == self.published {
            return;
        }
        self.published = watermark;
        self.metrics.watermark(watermark);
        let progress = Progress {
            received: watermark,
            planned: watermark,
            committed: watermark,
        };
        self.watermarks.publish(progress, Timestamp::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_after_the_list_and_go_back_only_with_another_history() {
        let key = ObjectKey::new("ns", "a");
        let applied = |version: &str| Event::Applied {
            key: key.clone(),
            object: (),
            resource_version: version.into(),
        };
        let mut followed = Followed::default();
        let mut seen = |event| {
            followed.take(event, |_, _| {});
            (
                followed.revision.map(|it| it.0),
                std::mem::take(&mut followed.went_back),
            )
        };
        assert_eq!(seen(Event::Init), (None, false));
        assert_eq!(seen(applied("9")), (None, false));
        assert_eq!(seen(Event::Synced("7".into())), (Some(7), false));
        assert_eq!(seen(applied("8")), (Some(8), false));
        assert_eq!(seen(Event::Init), (Some(8), false));
        assert_eq!(seen(applied("12")), (Some(8), false));
        assert_eq!(seen(Event::Synced("13".into())), (Some(13), false));
        assert_eq!(seen(Event::Synced("5".into())), (Some(5), true));
    }
}
