//! From which version on does a pod get no new connections?
//!
//! Folds EndpointSlices, and remembers for every endpoint the version of the slice that took it out of
//! use: marked it as terminating or not ready, or dropped it. A pod may be stopped once every programmer
//! has that version. After a restart the version of the slice as it is now stands in, which is never too
//! low.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pointsman_model::Moment;

/// Endpoints that are gone are remembered for this long, and so many of them.
const MEMORY: (Duration, usize) = (Duration::from_secs(600), 100_000);

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFacts {
    /// The pod, as namespace/name.
    pub pod: Arc<str>,
    /// Its unique id; empty if the slice does not say.
    pub uid: Box<str>,
    /// Its node; empty if the slice does not say.
    pub node: Arc<str>,
    /// The ready condition.
    pub ready: bool,
    /// The serving condition.
    pub serving: bool,
    /// The terminating condition.
    pub terminating: bool,
}

impl EndpointFacts {
    /// Whether new connections may go to it while others are there.
    fn in_use(&self) -> bool {
        self.ready && !self.terminating
    }
}

/// A slice as far as gates go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// The Service, as namespace/name.
    pub service: Arc<str>,
    /// The version of the slice.
    pub revision: u64,
    /// Its endpoints that are pods.
    pub endpoints: Vec<EndpointFacts>,
}

/// What has to be below every watermark before a pod may be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    /// No Service sends traffic to the pod.
    Nothing,
    Revision(u64),
    /// The pod's endpoint is still in use: a slice that says otherwise has to be written first.
    Unmarked,
}

#[derive(Debug)]
struct Endpoint {
    facts: EndpointFacts,
    /// The version that took it out of use.
    quiet: Option<u64>,
}

#[derive(Debug)]
struct Slice {
    service: Arc<str>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug)]
struct Gone {
    uid: Box<str>,
    service: Arc<str>,
    node: Arc<str>,
    revision: u64,
    at: Moment,
}

/// All endpoints, and those that are recently gone.
#[derive(Debug, Default)]
pub struct Endpoints {
    slices: HashMap<Arc<str>, Slice>,
    by_pod: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    by_service: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    gone: HashMap<Arc<str>, Vec<Gone>>,
    gone_order: VecDeque<(Moment, Arc<str>)>,
}

impl Endpoints {
    /// Folds a slice (by namespace/name) as it is now.
    pub fn apply(&mut self, key: &str, facts: SliceFacts, now: Moment) {
        let known = self.detach(key);
        let key: Arc<str> = key.into();
        let mut before: HashMap<(Arc<str>, Box<str>), Option<u64>> = HashMap::new();
        let old = known.map_or_else(Vec::new, |slice| slice.endpoints);
        for endpoint in &old {
            let id = (endpoint.facts.pod.clone(), endpoint.facts.uid.clone());
            before.insert(id, endpoint.quiet);
        }
        let mut endpoints = Vec::with_capacity(facts.endpoints.len());
        for endpoint in facts.endpoints {
            let id = (endpoint.pod.clone(), endpoint.uid.clone());
            let known = before.remove(&id).flatten();
            let quiet = (!endpoint.in_use()).then(|| known.unwrap_or(facts.revision));
            self.by_pod
                .entry(endpoint.pod.clone())
                .or_default()
                .insert(key.clone());
            endpoints.push(Endpoint {
                facts: endpoint,
                quiet,
            });
        }
        for endpoint in old {
            if before.contains_key(&(endpoint.facts.pod.clone(), endpoint.facts.uid.clone())) {
                self.remember(endpoint.facts, &facts.service, facts.revision, now);
            }
        }
        self.by_service
            .entry(facts.service.clone())
            .or_default()
            .insert(key.clone());
        let service = facts.service;
        self.slices.insert(key, Slice { service, endpoints });
        self.forget(now);
    }

