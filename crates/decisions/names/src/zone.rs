//! Which names does each Service have?

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pointsman_objects::endpoint_slice::{AddressType, Endpoint};
use pointsman_objects::port::Protocol;
use pointsman_objects::{EndpointSlice, Service};

use crate::{Answer, Data, Kind, Record};

/// The version of the specification that names follow.
const VERSION: &str = "1.1.0";
/// How many ExternalName Services may lead to each other.
const ALIASES: usize = 8;

/// Namespace and name.
type Key = (Box<str>, Box<str>);

/// Everything the cluster's DNS knows.
#[derive(Debug, Default)]
pub struct Zone {
    domain: Box<str>,
    namespaces: BTreeMap<Box<str>, HashMap<Box<str>, Entry>>,
    /// Which Service a slice was counted for.
    owners: HashMap<Key, Box<str>>,
    /// The names of an address.
    reverse: HashMap<IpAddr, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Entry {
    service: Option<Arc<Service>>,
    slices: BTreeMap<Box<str>, Arc<EndpointSlice>>,
    /// What it has put into the reverse index.
    reverse: Vec<(IpAddr, String)>,
}

impl Zone {
    /// An empty zone below a domain such as `cluster.local`.
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.trim_matches('.').to_ascii_lowercase().into(),
            ..Self::default()
        }
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// A Service is like this now, or gone.
    pub fn set_service(&mut self, namespace: &str, name: &str, service: Option<Arc<Service>>) {
        self.change(namespace, name, |entry| entry.service = service);
    }

    /// A slice is like this now, or gone.
    pub fn set_slice(&mut self, namespace: &str, name: &str, slice: Option<Arc<EndpointSlice>>) {
        let key = (namespace.into(), name.into());
        let service: Option<Box<str>> = slice
            .as_ref()
            .and_then(|slice| slice.service_name())
            .map(Into::into);
        let before = match &service {
            Some(service) => self.owners.insert(key, service.clone()),
            None => self.owners.remove(&key),
        };
        if let Some(before) = before.filter(|before| Some(before) != service.as_ref()) {
            self.change(namespace, &before, |entry| drop(entry.slices.remove(name)));
        }
        if let Some((service, slice)) = service.zip(slice) {
            self.change(namespace, &service, |entry| {
                drop(entry.slices.insert(name.into(), slice));
            });
        }
    }

