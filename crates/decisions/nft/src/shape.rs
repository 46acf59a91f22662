//! Which elements does a Service have?

use std::collections::BTreeSet;

use pointsman_dataplane::{PortView, ServiceState};
use pointsman_model::{Address, Backend, Cidr, TrafficPolicy};
use pointsman_netlink::nft::{Data, Element, Value};

use crate::class::Class;
use crate::intervals::outermost;
use crate::key::{self, Key, last_address};
use crate::pool::Pool;
use crate::set_id::SetId;
use crate::slots::Slots;

/// The slots of a port's two lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSlots<A> {
    /// What clients of all the port's destinations are remembered under; zero if they are not.
    pub number: u16,
    /// Of the set for the `Cluster` policy.
    pub cluster: Slots<A>,
    /// Of the set for the `Local` policy.
    pub local: Slots<A>,
}

impl<A: Address> PortSlots<A> {
    /// The slots of a port that never had other endpoints.
    pub fn fresh(port: &PortView<'_, A>) -> Self {
        let cluster = Slots::fresh(port.selection().cluster(), &Slots::NONE);
        let local = Slots::fresh(port.selection().local(), &cluster);
        let number = match port.affinity() {
            Some(_) => usual_number(port),
            None => 0,
        };
        Self {
            number,
            cluster,
            local,
        }
    }

    /// The slots after the port's endpoints changed.
    pub fn change(&self, port: &PortView<'_, A>) -> Self {
        let cluster = self.cluster.change(port.selection().cluster(), &self.local);
        let local = self.local.change(port.selection().local(), &cluster);
        let number = match port.affinity() {
            Some(_) if self.number == 0 => usual_number(port),
            Some(_) => self.number,
            None => 0,
        };
        Self {
            number,
            cluster,
            local,
        }
    }

    fn under(&self, policy: TrafficPolicy) -> &Slots<A> {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }
}

/// How clients of a Service port are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub seconds: u32,
    /// The number of the Service port among those that remember clients: a number that is not zero.
    pub number: u16,
}

impl Remembered {
    /// What an endpoint of this port is remembered as. An endpoint beyond the last token is not used.
    fn token(self, token: u32) -> Option<u32> {
        Some(u32::from(self.number) << 16 | u32::from(u16::try_from(token).ok()?))
    }
}

/// The number that a port has unless another one has it: FNV-1a of its name, folded.
fn usual_number<A: Address>(port: &PortView<'_, A>) -> u16 {
    let name = format!("{}/{}", port.name(), port.port.protocol);
    let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    ((hash >> 16 ^ hash) as u16).max(1)
}

/// One list that one destination draws from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListOf<'a, A> {
    pub pool: Pool,
    pub key: Key<A>,
    pub slots: &'a Slots<A>,
    /// For how long and under which name clients are remembered, if they are.
    pub affinity: Option<Remembered>,
    /// Endpoints exist, but none the policy allows.
    pub drops: bool,
}

/// Everything a Service has in the table, except the refcounted sets.
#[derive(Debug)]
pub(crate) struct Shape<'a, A> {
    /// Elements of plain sets.
    pub members: Vec<(SetId, Element)>,
    pub lists: Vec<ListOf<'a, A>>,
    /// Its cluster address, if it owns it.
    pub cluster_ip: Option<A>,
    /// Endpoints of this node.
    pub hairpins: BTreeSet<A>,
}

impl<'a, A: Address> Shape<'a, A> {
    /// The shape of a Service whose ports have these slots; `node_ip` widens source ranges.
    pub fn new(state: &ServiceState<A>, slots: &'a [PortSlots<A>], node_ip: Option<A>) -> Self {
        let mut shape = Self {
            members: Vec::new(),
            lists: Vec::new(),
            cluster_ip: None,
            hairpins: BTreeSet::new(),
        };
        // Two ports of a Service on one port number are no valid Service, but must not break the table.
        let mut seen = BTreeSet::new();
        for (port, slots) in state.ports().zip(slots) {
            shape.add_port(&port, slots, node_ip, &mut seen);
        }
        shape
    }

