//! What does a Kubernetes object mean to a proxy?
//!
//! Each object is converted once, for both IP families. A field that cannot be read costs only itself:
//! it is left out and reported as a [`Problem`], and the rest of the object goes on. Only what protects a
//! Service is not dropped that lightly: source ranges that cannot be read close its load balancer addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;

use pointsman_model::{
    Address, Affinity, BadName, Cidr, External, Hints, Interner, IpFamily, Moment, NodePort, Port, Protocol,
    Revision, Service, ServiceName, ServicePort, Slice, SliceEndpoint, SliceName, SlicePort, TrafficPolicy,
    Zone, parse_ip,
};
use pointsman_objects::node::AddressKind;
use pointsman_objects::{Node, compact, names as known};

/// How long a client stays with an endpoint if the Service does not say (API default).
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// A field that was left out because it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} cannot be {value:?} and was left out{effect}")]
pub struct Problem {
    /// Kind, namespace and name of the object.
    pub object: String,
    /// The path of the field.
    pub field: &'static str,
    pub value: String,
    pub effect: Effect,
}

/// What follows from leaving a field out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The object is served as if the field were not there.
    AsIfUnset,
    /// No source range of this family is left, so nobody may use the load balancer addresses.
    AdmitsNobody(IpFamily),
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AsIfUnset => Ok(()),
            Self::AdmitsNobody(family) => {
                let family = family.as_str();
                write!(
                    f,
                    "; without a readable {family} range, its {family} load balancer addresses admit nobody"
                )
            }
        }
    }
}

/// A Service as each family sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedService {
    pub name: ServiceName,
    pub revision: Option<Revision>,
    /// When this version was written, as far as the API server wrote that down.
    pub written: Option<Moment>,
    /// The IPv4 half, if there is one to program.
    pub v4: Option<Service<Ipv4Addr>>,
    /// The IPv6 half, if there is one to program.
    pub v6: Option<Service<Ipv6Addr>>,
    /// What was left out.
    pub problems: Vec<Problem>,
}

/// A slice of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilySlice {
    /// IPv4 addresses.
    V4(Slice<Ipv4Addr>),
    /// IPv6 addresses.
    V6(Slice<Ipv6Addr>),
    /// Nothing for us: host names, a headless Service, or no Service at all.
    Ignored(SliceName),
}

/// A slice and what came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedSlice {
    pub slice: FamilySlice,
    pub revision: Option<Revision>,
    /// When the change behind it happened.
    pub trigger: Option<Moment>,
    /// What was left out.
    pub problems: Vec<Problem>,
}

/// What a proxy reads from its own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The zone, if labelled with one.
    pub zone: Option<Zone>,
    /// Internal addresses, then external ones.
    pub addresses: Vec<IpAddr>,
    /// The ranges of the node's pods.
    pub pod_cidrs: Vec<String>,
    /// New load balancer connections may come here: not being deleted, not announced for removal.
    pub eligible: bool,
}

pub fn service(object: &compact::Service, names: &mut Interner) -> Result<ConvertedService, BadName> {
    let name = ServiceName::new(&object.metadata.namespace, &object.metadata.name)?;
    let mut problems = Problems::new("Service");
    let ports = service_ports(&object.spec, names, &mut problems);
    let hidden = object.metadata.labels.contains_key(known::PROXY_NAME_LABEL);
    let headless = matches!(object.spec.cluster_ip.as_str(), "" | "None");
    let (v4, v6) = if hidden || headless || object.spec.kind == "ExternalName" {
        (None, None)
    } else {
        (
            family_service(object, &name, &ports, &mut problems),
            family_service(object, &name, &ports, &mut problems),
        )
    };
    let revision = Revision::parse(&object.metadata.resource_version);
    Ok(ConvertedService {
        problems: problems.found(&name),
        name,
        revision,
        written: object.metadata.written(),
        v4,
        v6,
    })
}

