//! Which endpoints should a Service have, in one address family, grouped by their ports?

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::node::Nodes;
use crate::plan::Settings;
use pointsman_model::Text;
use pointsman_objects::endpoint_slice::{
    AddressType, Endpoint, EndpointConditions, EndpointPort, Hints, PodRef,
};
use pointsman_objects::pod::NamedPort;
use pointsman_objects::service::{ServicePort, TargetPort};
use pointsman_objects::{Pod, Service};

/// A sorted set of ports; pods with equal sets share slices.
pub(crate) type PortSet = Box<[EndpointPort]>;

/// One endpoint we want, borrowed from its pod until it has to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desired<'a> {
    pub pod: &'a Pod,
    pub family: AddressType,
    pub conditions: EndpointConditions,
    pub hostname: Option<&'a Text>,
    pub zone: Option<&'a Text>,
    /// On a node that others do not reach.
    withdrawn: bool,
}

/// The endpoints of one family, and the pods that had to be left out for want of their node.
#[derive(Default)]
pub(crate) struct DesiredFamily<'a> {
    pub groups: BTreeMap<PortSet, Vec<Desired<'a>>>,
    pub skipped: Vec<Text>,
    /// Whether one of them is on a node that others do not reach.
    pub withdrawn: bool,
}

/// Selects the pods that are endpoints, and says what each endpoint shows.
pub(crate) fn select<'a>(
    service: &Service,
    pods: &[&'a Pod],
    nodes: &'a Nodes,
    family: AddressType,
    settings: &Settings,
) -> DesiredFamily<'a> {
    let mut skipped = Vec::new();
    // Pods of a template offer the same ports, so a set is resolved once per list of named ports and
    // not once per pod.
    let mut resolved: HashMap<&[NamedPort], usize> = HashMap::new();
    let mut groups: Vec<(PortSet, Vec<Desired<'a>>)> = Vec::new();
    let mut last: Option<(&[NamedPort], usize)> = None;
    let mut withdrawals = Withdrawals::default();
    for pod in pods {
        if !belongs(pod, service, family, settings) {
            continue;
        }
        let node = pod.node_name.as_ref().and_then(|name| nodes.get(name));
        if node.is_none() && !service.publish_not_ready {
            skipped.push(pod.metadata.name.clone());
            continue;
        }
        let group = match last {
            Some((ports, group)) if *ports == *pod.common.named_ports => group,
            _ => *resolved.entry(&pod.common.named_ports).or_insert_with(|| {
                groups.push((ports(service, pod), Vec::new()));
                groups.len() - 1
            }),
        };
        last = Some((&pod.common.named_ports, group));
        let withdrawn = node.is_some_and(|node| node.withdrawn);
        withdrawals.count(pod, withdrawn);
        groups[group].1.push(Desired {
            pod,
            family,
            conditions: conditions(pod, service.publish_not_ready, settings),
            hostname: hostname(pod, service),
            zone: node.and_then(|node| node.zone.as_ref()),
            withdrawn,
        });
    }
    if withdrawals.apply(service) {
        for endpoint in groups.iter_mut().flat_map(|(_, endpoints)| endpoints) {
            endpoint.withdraw();
        }
    }
    skipped.sort();
    let mut desired = DesiredFamily {
        groups: BTreeMap::new(),
        skipped,
        withdrawn: withdrawals.any,
    };
    for (ports, mut endpoints) in groups {
        desired.groups.entry(ports).or_default().append(&mut endpoints);
    }
    desired
}

/// Resolves the Service's ports in one pod; what the pod does not offer is left out.
pub(crate) fn ports(service: &Service, pod: &Pod) -> PortSet {
    let mut ports: Vec<EndpointPort> = service
        .ports
        .iter()
        .filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone(),
                protocol: port.protocol,
                port: Some(find_port(port, pod)?),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports.into()
}

/// The number behind a Service port in a pod.
pub(crate) fn find_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => pod
            .common
            .named_ports
            .iter()
            .find(|candidate| candidate.name == *name && candidate.protocol == port.protocol)
            .map(|candidate| candidate.port),
    }
}