    /// The lists of one port alone.
    pub fn of_port(port: &PortView<'_, A>, slots: &'a PortSlots<A>) -> Vec<ListOf<'a, A>> {
        let mut shape = Self {
            members: Vec::new(),
            lists: Vec::new(),
            cluster_ip: None,
            hairpins: BTreeSet::new(),
        };
        shape.add_port(port, slots, None, &mut BTreeSet::new());
        shape.lists
    }

    fn add_port(
        &mut self,
        port: &PortView<'_, A>,
        slots: &'a PortSlots<A>,
        node_ip: Option<A>,
        seen: &mut BTreeSet<Key<A>>,
    ) {
        let at = |address: A| Key::Address(address, port.port.protocol, port.port.port);
        if let Some(cluster_ip) = port.cluster_ip() {
            // The address is ours even if this port is a duplicate.
            self.cluster_ip = Some(cluster_ip);
            if seen.insert(at(cluster_ip)) {
                self.add_list(
                    port,
                    Pool::Address,
                    at(cluster_ip),
                    slots,
                    port.service.internal_policy,
                );
            }
        }
        let ranges = port.source_ranges().map(outermost);
        let external_ips = port.external_ips().map(|address| (address, None));
        let vips = port
            .load_balancer_vips()
            .map(|address| (address, ranges.as_deref()));
        for (address, ranges) in external_ips.chain(vips) {
            if seen.insert(at(address)) {
                self.add_external(port, at(address), slots);
                if let Some(ranges) = ranges {
                    self.add_firewall(at(address), address, ranges, node_ip);
                }
            }
        }
        if let Some(node_port) = port.node_port() {
            let key = Key::NodePort(port.port.protocol, node_port);
            if seen.insert(key) {
                self.add_external(port, key, slots);
            }
        }
        let local = port
            .selection()
            .reachable
            .iter()
            .filter(|endpoint| endpoint.on_this_node);
        self.hairpins
            .extend(local.map(|endpoint| endpoint.backend.address));
    }

    fn add_external(&mut self, port: &PortView<'_, A>, key: Key<A>, slots: &'a PortSlots<A>) {
        let (set, local_set, main, local) = match key {
            Key::Address(..) => (
                SetId::ExternalIps,
                SetId::ExternalLocal,
                Pool::Address,
                Pool::AddressLocal,
            ),
            Key::NodePort(..) => (
                SetId::NodePorts,
                SetId::NodePortsLocal,
                Pool::NodePort,
                Pool::NodePortLocal,
            ),
        };
        self.members.push((set, Element::new(key.value())));
        self.add_list(port, main, key, slots, TrafficPolicy::Cluster);
        if port.service.external_policy == TrafficPolicy::Local {
            self.members.push((local_set, Element::new(key.value())));
            self.add_list(port, local, key, slots, TrafficPolicy::Local);
        }
    }

    fn add_firewall(&mut self, key: Key<A>, vip: A, ranges: &[Cidr<A>], node_ip: Option<A>) {
        if ranges.iter().any(Cidr::is_everything) {
            return;
        }
        self.members.push((SetId::Firewalled, Element::new(key.value())));
        // Traffic from the node to the address may come back with the address as its source.
        let node_may = node_ip.is_some_and(|ip| ranges.iter().any(|range| range.contains(ip)));
        let itself = Cidr::host(vip);
        let itself = (node_may && !ranges.iter().any(|range| range.contains(vip))).then_some(&itself);
        for range in ranges.iter().chain(itself) {
            let mut element = Element::new(key.with_source(range.network()));
            element.key_end = Some(Box::new(key.with_source(last_address(range))));
            self.members.push((SetId::SourceRanges, element));
        }
    }

    fn add_list(
        &mut self,
        port: &PortView<'_, A>,
        pool: Pool,
        key: Key<A>,
        slots: &'a PortSlots<A>,
        policy: TrafficPolicy,
    ) {
        let number = slots.number;
        let affinity = port.affinity().filter(|_| number != 0);
        let slots = slots.under(policy);
        self.lists.push(ListOf {
            pool,
            key,
            slots,
            affinity: affinity.map(|affinity| Remembered {
                seconds: affinity.timeout_seconds.get(),
                number,
            }),
            drops: slots.len() == 0 && port.selection().has_any,
        });
    }
}

impl<A: Address> ListOf<'_, A> {
    /// The elements that do not depend on single slots.
    pub fn head(&self) -> impl Iterator<Item = (SetId, Element)> {
        let member = |set: Option<SetId>| set.map(|set| (set, Element::new(self.key.value())));
        let class = Class::of(self.slots.len());
        let sticky = self.affinity.map(|affinity| {
            let number = Value::host_u32(u32::from(affinity.number) << 16);
            let element = Element::mapping(self.key.value(), number);
            (SetId::Sticky(self.pool), element)
        });
        let timeout = self
            .affinity
            .map(|affinity| SetId::Timeout(self.pool, affinity.seconds));
        member(class.map(|class| SetId::Size(self.pool, class)))
            .into_iter()
            .chain(sticky)
            .chain(member(timeout))
            .chain(member(self.drops.then_some(SetId::Drops(self.pool))))
    }

    /// The elements of one slot.
    pub fn slot(&self, index: usize) -> impl Iterator<Item = (SetId, Element)> + use<A> {
        let Self {
            pool, key, affinity, ..
        } = *self;
        let number = index as u32;
        let slot = self.slots.0.get(index).copied();
        let elements = slot.and_then(|slot| {
            let backend = key::backend(&slot.backend);
            let Some(affinity) = affinity else {
                let plain = Element::mapping(key.with_number(number), backend);
                return Some([Some((SetId::Backends(pool), plain)), None]);
            };
            let token = affinity.token(slot.token)?;
            let to_token = Element::mapping(key.with_number(number), Value::host_u32(token));
            let to_backend = Element::mapping(key.with_number(token), backend);
            Some([
                Some((SetId::StickySlots(pool), to_token)),
                Some((SetId::StickyBackends(pool), to_backend)),
            ])
        });
        elements.into_iter().flatten().flatten()
    }

    pub fn elements(&self) -> impl Iterator<Item = (SetId, Element)> {
        self.head()
            .chain((0..self.slots.len()).flat_map(|index| self.slot(index)))
    }
}

/// The endpoint a slot's data leads to, read back.
pub(crate) fn backend_of<A: Address>(data: &Data) -> Option<Backend<A>> {
    let Data::Value(value) = data else { return None };
    let width = usize::from(A::BITS / 8);
    let (address, port) = value.as_bytes().split_at_checked(width)?;
    let port = u16::from_be_bytes(*port.first_chunk::<2>()?);
    Some(Backend {
        address: key::from_octets(address),
        port: pointsman_model::Port::new(port)?,
    })
}