    /// Folds the removal of a slice at this version.
    pub fn remove(&mut self, key: &str, revision: u64, now: Moment) {
        let Some(slice) = self.detach(key) else { return };
        for endpoint in slice.endpoints {
            self.remember(endpoint.facts, &slice.service, revision, now);
        }
        self.forget(now);
    }

    /// What must be everywhere before a pod (namespace/name) may be stopped.
    pub fn of_pod(&self, pod: &str, uid: &str) -> Requirement {
        let same = |other: &str| uid.is_empty() || other.is_empty() || other == uid;
        let slices = self.by_pod.get(pod).into_iter().flatten();
        let present = slices
            .filter_map(|key| self.slices.get(key))
            .flat_map(|slice| &slice.endpoints)
            .filter(|endpoint| &*endpoint.facts.pod == pod && same(&endpoint.facts.uid))
            .map(requirement);
        let gone = self.gone.get(pod).into_iter().flatten();
        let gone = gone
            .filter(|gone| same(&gone.uid))
            .map(|gone| Requirement::Revision(gone.revision));
        present.chain(gone).max().unwrap_or(Requirement::Nothing)
    }

    /// Whether a Service (namespace/name) has endpoints, in use or not.
    pub fn has_endpoints(&self, service: &str) -> bool {
        self.endpoints_of(service).next().is_some()
    }

    /// The pods (namespace/name, uid) that are or recently were endpoints of a Service on a node.
    pub fn of_service(&self, service: &str, node: Option<&str>) -> BTreeSet<(Arc<str>, Box<str>)> {
        let here = |other: &str| node.is_none_or(|node| node == other);
        let slices = self.by_service.get(service).into_iter().flatten();
        let present = slices
            .filter_map(|key| self.slices.get(key))
            .flat_map(|slice| &slice.endpoints)
            .filter(|endpoint| here(&endpoint.facts.node))
            .map(|endpoint| (endpoint.facts.pod.clone(), endpoint.facts.uid.clone()));
        let gone = self.gone.iter().flat_map(|(pod, gone)| {
            let of_it = gone
                .iter()
                .filter(|gone| &*gone.service == service && here(&gone.node));
            of_it.map(|gone| (pod.clone(), gone.uid.clone()))
        });
        present.chain(gone).collect()
    }

    /// The endpoints of a Service (namespace/name), in the order of their slices.
    pub fn endpoints_of(&self, service: &str) -> impl Iterator<Item = &EndpointFacts> {
        let slices = self.by_service.get(service).into_iter().flatten();
        slices
            .filter_map(|key| self.slices.get(key))
            .flat_map(|slice| slice.endpoints.iter().map(|endpoint| &endpoint.facts))
    }

    /// The endpoints of one slice (namespace/name).
    pub fn slice(&self, key: &str) -> impl Iterator<Item = &EndpointFacts> {
        let slice = self.slices.get(key).into_iter();
        slice.flat_map(|slice| slice.endpoints.iter().map(|endpoint| &endpoint.facts))
    }

    /// The Service of a slice (namespace/name).
    pub fn service_of(&self, key: &str) -> Option<&str> {
        self.slices.get(key).map(|slice| &*slice.service)
    }

    /// How many slices there are.
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Whether there are no slices.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    fn detach(&mut self, key: &str) -> Option<Slice> {
        let slice = self.slices.remove(key)?;
        for endpoint in &slice.endpoints {
            drop_from(&mut self.by_pod, &endpoint.facts.pod, key);
        }
        drop_from(&mut self.by_service, &slice.service, key);
        Some(slice)
    }

    fn remember(&mut self, facts: EndpointFacts, service: &Arc<str>, revision: u64, now: Moment) {
        self.gone_order.push_back((now, facts.pod.clone()));
        self.gone.entry(facts.pod).or_default().push(Gone {
            uid: facts.uid,
            service: service.clone(),
            node: facts.node,
            revision,
            at: now,
        });
    }

