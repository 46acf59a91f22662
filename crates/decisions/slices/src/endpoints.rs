//! What does the classic Endpoints object of a Service say, for readers that know nothing newer?

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pointsman_model::{Labels, Text};
use pointsman_objects::endpoint_slice::{AddressType, PodRef};
use pointsman_objects::endpoints::{Address, CONTROLLER_NAME, Endpoints, MANAGED_BY_LABEL, Subset};
use pointsman_objects::names::HEADLESS_LABEL;
use pointsman_objects::{Pod, Service};

use crate::desired::{PortSet, Withdrawals, hostname, ports};
use crate::index::{Index, Touched};
use crate::node::Nodes;
use crate::service::ServiceKey;

/// Most addresses that one Endpoints object lists.
pub const MAX_ADDRESSES: usize = 1000;

/// What the Endpoints object of a Service should say; `None` when it is not ours to write.
pub fn desired(service: &Service, pods: &[&Pod], nodes: &Nodes) -> Option<Endpoints> {
    service
        .wants_slices()
        .then(|| Addresses::of(service, pods, nodes).endpoints(service))
}

/// What Endpoints should say, of many Services. Of those with more pods than an object lists, it keeps every address,
/// so that the flip of a pod costs no look at the others.
#[derive(Debug, Default)]
pub struct Planner {
    large: HashMap<ServiceKey, Large>,
}

#[derive(Debug)]
struct Large {
    service: Arc<Service>,
    addresses: Addresses,
    /// Pods that changed since.
    changed: BTreeSet<Text>,
}

impl Planner {
    /// Something changed. What is no single pod's change is worked out from everything.
    pub fn touched(&mut self, touched: &Touched) {
        match (&touched.pod, self.large.get_mut(&touched.key)) {
            (Some(pod), Some(large)) => drop(large.changed.insert(pod.clone())),
            _ => drop(self.large.remove(&touched.key)),
        }
    }

    /// What a Service's Endpoints should say; `None` when they are not ours to write.
    pub fn desired(&mut self, index: &Index, key: &ServiceKey) -> Option<Endpoints> {
        let known = self.large.remove(key);
        let service = index.service(key).filter(|service| service.wants_slices())?;
        let known = known.filter(|large| Arc::ptr_eq(&large.service, service));
        let addresses = known.and_then(|large| large.catch_up(index, key));
        let addresses = match addresses {
            Some(addresses) => addresses,
            None => Addresses::of(service, &index.inputs(key)?.pods, index.nodes()),
        };
        let endpoints = addresses.endpoints(service);
        // On a withdrawn node, one pod's condition decides about others.
        if addresses.of_pods.len() > MAX_ADDRESSES && !addresses.withdrawn {
            let large = Large {
                service: service.clone(),
                addresses,
                changed: BTreeSet::new(),
            };
            self.large.insert(key.clone(), large);
        }
        Some(endpoints)
    }
}

impl Large {
    fn catch_up(mut self, index: &Index, key: &ServiceKey) -> Option<Addresses> {
        for name in &self.changed {
            self.addresses.remove(name);
            if let Some(pod) = index.selected(key, name) {
                if is_withdrawn(pod, index.nodes()) {
                    return None;
                }
                self.addresses.insert(&self.service, pod, pod.is_ready());
            }
        }
        Some(self.addresses)
    }
}

/// Every address of a Service.
#[derive(Debug, Default)]
struct Addresses {
    by_ports: BTreeMap<PortSet, Subset>,
    of_pods: HashMap<Text, Address>,
    /// Whether a pod is on a node that others do not reach.
    withdrawn: bool,
}

impl Addresses {
    fn of(service: &Service, pods: &[&Pod], nodes: &Nodes) -> Self {
        let mut withdrawals = Withdrawals::default();
        let mut addresses = Self::default();
        for pod in pods.iter().filter(|pod| pod.has_endpoint()) {
            let withdrawn = is_withdrawn(pod, nodes);
            withdrawals.count(pod, withdrawn);
            addresses.withdrawn |= withdrawn;
        }
        let avoid = withdrawals.apply(service);
        for pod in pods {
            let ready = pod.is_ready() && !(avoid && is_withdrawn(pod, nodes));
            addresses.insert(service, pod, ready);
        }
        addresses
    }