    fn change(&mut self, namespace: &str, name: &str, change: impl FnOnce(&mut Entry)) {
        let services = self.namespaces.entry(namespace.into()).or_default();
        let entry = services.entry(name.into()).or_default();
        change(entry);
        let base = format!("{name}.{namespace}.svc.{}", self.domain);
        let after = entry.reverse_names(&base);
        let before = std::mem::replace(&mut entry.reverse, after.clone());
        if entry.service.is_none() && entry.slices.is_empty() {
            services.remove(name);
            if services.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
        for (address, name) in before {
            if let Some(names) = self.reverse.get_mut(&address) {
                names.remove(&name);
                if names.is_empty() {
                    self.reverse.remove(&address);
                }
            }
        }
        for (address, name) in after {
            self.reverse.entry(address).or_default().insert(name);
        }
    }

    /// What is known about a name, in small letters and without its last dot.
    pub fn answer(&self, name: &str, kind: Kind) -> Answer {
        if let Some(address) = reversed(name) {
            return self.pointers(name, address, kind);
        }
        let mut aliases: Vec<Record> = Vec::new();
        let mut at = name.to_owned();
        loop {
            match self.forward(&at, kind) {
                Answer::Records {
                    mut answers,
                    additional,
                } => {
                    let target = match &answers[..] {
                        [
                            Record {
                                data: Data::Cname(target),
                                ..
                            },
                        ] if kind != Kind::Cname => target.clone(),
                        _ => {
                            aliases.append(&mut answers);
                            return Answer::Records {
                                answers: aliases,
                                additional,
                            };
                        }
                    };
                    aliases.append(&mut answers);
                    // Aliases of each other lead nowhere; whoever asked gets what there is.
                    if aliases.len() < ALIASES {
                        at = target;
                        continue;
                    }
                }
                other if aliases.is_empty() => return other,
                _ => {}
            }
            return Answer::Records {
                answers: aliases,
                additional: Vec::new(),
            };
        }
    }

    fn pointers(&self, name: &str, address: IpAddr, kind: Kind) -> Answer {
        // Addresses that are not the cluster's have names elsewhere.
        let Some(names) = self.reverse.get(&address) else {
            return Answer::Elsewhere;
        };
        match kind {
            Kind::Ptr => records(name, names.iter().map(|name| Data::Ptr(name.clone()))),
            _ => Answer::NoData,
        }
    }

    fn forward(&self, name: &str, kind: Kind) -> Answer {
        let Some(below) = name.strip_suffix(&*self.domain) else {
            return Answer::Elsewhere;
        };
        if below.is_empty() {
            return if kind == Kind::Soa {
                records(name, [Data::Soa])
            } else {
                Answer::NoData
            };
        }
        let Some(below) = below.strip_suffix('.') else {
            return Answer::Elsewhere;
        };
        let labels: Vec<&str> = below.rsplit('.').collect();
        let (namespace, rest) = match labels[..] {
            ["dns-version"] if kind == Kind::Txt => return records(name, [Data::Txt(VERSION)]),
            ["dns-version" | "svc" | "pod"] => return Answer::NoData,
            ["pod", _] => return Answer::NoData,
            // The name says the address; whether there is such a pod is not looked at, as with CoreDNS' `pods insecure`.
            ["pod", _, address] => return addresses(name, undashed(address).into_iter(), kind),
            ["svc", namespace, ref rest @ ..] => (namespace, rest),
            _ => return Answer::NotFound,
        };
        let Some(services) = self.namespaces.get(namespace) else {
            return Answer::NotFound;
        };
        let [service, rest @ ..] = rest else {
            return Answer::NoData;
        };
        let base = format!("{service}.{namespace}.svc.{}", self.domain);
        match services.get(*service) {
            Some(entry) => entry.answer(name, &base, rest, kind),
            None => Answer::NotFound,
        }
    }
}

impl Entry {
    /// Ready endpoints with the name that each has below the Service, of a headless Service only.
    fn hosts<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = (String, IpAddr, &'a EndpointSlice)> {
        let slices = self
            .slices
            .values()
            .filter(|slice| slice.address_type != AddressType::Other);
        slices.flat_map(move |slice| {
            let counts =
                move |endpoint: &&Endpoint| service.publish_not_ready || endpoint.conditions.is_ready();
            slice.endpoints.iter().filter(counts).filter_map(move |endpoint| {
                let address = *endpoint.addresses.first()?;
                let host = endpoint.hostname.as_deref().map(str::to_ascii_lowercase);
                Some((host.unwrap_or_else(|| dashed(address)), address, &**slice))
            })
        })
    }

    fn reverse_names(&self, base: &str) -> Vec<(IpAddr, String)> {
        match &self.service {
            Some(service) if service.is_external_name() => Vec::new(),
            Some(service) if service.is_headless() => {
                let hosts = self.hosts(service);
                hosts
                    .map(|(host, address, _)| (address, format!("{host}.{base}")))
                    .collect()
            }
            Some(service) => service
                .cluster_ips
                .iter()
                .map(|it| (*it, base.to_owned()))
                .collect(),
            None => Vec::new(),
        }
    }

    /// `below` are the labels left of the Service's own, from right to left.
    fn answer(&self, name: &str, base: &str, below: &[&str], kind: Kind) -> Answer {
        let Some(service) = &self.service else {
            return Answer::NotFound;
        };
        if service.is_external_name() {
            let target = service.external_name.trim_end_matches('.').to_ascii_lowercase();
            return match below {
                [] => records(name, [Data::Cname(target)]),
                _ => Answer::NotFound,
            };
        }
        match *below {
            [] if service.is_headless() => addresses(name, self.hosts(service).map(|host| host.1), kind),
            [] => addresses(name, service.cluster_ips.iter().copied(), kind),
            [protocol] if protocol.starts_with('_') => match service
                .ports
                .iter()
                .any(|it| protocol_label(it.protocol) == protocol)
            {
                true => Answer::NoData,
                false => Answer::NotFound,
            },
            [host] if service.is_headless() => {
                let named = self.hosts(service).filter(|it| it.0 == host);
                addresses(name, named.map(|it| it.1), kind)
            }
            [protocol, port] => self.ports(service, name, base, (protocol, port), kind),
            _ => Answer::NotFound,
        }
    }