    fn forget(&mut self, now: Moment) {
        let (memory, most) = MEMORY;
        while let Some((at, _)) = self.gone_order.front() {
            if now.since(*at) <= memory && self.gone_order.len() <= most {
                return;
            }
            let Some((at, pod)) = self.gone_order.pop_front() else {
                return;
            };
            if let Some(gone) = self.gone.get_mut(&pod) {
                gone.retain(|gone| gone.at > at);
                if gone.is_empty() {
                    self.gone.remove(&pod);
                }
            }
        }
    }
}

fn requirement(endpoint: &Endpoint) -> Requirement {
    endpoint
        .quiet
        .map_or(Requirement::Unmarked, Requirement::Revision)
}

fn drop_from(map: &mut HashMap<Arc<str>, BTreeSet<Arc<str>>>, owner: &Arc<str>, key: &str) {
    if let Some(keys) = map.get_mut(owner) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(pod: &str, ready: bool, terminating: bool) -> EndpointFacts {
        EndpointFacts {
            pod: pod.into(),
            uid: format!("uid-{pod}").into(),
            node: "n1".into(),
            ready,
            serving: true,
            terminating,
        }
    }

    fn slice(revision: u64, endpoints: Vec<EndpointFacts>) -> SliceFacts {
        SliceFacts {
            service: "default/web".into(),
            revision,
            endpoints,
        }
    }

    fn of(endpoints: &Endpoints, pod: &str) -> Requirement {
        endpoints.of_pod(pod, &format!("uid-{pod}"))
    }

    #[test]
    fn the_version_that_marked_an_endpoint_counts_and_not_later_ones() {
        let mut all = Endpoints::default();
        all.apply(
            "default/web-1",
            slice(5, vec![endpoint("default/a", true, false)]),
            Moment(0),
        );
        assert_eq!(of(&all, "default/a"), Requirement::Unmarked);
        all.apply(
            "default/web-1",
            slice(7, vec![endpoint("default/a", false, true)]),
            Moment(1),
        );
        all.apply(
            "default/web-1",
            slice(9, vec![endpoint("default/a", false, true)]),
            Moment(2),
        );
        assert_eq!(of(&all, "default/a"), Requirement::Revision(7));
        assert_eq!(of(&all, "default/other"), Requirement::Nothing);
        assert_eq!(all.of_pod("default/a", "uid of another"), Requirement::Nothing);
    }

    #[test]
    fn an_endpoint_that_was_dropped_counts_with_the_version_that_dropped_it() {
        let mut all = Endpoints::default();
        all.apply(
            "default/web-1",
            slice(5, vec![endpoint("default/a", true, false)]),
            Moment(0),
        );
        all.apply("default/web-1", slice(8, vec![]), Moment(1));
        assert_eq!(of(&all, "default/a"), Requirement::Revision(8));
        all.apply(
            "default/web-2",
            slice(9, vec![endpoint("default/b", true, false)]),
            Moment(1),
        );
        all.remove("default/web-2", 12, Moment(2));
        assert_eq!(of(&all, "default/b"), Requirement::Revision(12));
        // Long after, nobody asks any more.
        let later = Moment(0).after(Duration::from_secs(3600));
        all.apply("default/web-1", slice(20, vec![]), later);
        assert_eq!(of(&all, "default/b"), Requirement::Nothing);
        assert!(all.gone_order.is_empty() && all.gone.is_empty());
    }

    #[test]
    fn every_service_of_a_pod_has_to_let_go_of_it() {
        let mut all = Endpoints::default();
        all.apply(
            "default/web-1",
            slice(5, vec![endpoint("default/a", false, true)]),
            Moment(0),
        );
        let other = SliceFacts {
            service: "default/admin".into(),
            ..slice(6, vec![endpoint("default/a", true, false)])
        };
        all.apply("default/admin-1", other, Moment(0));
        assert_eq!(of(&all, "default/a"), Requirement::Unmarked);
        let pods = all.of_service("default/web", Some("n1"));
        assert_eq!(pods.len(), 1);
        assert!(all.has_endpoints("default/web") && !all.has_endpoints("default/other"));
        assert!(all.of_service("default/web", Some("n2")).is_empty());
    }
}
