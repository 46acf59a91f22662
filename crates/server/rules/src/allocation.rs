//! Which addresses and node ports does a Service hold, and which does a write give or take?
//!
//! [`plan`] decides; the server writes the claims of the plan in the same transaction as the
//! Service, one store key per claim, so two Services can never hold the same one and a crash leaves
//! nothing behind. [`repair`] compares Services and claims at start-up all the same.
//!
//! Laws:
//! - A plan never claims what is in use by another Service, nor the same thing twice.
//! - After a plan, [`claims_of`] the new object are the old claims, plus `claim`, minus `release`.
//! - Planning a planned object again, with itself as the old one, claims and releases nothing.

use crate::field_error::{Fault, FieldError, FieldErrors};
use crate::net;
use crate::strategy::{ClusterSettings, IpRange};
use crate::value::{at_mut, bool_at, int_at, list_at, set, str_at};
use pointsman_model::IpFamily;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;

mod band;
pub mod objects;
mod repair;

pub use band::first_address;
pub use repair::{Conflict, Repair, repair};

/// Something that one Service at a time may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// A cluster IP.
    Address(IpAddr),
    /// A port on every node, whatever the protocol; health check ports are such ports too.
    NodePort(u16),
}

impl Claim {
    /// Stable text that identifies the claim.
    pub fn key(&self) -> String {
        match self {
            Claim::Address(address) => format!("ip/{address}"),
            Claim::NodePort(port) => format!("port/{port}"),
        }
    }

    /// The claim with this key.
    pub fn from_key(key: &str) -> Option<Self> {
        match key.split_once('/')? {
            ("ip", address) => address.parse().ok().map(Claim::Address),
            ("port", port) => port.parse().ok().map(Claim::NodePort),
            _ => None,
        }
    }
}

/// Answers whether any Service holds a claim.
pub trait InUse {
    /// Whether `claim` is held.
    fn holds(&self, claim: &Claim) -> bool;
}

impl InUse for BTreeSet<Claim> {
    fn holds(&self, claim: &Claim) -> bool {
        self.contains(claim)
    }
}

/// What a write does to the claims in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimPlan {
    /// To be taken; the write fails if one of them is taken by then.
    pub claim: Vec<Claim>,
    /// To be given back.
    pub release: Vec<Claim>,
}

/// Decides what `new` gets, writes it into `new` and returns what changes against `old`.
///
/// `new` has been through its strategy's `prepare_*` and validation. `pick(n)` gives a random number
/// below `n`. On an error `new` may have been filled in partly and is not to be used.
pub fn plan(
    new: &mut Value,
    old: Option<&Value>,
    cluster: &ClusterSettings,
    in_use: &dyn InUse,
    pick: &mut dyn FnMut(u64) -> u64,
) -> Result<ClaimPlan, FieldErrors> {
    let held: BTreeSet<Claim> = old.map(claims_of).unwrap_or_default().into_iter().collect();
    let mut planner = Planner {
        cluster,
        in_use,
        pick,
        held: &held,
        wanted: BTreeSet::new(),
        errors: Vec::new(),
    };
    if has_addresses(new) {
        planner.addresses(new);
    }
    if has_node_ports(new) {
        planner.given_node_ports(new);
    }
    if needs_health_check(new) {
        planner.given_health_check_port(new);
    }
    // What the client asked for is settled first, so that no pick can take it.
    if planner.errors.is_empty() && allocates_node_ports(new) {
        planner.picked_node_ports(new);
    }
    if planner.errors.is_empty() && needs_health_check(new) {
        planner.picked_health_check_port(new);
    }
    if !planner.errors.is_empty() {
        return Err(planner.errors);
    }
    let wanted = planner.wanted;
    Ok(ClaimPlan {
        claim: wanted.difference(&held).copied().collect(),
        release: held.difference(&wanted).copied().collect(),
    })
}

/// What a stored Service holds; what its delete releases.
pub fn claims_of(service: &Value) -> Vec<Claim> {
    let mut claims = BTreeSet::new();
    if has_addresses(service) {
        let singular = std::iter::once(str_at(service, &["spec", "clusterIP"]));
        let plural = list_at(service, &["spec", "clusterIPs"])
            .iter()
            .filter_map(Value::as_str);
        claims.extend(
            singular
                .chain(plural)
                .filter_map(|text| text.parse().ok())
                .map(Claim::Address),
        );
    }
    if has_node_ports(service) {
        claims.extend(
            list_at(service, &["spec", "ports"])
                .iter()
                .filter_map(|port| port_number(int_at(port, &["nodePort"])))
                .map(Claim::NodePort),
        );
    }
    if needs_health_check(service) {
        let port = port_number(int_at(service, &["spec", "healthCheckNodePort"]));
        claims.extend(port.map(Claim::NodePort));
    }
    claims.into_iter().collect()
}

