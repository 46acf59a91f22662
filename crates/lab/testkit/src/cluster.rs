//! How do I say a cluster in a few lines?
//!
//! One object per line, `key=value` options in any order, `#` starts a comment:
//!
//! ```text
//! node n1 ip=192.168.0.2 zone=z1 pods=10.0.0.0/8     the node the proxy runs on
//! service default/web:http 172.30.0.1:80/tcp nodeport=30080 external=203.0.113.7 lb=198.51.100.1
//! endpoint default/web:http 10.0.2.5:8080 node=n2 ready
//! ```
//!
//! `node` options: `ip=` (several allowed, separated by commas; the first is the node IP), `zone=`,
//! `pods=` (local detector by range), `bridge=` and `prefix=` (by interface), `nodeports=` (as
//! `nodePortAddresses`), and the words `masquerade-all`, `no-localhost-nodeports`,
//! `localhost-nodeports-gate`, `no-external-ips`.
//!
//! `service` options: `nodeport=`, `external=`, `lb=`, `lb-proxy=` (ipMode Proxy), `ranges=`, `policy=`
//! (external), `internal=`, `affinity=` (seconds), `healthcheck=`, `created=` (seconds). A second line for the
//! same Service adds a port.
//!
//! `endpoint` options: `node=`, `zones=`, `nodes=` (hints), `slice=` (to spread over several slices),
//! `udp`/`sctp`, and one of `ready` (the default), `unready`, `serving-unready`, `terminating` (still
//! serving), `gone` (terminating, not serving).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use pointsman_dataplane::settings::NodePortRanges;
use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{
    Fate, Host, Index, InterfaceName, LocalDetector, Localhost, Packet, SeenAs, Settings, convert,
};
use pointsman_model::{
    Address, Backend, Interner, Moment, NodeName, Port, Protocol, Service, ServiceName, Slice, Zone, parse_ip,
};
use pointsman_objects::endpoint_slice::EndpointConditions;
use pointsman_objects::{compact, names};

/// A cluster as tests describe it.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Its Services, by `namespace/name`.
    pub services: BTreeMap<String, compact::Service>,
    /// Its slices, by `namespace/name`.
    pub slices: BTreeMap<String, compact::EndpointSlice>,
    node: Node,
}

#[derive(Clone, Debug, Default)]
struct Node {
    name: String,
    zone: Option<String>,
    ips: Vec<IpAddr>,
    pods: Vec<String>,
    bridge: Option<String>,
    prefix: Option<String>,
    node_ports: Vec<String>,
    words: Vec<String>,
}