/// The name the pod has below the Service's domain.
pub(crate) fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a Text> {
    pod.hostname.as_ref().filter(|_| {
        pod.metadata.namespace == service.metadata.namespace
            && pod.common.subdomain.as_ref() == Some(&service.metadata.name)
    })
}

fn belongs(pod: &Pod, service: &Service, family: AddressType, settings: &Settings) -> bool {
    let terminating_allowed = settings.terminating_condition || service.publish_not_ready;
    pod.has_endpoint()
        && (terminating_allowed || !pod.is_terminating())
        && pod.ips.iter().any(|ip| AddressType::of(*ip) == family)
}

fn conditions(pod: &Pod, publish_not_ready: bool, settings: &Settings) -> EndpointConditions {
    let (serving, terminating) = (pod.is_ready(), pod.is_terminating());
    EndpointConditions {
        ready: Some(publish_not_ready || (serving && !terminating)),
        serving: settings.terminating_condition.then_some(serving),
        terminating: settings.terminating_condition.then_some(terminating),
    }
}

/// Whether a Service can do without its endpoints on nodes that others do not reach.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Withdrawals {
    any: bool,
    ready_elsewhere: bool,
}

impl Withdrawals {
    pub fn count(&mut self, pod: &Pod, withdrawn: bool) {
        self.any |= withdrawn;
        self.ready_elsewhere |= !withdrawn && pod.is_ready() && !pod.is_terminating();
    }

    /// If all that is ready is on such nodes it stays: they may be the ones that can be reached after all. Who
    /// asks for endpoints that are not ready gets these too.
    pub fn apply(self, service: &Service) -> bool {
        self.any && self.ready_elsewhere && !service.publish_not_ready
    }
}

impl Desired<'_> {
    /// Takes the endpoint out of use if its node is withdrawn. It does not serve either: proxies fall back on
    /// endpoints that serve while they terminate, and nobody reaches this one.
    fn withdraw(&mut self) {
        if self.withdrawn {
            self.conditions.ready = Some(false);
            self.conditions.serving = self.conditions.serving.map(|_| false);
        }
    }

    /// Whether the endpoint counts for hints and for traffic.
    pub fn ready(&self) -> bool {
        self.conditions.ready == Some(true)
    }

    /// Whether `existing` is this endpoint, in whatever condition.
    pub fn is(&self, existing: &Endpoint) -> bool {
        let pod = &self.pod.metadata;
        existing
            .target
            .as_ref()
            .is_some_and(|target| target.name == pod.name && target.namespace == pod.namespace)
            && existing.hostname.as_ref() == self.hostname
            && self.has_addresses(&existing.addresses)
    }

    /// Whether `existing`, known to be this endpoint, already shows what it should.
    ///
    /// Without the gate, conditions written earlier stay until something else needs a write.
    pub fn shown_by(&self, existing: &Endpoint) -> bool {
        let (want, have) = (self.conditions, existing.conditions);
        let same_conditions = want.ready == have.ready
            && (want.serving.is_none() || want.serving == have.serving)
            && (want.terminating.is_none() || want.terminating == have.terminating);
        same_conditions
            && existing.node_name == self.pod.node_name
            && existing.zone.as_ref() == self.zone
            && existing
                .target
                .as_ref()
                .is_some_and(|target| target.uid == self.pod.metadata.uid)
    }

    /// The endpoint as it is written.
    pub fn to_endpoint(self, hints: Option<Box<Hints>>) -> Endpoint {
        Endpoint {
            addresses: self.addresses().into_iter().collect(),
            conditions: self.conditions,
            hostname: self.hostname.cloned(),
            node_name: self.pod.node_name.clone(),
            zone: self.zone.cloned(),
            target: Some(PodRef {
                namespace: self.pod.metadata.namespace.clone(),
                name: self.pod.metadata.name.clone(),
                uid: self.pod.metadata.uid.clone(),
            }),
            hints,
        }
    }

    fn has_addresses(&self, existing: &[IpAddr]) -> bool {
        if let [only] = &*self.pod.ips {
            return existing == [*only];
        }
        *existing == *self.addresses()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self
            .pod
            .ips
            .iter()
            .copied()
            .filter(|ip| AddressType::of(*ip) == self.family)
            .collect();
        addresses.sort();
        addresses
    }
}