    fn ports(&self, service: &Service, name: &str, base: &str, asked: (&str, &str), kind: Kind) -> Answer {
        let (protocol, Some(port)) = (asked.0, asked.1.strip_prefix('_')) else {
            return Answer::NotFound;
        };
        let (mut answers, mut additional) = (Vec::new(), Vec::new());
        let mut add = |number: i32, target: String, found: &mut dyn Iterator<Item = IpAddr>| {
            let Ok(port) = u16::try_from(number) else { return };
            additional.extend(found.map(|it| Record {
                name: target.clone(),
                data: Data::Address(it),
            }));
            answers.push(Record {
                name: name.to_owned(),
                data: Data::Srv { port, target },
            });
        };
        if service.is_headless() {
            for (host, address, slice) in self.hosts(service) {
                let mut ports = slice.ports.iter();
                let fits = ports.find(|it| &*it.name == port && protocol_label(it.protocol) == protocol);
                if let Some(number) = fits.and_then(|it| it.port) {
                    add(number, format!("{host}.{base}"), &mut [address].into_iter());
                }
            }
        } else {
            let mut ports = service.ports.iter();
            let fits = ports.find(|it| &*it.name == port && protocol_label(it.protocol) == protocol);
            if let Some(fits) = fits {
                add(
                    fits.number,
                    base.to_owned(),
                    &mut service.cluster_ips.iter().copied(),
                );
            }
        }
        for list in [&mut answers, &mut additional] {
            list.sort();
            list.dedup();
        }
        match kind {
            _ if answers.is_empty() => Answer::NotFound,
            Kind::Srv => Answer::Records { answers, additional },
            _ => Answer::NoData,
        }
    }
}

/// The name exists if there is any address, of whichever family.
fn addresses(name: &str, found: impl Iterator<Item = IpAddr>, kind: Kind) -> Answer {
    let found: BTreeSet<IpAddr> = found.collect();
    if found.is_empty() {
        return Answer::NotFound;
    }
    let of_kind = found.into_iter().filter(|it| match kind {
        Kind::A => it.is_ipv4(),
        Kind::Aaaa => it.is_ipv6(),
        _ => false,
    });
    records(name, of_kind.map(Data::Address))
}

fn records(name: &str, data: impl IntoIterator<Item = Data>) -> Answer {
    let record = |data| Record {
        name: name.to_owned(),
        data,
    };
    let answers: Vec<Record> = data.into_iter().map(record).collect();
    match answers.is_empty() {
        true => Answer::NoData,
        false => Answer::Records {
            answers,
            additional: Vec::new(),
        },
    }
}

fn protocol_label(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "_tcp",
        Protocol::Udp => "_udp",
        Protocol::Sctp => "_sctp",
        Protocol::Other => "",
    }
}

/// The name of an endpoint without a host name, as CoreDNS has it.
fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

fn undashed(label: &str) -> Option<IpAddr> {
    let four = label.replace('-', ".").parse().map(IpAddr::V4);
    four.or_else(|_| label.replace('-', ":").parse().map(IpAddr::V6))
        .ok()
}

/// The address that a name of the reverse trees stands for.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(rest) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0u8; 4];
        let mut labels = rest.rsplit('.');
        for octet in &mut octets {
            *octet = labels.next()?.parse().ok()?;
        }
        return labels.next().is_none().then(|| Ipv4Addr::from(octets).into());
    }
    let rest = name.strip_suffix(".ip6.arpa")?;
    let mut bits = 0u128;
    let mut labels = rest.rsplit('.');
    for _ in 0..32 {
        let label = labels.next().filter(|label| label.len() == 1)?;
        bits = bits << 4 | u128::from_str_radix(label, 16).ok()?;
    }
    labels.next().is_none().then(|| Ipv6Addr::from(bits).into())
}