impl Cluster {
    /// Reads the description. Mistakes in it are mistakes in a test, so they panic with the line.
    pub fn parse(text: &str) -> Self {
        let mut cluster = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (None, _) => {}
                (Some("node"), Some(name)) => cluster.node(name, &options(words)),
                (Some("service"), Some(name)) => {
                    let target = words.next().unwrap_or_else(|| panic!("no address in {line:?}"));
                    cluster.service(name, target, &options(words));
                }
                (Some("endpoint"), Some(name)) => {
                    let target = words.next().unwrap_or_else(|| panic!("no address in {line:?}"));
                    cluster.endpoint(name, target, &options(words));
                }
                _ => panic!("not a line of a cluster: {line:?}"),
            }
        }
        cluster
    }

    /// The index of one family with everything folded in.
    pub fn index<A: Family>(&self) -> Index<A> {
        let external_ips = match self.node.words.iter().any(|word| word == "no-external-ips") {
            true => ExternalIps::Refused,
            false => ExternalIps::Honoured,
        };
        let mut index = Index::new(NodeName::from(self.node.name.as_str()), external_ips, Moment(0));
        index.set_zone(self.node.zone.as_deref().map(Zone::from));
        self.fold_into(&mut index);
        index
    }

    /// Folds every object into an index, as a watch would deliver them.
    pub fn fold_into<A: Family>(&self, index: &mut Index<A>) {
        let mut names = Interner::default();
        for object in self.services.values() {
            let converted = convert::service(object, &mut names).expect("the name was checked");
            let name = converted.name.clone();
            let revision = converted.revision;
            index.fold_service(&name, A::service(converted), revision);
        }
        for object in self.slices.values() {
            let converted = convert::slice(object, &mut names).expect("the name was checked");
            let (revision, trigger) = (converted.revision, converted.trigger);
            if let Some(slice) = A::slice(converted) {
                index.fold_slice(slice, revision, trigger);
            }
        }
    }

    /// What the backends need to know about the node.
    pub fn settings<A: Family>(&self) -> Settings<A> {
        let node = &self.node;
        let ips: Vec<A> = self.host().addresses;
        let interface = |name: &String| InterfaceName::try_new(name).expect("an interface name");
        let word = |word: &str| node.words.iter().any(|known| known == word);
        let local = match (&node.bridge, &node.prefix) {
            (Some(bridge), _) => LocalDetector::Bridge(interface(bridge)),
            (None, Some(prefix)) => LocalDetector::InterfacePrefix(interface(prefix)),
            (None, None) => LocalDetector::from_ranges(node.pods.iter().map(String::as_str)),
        };
        let mut interfaces = ips.clone();
        interfaces.push(A::LOOPBACK_ADDRESS);
        let node_ports = NodePortRanges {
            entries: node.node_ports.clone(),
        };
        Settings {
            masquerade_all: word("masquerade-all"),
            local,
            localhost: match word("localhost-nodeports-gate") {
                true => node_ports.localhost::<A>(),
                false => Localhost::Ignored,
            },
            node_ports: node_ports.resolve(ips.first().copied(), &interfaces),
            node_ip: ips.first().copied(),
            localhost_node_ports: !word("no-localhost-nodeports"),
            ..Settings::default()
        }
    }

    /// The node as packets meet it.
    pub fn host<A: Address>(&self) -> Host<A> {
        Host {
            addresses: self.node.ips.iter().copied().filter_map(A::narrow).collect(),
        }
    }

    fn node(&mut self, name: &str, options: &[(String, String)]) {
        self.node.name = name.to_owned();
        for (key, value) in options {
            match key.as_str() {
                "ip" => {
                    self.node.ips = list(value)
                        .iter()
                        .map(|ip| parse_ip(ip).expect("an address"))
                        .collect()
                }
                "zone" => self.node.zone = Some(value.clone()),
                "pods" => self.node.pods = list(value),
                "bridge" => self.node.bridge = Some(value.clone()),
                "prefix" => self.node.prefix = Some(value.clone()),
                "nodeports" => self.node.node_ports = list(value),
                word if value.is_empty() => self.node.words.push(word.to_owned()),
                _ => panic!("a node has no option {key:?}"),
            }
        }
    }

    fn service(&mut self, name: &str, target: &str, options: &[(String, String)]) {
        let (service, port_name) = split_port_name(name);
        let (address, port, protocol) = parse_target(target);
        let object = self.services.entry(service.to_owned()).or_default();
        let (namespace, plain) = service.split_once('/').expect("namespace/name");
        object.metadata.namespace = namespace.to_owned();
        object.metadata.name = plain.to_owned();
        object.spec.cluster_ip = address.clone();
        object.spec.cluster_ips = vec![address.clone()];
        object.spec.ip_families = vec![if address.contains(':') { "IPv6" } else { "IPv4" }.to_owned()];
        object.spec.kind = "ClusterIP".to_owned();
        let mut wire_port = compact::ServicePort {
            name: port_name.to_owned(),
            protocol: Some(protocol.to_string().to_uppercase()),
            port: port.into(),
            node_port: 0,
        };
        for (key, value) in options {
            if key == "created" {
                object.metadata.created = Some(Moment::from_seconds(value.parse().expect("seconds")));
                continue;
            }
            service_option(&mut object.spec, &mut object.status, &mut wire_port, key, value);
        }
        object.spec.ports.push(wire_port);
        if object.spec.ports.iter().any(|port| port.node_port != 0) {
            object.spec.kind = "NodePort".to_owned();
        }
        if !object.status.load_balancer.ingress.is_empty() || object.spec.health_check_node_port != 0 {
            object.spec.kind = "LoadBalancer".to_owned();
        }
    }

    fn endpoint(&mut self, name: &str, target: &str, options: &[(String, String)]) {
        let (service, port_name) = split_port_name(name);
        let (namespace, plain) = service.split_once('/').expect("namespace/name");
        let (address, port, mut protocol) = parse_target(target);
        let mut endpoint = compact::Endpoint {
            addresses: vec![address.clone()],
            ..Default::default()
        };
        let mut hints = compact::EndpointHints::default();
        let mut slice = "a";
        for (key, value) in options {
            let named = || {
                list(value)
                    .into_iter()
                    .map(|name| compact::NamedHint { name })
                    .collect::<Vec<_>>()
            };
            let mut conditions = |ready, serving, terminating| {
                endpoint.conditions = EndpointConditions {
                    ready: Some(ready),
                    serving: Some(serving),
                    terminating: Some(terminating),
                };
            };
            match key.as_str() {
                "ready" => conditions(true, true, false),
                "unready" => conditions(false, false, false),
                "serving-unready" => conditions(false, true, false),
                "terminating" => conditions(false, true, true),
                "gone" => conditions(false, false, true),
                "udp" => protocol = Protocol::Udp,
                "sctp" => protocol = Protocol::Sctp,
                "slice" => slice = value,
                "node" => endpoint.node_name = Some(value.clone()),
                "zones" => hints.for_zones = named(),
                "nodes" => hints.for_nodes = named(),
                _ => panic!("an endpoint has no option {key:?}"),
            }
        }
        endpoint.hints = Some(hints);
        // A slice has one list of ports, so endpoints with another port live in a slice of their own.
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let slice_name = format!(
            "{plain}-{slice}-{}-{protocol}-{port_name}-{port}",
            family.to_lowercase()
        );
        let object = self
            .slices
            .entry(format!("{namespace}/{slice_name}"))
            .or_default();
        object.metadata.namespace = namespace.to_owned();
        object.metadata.name = slice_name;
        object
            .metadata
            .labels
            .insert(names::SERVICE_NAME_LABEL.to_owned(), plain.to_owned());
        object.address_type = family.to_owned();
        object.ports = vec![compact::EndpointPort {
            name: Some(port_name.to_owned()),
            protocol: Some(protocol.to_string().to_uppercase()),
            port: Some(port.into()),
        }];
        object.endpoints.push(endpoint);
    }
}