pub fn slice(object: &compact::EndpointSlice, names: &mut Interner) -> Result<ConvertedSlice, BadName> {
    let name = SliceName::new(&object.metadata.namespace, &object.metadata.name)?;
    let mut problems = Problems::new("EndpointSlice");
    let service = object
        .metadata
        .labels
        .get(known::SERVICE_NAME_LABEL)
        .filter(|service| !service.is_empty());
    let headless = object.metadata.labels.contains_key(known::HEADLESS_LABEL);
    let slice = match service {
        Some(service) if !headless => {
            let service = ServiceName::new(&object.metadata.namespace, service)?;
            match object.address_type.as_str() {
                "IPv4" => FamilySlice::V4(family_slice(object, name, service, names, &mut problems)),
                "IPv6" => FamilySlice::V6(family_slice(object, name, service, names, &mut problems)),
                _ => FamilySlice::Ignored(name),
            }
        }
        _ => FamilySlice::Ignored(name),
    };
    let annotation = object.metadata.annotations.get(known::TRIGGER_TIME_ANNOTATION);
    let problems = match &slice {
        FamilySlice::V4(slice) => problems.found(&slice.name),
        FamilySlice::V6(slice) => problems.found(&slice.name),
        FamilySlice::Ignored(name) => problems.found(name),
    };
    Ok(ConvertedSlice {
        slice,
        revision: Revision::parse(&object.metadata.resource_version),
        trigger: annotation.and_then(|text| Moment::parse(text)),
        problems,
    })
}

/// Converts the proxy's own Node.
pub fn node(object: &Node) -> NodeFacts {
    let external = object.addresses_of(AddressKind::External);
    NodeFacts {
        zone: object.zone().map(Zone::from),
        addresses: object.internal_addresses().chain(external).collect(),
        pod_cidrs: object.pod_cidrs.iter().map(ToString::to_string).collect(),
        eligible: !object.is_leaving(),
    }
}

struct Problems {
    kind: &'static str,
    found: Vec<(&'static str, String, Effect)>,
}

impl Problems {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            found: Vec::new(),
        }
    }

    fn report(&mut self, field: &'static str, value: impl ToString) {
        self.report_with(field, value, Effect::AsIfUnset);
    }

    fn report_with(&mut self, field: &'static str, value: impl ToString, effect: Effect) {
        self.found.push((field, value.to_string(), effect));
    }

    /// Each problem once, although both families meet it.
    fn found(mut self, name: impl std::fmt::Display) -> Vec<Problem> {
        self.found.sort();
        self.found.dedup();
        let found = self.found.into_iter();
        found
            .map(|(field, value, effect)| Problem {
                object: format!("{} {name}", self.kind),
                field,
                value,
                effect,
            })
            .collect()
    }
}

fn service_ports(
    spec: &compact::ServiceSpec,
    names: &mut Interner,
    problems: &mut Problems,
) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
    for raw in &spec.ports {
        let Some(protocol) = read_protocol(raw.protocol.as_deref()) else {
            problems.report("spec.ports.protocol", raw.protocol.as_deref().unwrap_or_default());
            continue;
        };
        let Ok(port) = Port::from_wire(raw.port) else {
            problems.report("spec.ports.port", raw.port);
            continue;
        };
        // The API server refuses such twins; rules for both would contradict each other.
        let twin = ports.iter().any(|known| {
            known.protocol == protocol && (known.port == port || known.name.as_str() == raw.name)
        });
        if twin {
            problems.report("spec.ports", format!("{} {}/{}", raw.name, port, protocol));
            continue;
        }
        let node_port = match raw.node_port {
            0 => None,
            number => match Port::from_wire(number) {
                Ok(number) => Some(NodePort(number)),
                Err(_) => {
                    problems.report("spec.ports.nodePort", number);
                    None
                }
            },
        };
        ports.push(ServicePort {
            name: names.intern(&raw.name),
            protocol,
            port,
            node_port,
        });
    }
    ports
}

/// A missing protocol is TCP, as the API server would have filled in.
fn read_protocol(text: Option<&str>) -> Option<Protocol> {
    match text {
        None | Some("") => Some(Protocol::Tcp),
        Some(text) => Protocol::from_wire(text),
    }
}