/// Whether the Service is a load balancer that sends traffic to local endpoints only, and so needs a
/// port at which nodes say whether they have any.
pub fn needs_health_check(service: &Value) -> bool {
    str_at(service, &["spec", "type"]) == "LoadBalancer"
        && str_at(service, &["spec", "externalTrafficPolicy"]) == "Local"
}

/// Whether the Service's type goes with node ports.
pub fn has_node_ports(service: &Value) -> bool {
    matches!(str_at(service, &["spec", "type"]), "NodePort" | "LoadBalancer")
}

/// Whether ports without a node port get one.
pub fn allocates_node_ports(service: &Value) -> bool {
    match str_at(service, &["spec", "type"]) {
        "NodePort" => true,
        "LoadBalancer" => bool_at(service, &["spec", "allocateLoadBalancerNodePorts"]).unwrap_or(true),
        _ => false,
    }
}

fn has_addresses(service: &Value) -> bool {
    let headless = str_at(service, &["spec", "clusterIP"]) == "None"
        || list_at(service, &["spec", "clusterIPs"])
            .first()
            .and_then(Value::as_str)
            == Some("None");
    str_at(service, &["spec", "type"]) != "ExternalName" && !headless
}

fn port_number(number: Option<i64>) -> Option<u16> {
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|port| *port != 0)
}

struct Planner<'a> {
    cluster: &'a ClusterSettings,
    in_use: &'a dyn InUse,
    pick: &'a mut dyn FnMut(u64) -> u64,
    held: &'a BTreeSet<Claim>,
    wanted: BTreeSet<Claim>,
    errors: FieldErrors,
}

impl<'a> Planner<'a> {
    /// Whether no other Service holds `claim` and nothing in this plan wants it.
    fn free(&self, claim: &Claim) -> bool {
        !self.wanted.contains(claim) && (self.held.contains(claim) || !self.in_use.holds(claim))
    }

    /// Whether a pick may take `claim`: unlike [`Self::free`], what the old object holds is not
    /// offered, so that a port that moves does not silently keep a stale number.
    fn pickable(&self, claim: &Claim) -> bool {
        !self.wanted.contains(claim) && !self.held.contains(claim) && !self.in_use.holds(claim)
    }

    fn addresses(&mut self, new: &mut Value) {
        let mut addresses: Vec<String> = list_at(new, &["spec", "clusterIPs"])
            .iter()
            .map(|address| address.as_str().unwrap_or("").to_owned())
            .collect();
        if addresses.is_empty() && !str_at(new, &["spec", "clusterIP"]).is_empty() {
            addresses.push(str_at(new, &["spec", "clusterIP"]).to_owned());
        }
        let families: Vec<IpFamily> = list_at(new, &["spec", "ipFamilies"])
            .iter()
            .filter_map(|family| IpFamily::parse(family.as_str()?))
            .collect();
        let primary = self
            .cluster
            .service_ranges
            .first()
            .map(|range| IpFamily::of(range.network));
        let count = addresses.len().max(families.len()).max(1);
        addresses.resize(count, String::new());
        for (index, address) in addresses.iter_mut().enumerate() {
            if !address.is_empty() {
                self.given_address(address);
            } else if let Some(family) = families.get(index).copied().or(primary) {
                *address = self.picked_address(family).unwrap_or_default();
            }
        }
        addresses.retain(|address| !address.is_empty());
        if let Some(first) = addresses.first().cloned() {
            set(new, &["spec", "clusterIP"], first);
            set(new, &["spec", "clusterIPs"], addresses);
        }
    }

    fn given_address(&mut self, text: &str) {
        let path = "spec.clusterIPs";
        let address = match net::valid_ip(path, text) {
            Ok(address) => address,
            Err(error) => return self.errors.push(error),
        };
        let claim = Claim::Address(address);
        let refused = |why: String| {
            FieldError::invalid(path, vec![text], format!("failed to allocate IP {text}: {why}"))
        };
        // An address that the Service already has stays, even if the range has moved since.
        let family = IpFamily::of(address);
        if !self.held.contains(&claim) && !self.ranges(family).any(|range| band::contains(range, address)) {
            let why = match self.range_names(family) {
                names if names.is_empty() => format!("{family} is not configured on this cluster"),
                names => format!(
                    "the provided IP ({text}) is not in the valid range. The range of valid IPs is {names}"
                ),
            };
            return self.errors.push(refused(why));
        }
        if self.free(&claim) {
            self.wanted.insert(claim);
        } else {
            self.errors
                .push(refused("provided IP is already allocated".into()));
        }
    }

    fn picked_address(&mut self, family: IpFamily) -> Option<String> {
        let path = "spec.clusterIPs";
        let names = self.range_names(family);
        if names.is_empty() {
            self.errors.push(FieldError::invalid(
                path,
                Vec::<String>::new(),
                format!("failed to allocate IP: {family} is not configured on this cluster"),
            ));
            return None;
        }
        for range in self.ranges(family) {
            let mut bands = band::address_bands(range, self.pick);
            if let Some(address) = bands.find(|address| self.pickable(&Claim::Address(*address))) {
                self.wanted.insert(Claim::Address(address));
                return Some(address.to_string());
            }
        }
        let why = format!("failed to allocate a serviceIP: range {names} is full");
        self.full(path, &why);
        None
    }

