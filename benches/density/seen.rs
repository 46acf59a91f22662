//! What does somebody see who watches slices, and is it true of all pods?

use pointsman_api_client::{Client, Event, ObjectKey, Resource, Scope, Watcher};
use pointsman_objects::{EndpointSlice, Pod};
use std::collections::{HashMap, HashSet};

/// Ready endpoints: the pod's name and its address.
type Ready = Vec<(String, String)>;

/// All slices, as a watch shows them.
pub struct Seen {
    watcher: Watcher<EndpointSlice>,
    slices: HashMap<ObjectKey, Ready>,
    ready: usize,
}

/// What is not as it should be.
pub struct Found {
    pub wrong: usize,
    pub shared: usize,
}

impl Seen {
    pub fn follow(client: &Client) -> Self {
        Self {
            watcher: Watcher::new(client.clone(), Scope::all(Resource::ENDPOINT_SLICES)),
            slices: HashMap::new(),
            ready: 0,
        }
    }

    /// Returns when so many endpoints are ready.
    pub async fn until(&mut self, count: usize) {
        while self.ready < count {
            let (key, ready) = match self.watcher.next().await {
                Event::Applied { key, object, .. } => (key, ready(&object)),
                Event::Deleted { key, .. } => (key, Ready::new()),
                Event::Init | Event::Synced(_) => continue,
            };
            self.ready += ready.len();
            self.ready -= self.slices.insert(key, ready).map_or(0, |before| before.len());
        }
    }

    /// Compares the slices with a list of all pods.
    pub async fn compare(&self, client: &Client) -> Found {
        let mut listed = HashMap::new();
        for (pod, address) in self.slices.values().flatten() {
            let addresses: &mut Vec<&str> = listed.entry(pod.as_str()).or_default();
            addresses.push(address);
        }
        let mut pods = Watcher::<Pod>::new(client.clone(), Scope::all(Resource::PODS));
        let (mut wrong, mut shared, mut addresses) = (0, 0, HashSet::new());
        loop {
            match pods.next().await {
                Event::Applied { key, object: pod, .. } => {
                    let own = pod.ips.iter().map(ToString::to_string).next();
                    let in_slices = listed.get(key.name()).map_or(&[][..], Vec::as_slice);
                    let is_right = own.as_deref().is_some_and(|own| in_slices == [own]);
                    wrong += usize::from(!is_right);
                    shared += usize::from(own.is_some_and(|own| !addresses.insert(own)));
                }
                Event::Synced(_) => return Found { wrong, shared },
                Event::Init | Event::Deleted { .. } => {}
            }
        }
    }
}

fn ready(slice: &EndpointSlice) -> Ready {
    let endpoints = slice.endpoints.iter();
    let ready = endpoints.filter(|endpoint| endpoint.conditions.is_ready());
    ready
        .filter_map(|endpoint| {
            let pod = endpoint.target.as_ref()?.name.to_string();
            Some((pod, endpoint.addresses.iter().next()?.to_string()))
        })
        .collect()
}