fn family_service<A: Address>(
    object: &compact::Service,
    name: &ServiceName,
    ports: &[ServicePort],
    problems: &mut Problems,
) -> Option<Service<A>> {
    let spec = &object.spec;
    let cluster_ip = cluster_ip::<A>(spec, problems)?;
    let external_ips = addresses(&spec.external_ips, "spec.externalIPs", problems);
    let reachable = match spec.kind.as_str() {
        "NodePort" | "LoadBalancer" => true,
        _ => !spec.external_ips.is_empty(),
    };
    let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let external_policy = match reachable && local(&spec.external_traffic_policy) {
        true => TrafficPolicy::Local,
        false => TrafficPolicy::Cluster,
    };
    let health_check = (spec.kind == "LoadBalancer" && external_policy == TrafficPolicy::Local)
        .then(|| match Port::from_wire(spec.health_check_node_port) {
            Ok(port) => Some(NodePort(port)),
            Err(_) => {
                problems.report("spec.healthCheckNodePort", spec.health_check_node_port);
                None
            }
        })
        .flatten();
    let external = External {
        external_ips,
        load_balancer_vips: vips(object, problems),
        source_ranges: source_ranges(spec, problems),
        health_check,
    };
    Some(Service {
        name: name.clone(),
        created: object.metadata.created,
        cluster_ip,
        internal_policy: match local(&spec.internal_traffic_policy) {
            true => TrafficPolicy::Local,
            false => TrafficPolicy::Cluster,
        },
        external_policy,
        affinity: affinity(spec),
        ports: ports.into(),
        external: (!external.is_empty()).then(|| Box::new(external)),
    })
}

/// The cluster address of this family: the position of the family in `ipFamilies` is the position of
/// its address in `clusterIPs`. Objects older than dual stack have only `clusterIP`.
fn cluster_ip<A: Address>(spec: &compact::ServiceSpec, problems: &mut Problems) -> Option<A> {
    let text = if spec.ip_families.is_empty() {
        &spec.cluster_ip
    } else {
        let position = spec
            .ip_families
            .iter()
            .position(|family| family == A::FAMILY.as_str())?;
        spec.cluster_ips.get(position)?
    };
    match parse_ip(text) {
        Ok(address) => A::narrow(address),
        Err(_) => {
            problems.report("spec.clusterIPs", text);
            None
        }
    }
}

/// The readable addresses of this family, each once, in order.
fn addresses<A: Address>(texts: &[String], field: &'static str, problems: &mut Problems) -> Box<[A]> {
    let mut found: Vec<A> = Vec::new();
    for text in texts {
        match parse_ip(text) {
            Ok(address) => found.extend(A::narrow(address).filter(|address| !found.contains(address))),
            Err(_) if text.is_empty() => {}
            Err(_) => problems.report(field, text),
        }
    }
    found.into()
}

/// Load balancer addresses whose packets arrive with that address as their destination.
fn vips<A: Address>(object: &compact::Service, problems: &mut Problems) -> Box<[A]> {
    let ingress = &object.status.load_balancer.ingress;
    let vips = ingress
        .iter()
        .filter(|ingress| matches!(ingress.ip_mode.as_deref(), None | Some("VIP")));
    let texts: Vec<String> = vips.map(|ingress| ingress.ip.clone()).collect();
    addresses(&texts, "status.loadBalancer.ingress.ip", problems)
}