fn service_option(
    spec: &mut compact::ServiceSpec,
    status: &mut compact::ServiceStatus,
    port: &mut compact::ServicePort,
    key: &str,
    value: &str,
) {
    let ingress = |mode: Option<&str>| {
        let mode = mode.map(str::to_owned);
        list(value).into_iter().map(move |ip| compact::Ingress {
            ip,
            ip_mode: mode.clone(),
        })
    };
    match key {
        "nodeport" => port.node_port = value.parse().expect("a port"),
        "external" => spec.external_ips = list(value),
        "lb" => status.load_balancer.ingress.extend(ingress(None)),
        "lb-proxy" => status.load_balancer.ingress.extend(ingress(Some("Proxy"))),
        "ranges" => spec.load_balancer_source_ranges = list(value),
        "policy" => spec.external_traffic_policy = Some(value.to_owned()),
        "internal" => spec.internal_traffic_policy = Some(value.to_owned()),
        "healthcheck" => spec.health_check_node_port = value.parse().expect("a port"),
        "affinity" => {
            spec.session_affinity = Some("ClientIP".to_owned());
            let timeout_seconds = Some(value.parse().expect("seconds"));
            let client_ip = Some(compact::ClientIpConfig { timeout_seconds });
            spec.session_affinity_config = Some(compact::SessionAffinityConfig { client_ip });
        }
        _ => panic!("a service has no option {key:?}"),
    }
}

/// A family that tests can be generic over.
pub trait Family: Address {
    /// 127.0.0.1 or ::1.
    const LOOPBACK_ADDRESS: Self;
    /// This family's half of a Service.
    fn service(converted: convert::ConvertedService) -> Option<Service<Self>>;
    /// The slice, if it is of this family.
    fn slice(converted: convert::ConvertedSlice) -> Option<Slice<Self>>;
}