    fn insert(&mut self, service: &Service, pod: &Pod, ready: bool) {
        let Some(address) = address(service, pod) else {
            return;
        };
        let ports = ports(service, pod);
        // A pod that offers none of the ports is no endpoint here; without any ports, only a
        // headless Service has endpoints.
        if ports.is_empty() && !(service.ports.is_empty() && service.asks_for_no_cluster_ip()) {
            return;
        }
        self.of_pods.insert(pod.metadata.name.clone(), address.clone());
        let subset = self.by_ports.entry(ports).or_insert_with_key(|ports| Subset {
            ports: ports.clone(),
            ..Subset::default()
        });
        if service.publish_not_ready || ready {
            subset.addresses.insert(address);
        } else {
            subset.not_ready.insert(address);
        }
    }

    fn remove(&mut self, pod: &str) {
        let Some(address) = self.of_pods.remove(pod) else {
            return;
        };
        for subset in self.by_ports.values_mut() {
            let _ = subset.addresses.remove(&address) || subset.not_ready.remove(&address);
        }
        self.by_ports
            .retain(|_, subset| !(subset.addresses.is_empty() && subset.not_ready.is_empty()));
    }

    /// At most [`MAX_ADDRESSES`], ready ones first, each subset by its share.
    fn endpoints(&self, service: &Service) -> Endpoints {
        let subsets = || self.by_ports.values();
        let ready = subsets().map(|subset| subset.addresses.len()).sum();
        let not_ready = subsets().map(|subset| subset.not_ready.len()).sum();
        let mut first = Cut::new(ready, MAX_ADDRESSES);
        let mut second = Cut::new(not_ready, MAX_ADDRESSES.saturating_sub(ready));
        let subsets = subsets().map(|subset| Subset {
            ports: subset.ports.clone(),
            addresses: first.take(&subset.addresses),
            not_ready: second.take(&subset.not_ready),
        });
        let labels = service.metadata.labels.iter();
        let mirrored = labels.filter(|(key, _)| ![MANAGED_BY_LABEL, HEADLESS_LABEL].contains(key));
        let headless = service.is_headless().then_some((HEADLESS_LABEL, ""));
        Endpoints {
            labels: Labels::new(
                mirrored
                    .chain([(MANAGED_BY_LABEL, CONTROLLER_NAME)])
                    .chain(headless),
            ),
            subsets: subsets.collect(),
            truncated: ready + not_ready > MAX_ADDRESSES,
            ..Endpoints::default()
        }
    }
}

/// How a number of addresses is cut down to the room that there is.
struct Cut {
    total: usize,
    room: usize,
    left: usize,
}

impl Cut {
    fn new(total: usize, room: usize) -> Self {
        let left = room;
        Self { total, room, left }
    }

    fn take(&mut self, addresses: &BTreeSet<Address>) -> BTreeSet<Address> {
        if self.total <= self.room {
            return addresses.clone();
        }
        let share = (addresses.len() * self.room).div_ceil(self.total).min(self.left);
        self.left -= share;
        addresses.iter().take(share).cloned().collect()
    }
}

fn is_withdrawn(pod: &Pod, nodes: &Nodes) -> bool {
    let node = pod.node_name.as_ref().and_then(|name| nodes.get(name));
    node.is_some_and(|node| node.withdrawn)
}

fn address(service: &Service, pod: &Pod) -> Option<Address> {
    if !pod.has_endpoint() || (pod.is_terminating() && !service.publish_not_ready) {
        return None;
    }
    let family = service.families.first()?;
    Some(Address {
        ip: pod
            .ips
            .iter()
            .copied()
            .find(|ip| AddressType::of(*ip) == *family)?,
        hostname: hostname(pod, service).cloned(),
        node_name: pod.node_name.clone(),
        target: Some(PodRef {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        }),
    })
}