/// The source ranges of this family; one that allows everybody makes the rest pointless.
///
/// Somebody who wrote a range wanted a restriction: if no range of the family is left but some cannot be
/// read, nobody is admitted. Ranges of the other family alone restrict nothing, as upstream.
fn source_ranges<A: Address>(spec: &compact::ServiceSpec, problems: &mut Problems) -> Option<Box<[Cidr<A>]>> {
    let mut ranges: Vec<Cidr<A>> = Vec::new();
    let mut unreadable: Vec<&str> = Vec::new();
    for text in &spec.load_balancer_source_ranges {
        match Cidr::parse(text.trim()) {
            Ok(range) => ranges.extend(range),
            Err(_) if text.trim().is_empty() => {}
            Err(_) => unreadable.push(text),
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    let effect = match ranges.is_empty() {
        true => Effect::AdmitsNobody(A::FAMILY),
        false => Effect::AsIfUnset,
    };
    for text in &unreadable {
        problems.report_with("spec.loadBalancerSourceRanges", text, effect);
    }
    let unrestricted = (ranges.is_empty() && unreadable.is_empty()) || ranges.iter().any(Cidr::is_everything);
    (!unrestricted).then(|| ranges.into())
}

fn affinity(spec: &compact::ServiceSpec) -> Option<Affinity> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let configured = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref());
    let seconds = configured
        .and_then(|config| config.timeout_seconds)
        .and_then(|seconds| seconds.try_into().ok());
    NonZeroU32::new(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS))
        .or(NonZeroU32::new(DEFAULT_AFFINITY_SECONDS))
        .map(|timeout_seconds| Affinity { timeout_seconds })
}

fn family_slice<A: Address>(
    object: &compact::EndpointSlice,
    name: SliceName,
    service: ServiceName,
    names: &mut Interner,
    problems: &mut Problems,
) -> Slice<A> {
    Slice {
        name,
        service,
        ports: slice_ports(object, names, problems),
        endpoints: slice_endpoints(object, names, problems),
    }
}

fn slice_ports(
    object: &compact::EndpointSlice,
    names: &mut Interner,
    problems: &mut Problems,
) -> Arc<[SlicePort]> {
    let mut ports = Vec::with_capacity(object.ports.len());
    for raw in &object.ports {
        // A port without a name or number belongs to no Service port; nil does not mean "all ports".
        let (Some(port_name), Some(number)) = (&raw.name, raw.port) else {
            continue;
        };
        match (read_protocol(raw.protocol.as_deref()), Port::from_wire(number)) {
            (Some(protocol), Ok(port)) => {
                ports.push(SlicePort {
                    name: names.intern(port_name),
                    protocol,
                    port,
                });
            }
            (None, _) => problems.report("ports.protocol", raw.protocol.as_deref().unwrap_or_default()),
            (_, Err(_)) if number == 0 => {}
            (_, Err(_)) => problems.report("ports.port", number),
        }
    }
    ports.into()
}

fn slice_endpoints<A: Address>(
    object: &compact::EndpointSlice,
    names: &mut Interner,
    problems: &mut Problems,
) -> Box<[SliceEndpoint<A>]> {
    let mut endpoints: Vec<SliceEndpoint<A>> = Vec::with_capacity(object.endpoints.len());
    for raw in &object.endpoints {
        let Some(text) = raw.addresses.first() else {
            continue;
        };
        let Some(address) = parse_ip(text).ok().and_then(A::narrow) else {
            problems.report("endpoints.addresses", text);
            continue;
        };
        let hints = hints(raw, names);
        // Neighbours usually carry the same hints; they then share them.
        let hints = match endpoints.last().map(|last| &last.hints) {
            Some(previous) if *previous == hints => previous.clone(),
            _ => hints,
        };
        endpoints.push(SliceEndpoint {
            address,
            conditions: raw.conditions.resolved(),
            node: raw.node_name.as_deref().map(|node| names.intern(node)),
            hints,
        });
    }
    endpoints.into()
}

fn hints(endpoint: &compact::Endpoint, names: &mut Interner) -> Option<Arc<Hints>> {
    let raw = endpoint.hints.as_ref()?;
    let zones: Box<[Zone]> = raw
        .for_zones
        .iter()
        .map(|hint| names.intern(&hint.name))
        .collect();
    let nodes = raw
        .for_nodes
        .iter()
        .map(|hint| names.intern(&hint.name))
        .collect();
    Some(Arc::new(Hints { zones, nodes })).filter(|hints| !hints.zones.is_empty() || !hints.nodes.is_empty())
}

#[cfg(test)]
mod tests;