impl Family for Ipv4Addr {
    const LOOPBACK_ADDRESS: Self = Self::LOCALHOST;

    fn service(converted: convert::ConvertedService) -> Option<Service<Self>> {
        converted.v4
    }

    fn slice(converted: convert::ConvertedSlice) -> Option<Slice<Self>> {
        match converted.slice {
            convert::FamilySlice::V4(slice) => Some(slice),
            _ => None,
        }
    }
}

impl Family for std::net::Ipv6Addr {
    const LOOPBACK_ADDRESS: Self = Self::LOCALHOST;

    fn service(converted: convert::ConvertedService) -> Option<Service<Self>> {
        converted.v6
    }

    fn slice(converted: convert::ConvertedSlice) -> Option<Slice<Self>> {
        match converted.slice {
            convert::FamilySlice::V6(slice) => Some(slice),
            _ => None,
        }
    }
}

/// Reads `10.0.0.1 -> 172.30.0.1:80/tcp [via eth0]`.
pub fn parse_packet<A: Address>(text: &str) -> Packet<A> {
    let (source, rest) = text
        .split_once("->")
        .unwrap_or_else(|| panic!("no arrow in {text:?}"));
    let (target, interface) = match rest.split_once(" via ") {
        Some((target, interface)) => (target, Some(interface.trim())),
        None => (rest, None),
    };
    let (address, port, protocol) = parse_target(target.trim());
    let narrow = |text: &str| {
        A::narrow(parse_ip(text).unwrap_or_else(|error| panic!("{error}"))).expect("the right family")
    };
    Packet {
        source: narrow(source.trim()),
        destination: narrow(&address),
        protocol,
        port: Port::new(port).expect("a port"),
        interface: interface.map(|name| InterfaceName::try_new(name).expect("an interface name")),
    }
}

/// Reads `untouched`, `dropped`, `rejected` or `10.0.0.1:80 masq, 10.0.0.2:80`.
pub fn parse_fate<A: Address>(text: &str) -> Fate<A> {
    match text.trim() {
        "untouched" => Fate::Untouched,
        "dropped" => Fate::Dropped,
        "rejected" => Fate::Rejected,
        backends => Fate::Delivered(
            backends
                .split(',')
                .map(|backend| {
                    let backend = backend.trim();
                    let (target, seen_as) = match backend.strip_suffix(" masq") {
                        Some(target) => (target, SeenAs::Node),
                        None => (backend, SeenAs::Client),
                    };
                    let (address, port, _) = parse_target(&format!("{target}/tcp"));
                    let address = A::narrow(parse_ip(&address).expect("an address")).expect("the family");
                    (
                        Backend {
                            address,
                            port: Port::new(port).expect("a port"),
                        },
                        seen_as,
                    )
                })
                .collect(),
        ),
    }
}

/// The name of a Service in a test.
pub fn service_name(text: &str) -> ServiceName {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    ServiceName::new(namespace, name).expect("a name")
}

fn options<'a>(words: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    words
        .map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

fn list(value: &str) -> Vec<String> {
    value
        .split(',')
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

fn split_port_name(name: &str) -> (&str, &str) {
    name.split_once(':').unwrap_or((name, ""))
}

/// Splits `10.0.0.1:80/tcp` or `[fd00::1]:80`; the protocol defaults to TCP.
fn parse_target(text: &str) -> (String, u16, Protocol) {
    let (target, protocol) = match text.split_once('/') {
        Some((target, protocol)) => (
            target,
            Protocol::from_wire(&protocol.to_uppercase()).unwrap_or_else(|| panic!("{text:?}")),
        ),
        None => (text, Protocol::Tcp),
    };
    let (address, port) = target
        .rsplit_once(':')
        .unwrap_or_else(|| panic!("no port in {text:?}"));
    let address = address.trim_start_matches('[').trim_end_matches(']');
    (
        address.to_owned(),
        port.parse().unwrap_or_else(|_| panic!("no port in {text:?}")),
        protocol,
    )
}