    fn given_node_ports(&mut self, new: &Value) {
        let mut own = BTreeSet::new();
        for (index, port) in list_at(new, &["spec", "ports"]).iter().enumerate() {
            let path = format!("spec.ports[{index}].nodePort");
            let Some(number) = int_at(port, &["nodePort"]).filter(|number| *number != 0) else {
                continue;
            };
            // Ports of one Service may share a node port if their protocols differ; validation
            // refuses the other duplicates.
            if !own.insert(number) {
                continue;
            }
            self.given_port(&path, number);
        }
    }

    fn given_health_check_port(&mut self, new: &Value) {
        if let Some(number) = int_at(new, &["spec", "healthCheckNodePort"]).filter(|number| *number != 0) {
            self.given_port("spec.healthCheckNodePort", number);
        }
    }

    fn given_port(&mut self, path: &str, number: i64) {
        let (first, last) = self.cluster.node_ports;
        let refused = |why: String| FieldError::invalid(path, number, why);
        let out_of_range =
            || format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
        let Some(port) = port_number(Some(number)) else {
            return self.errors.push(refused(out_of_range()));
        };
        let claim = Claim::NodePort(port);
        if !self.held.contains(&claim) && !(first..=last).contains(&port) {
            self.errors.push(refused(out_of_range()));
        } else if self.free(&claim) {
            self.wanted.insert(claim);
        } else {
            self.errors
                .push(refused("provided port is already allocated".into()));
        }
    }

    fn picked_node_ports(&mut self, new: &mut Value) {
        for index in 0..list_at(new, &["spec", "ports"]).len() {
            let ports = list_at(new, &["spec", "ports"]);
            if int_at(&ports[index], &["nodePort"]).unwrap_or(0) != 0 {
                continue;
            }
            let shared = shareable_node_port(ports, index);
            let path = format!("spec.ports[{index}].nodePort");
            let Some(picked) = shared.or_else(|| self.picked_port(&path, "nodePort")) else {
                return;
            };
            if let Some(port) = at_mut(new, &["spec", "ports"]).and_then(|ports| ports.get_mut(index)) {
                set(port, &["nodePort"], picked);
            }
        }
    }

    fn picked_health_check_port(&mut self, new: &mut Value) {
        let path = "spec.healthCheckNodePort";
        if int_at(new, &["spec", "healthCheckNodePort"]).unwrap_or(0) == 0
            && let Some(picked) = self.picked_port(path, "HealthCheck NodePort")
        {
            set(new, &["spec", "healthCheckNodePort"], picked);
        }
    }

    fn picked_port(&mut self, path: &str, what: &str) -> Option<u16> {
        let (first, last) = self.cluster.node_ports;
        let bands = band::port_bands(first, last, self.pick);
        let found = bands.map(Claim::NodePort).find(|claim| self.pickable(claim));
        let Some(claim @ Claim::NodePort(port)) = found else {
            self.full(
                path,
                &format!("failed to allocate a {what}: range {first}-{last} is full"),
            );
            return None;
        };
        self.wanted.insert(claim);
        Some(port)
    }

    /// The ranges of a family, in the order in which they are drawn from.
    fn ranges(&self, family: IpFamily) -> impl Iterator<Item = IpRange> + use<'a> {
        let of_family = move |range: &IpRange| IpFamily::of(range.network) == family;
        self.cluster.service_ranges.iter().copied().filter(of_family)
    }

    fn range_names(&self, family: IpFamily) -> String {
        let names = self.ranges(family).map(|range| range.to_string());
        names.collect::<Vec<_>>().join(", ")
    }

    fn full(&mut self, path: &str, detail: &str) {
        self.errors.push(FieldError {
            fault: Fault::Internal,
            field: path.to_owned(),
            value: None,
            detail: detail.to_owned(),
        });
    }
}

/// The node port of another entry for the same `port`, such as DNS over TCP beside DNS over UDP, if
/// this entry's protocol is free there.
fn shareable_node_port(ports: &[Value], index: usize) -> Option<u16> {
    let (port, protocol) = (
        int_at(&ports[index], &["port"]),
        str_at(&ports[index], &["protocol"]),
    );
    let candidates = ports.iter().filter(|other| int_at(other, &["port"]) == port);
    candidates
        .filter_map(|other| port_number(int_at(other, &["nodePort"])))
        .find(|candidate| {
            !ports.iter().any(|other| {
                str_at(other, &["protocol"]) == protocol
                    && port_number(int_at(other, &["nodePort"])) == Some(*candidate)
            })
        })
}

#[cfg(test)]
mod tests;
