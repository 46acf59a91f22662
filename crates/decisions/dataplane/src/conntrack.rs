//! Which UDP flows does the kernel still send to the wrong place?
//!
//! A UDP client that keeps its port keeps its conntrack entry, so packets follow the old translation
//! although the rules have changed. After a sync, the flows of changed Services whose answering side is
//! not a current endpoint are deleted. Other flows, other protocols and unknown Services are never
//! touched.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_model::{Address, Backend, Port, Protocol};

use crate::claims::{ClaimKind, Destination, destinations};
use crate::index::Change;
use crate::state::PortView;

/// A UDP flow as conntrack knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow<A> {
    /// Where the client sent it.
    pub original_destination: Backend<A>,
    /// Where answers come from: the endpoint, or the original destination if it was not translated.
    pub reply_source: Backend<A>,
}

/// The UDP destinations to look at after a batch and the endpoints their flows may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpReview<A> {
    /// Endpoints still answering, by Service address and port.
    pub addresses: BTreeMap<Backend<A>, BTreeSet<Backend<A>>>,
    /// The same by node port, whatever the address.
    pub node_ports: BTreeMap<Port, BTreeSet<Backend<A>>>,
}

impl<A: Address> UdpReview<A> {
    /// What a batch of changes makes worth reviewing.
    pub fn of(changes: &[Change<A>]) -> Self {
        let mut review = Self {
            addresses: BTreeMap::new(),
            node_ports: BTreeMap::new(),
        };
        for state in changes.iter().filter_map(|change| change.after.as_ref()) {
            for view in state.ports().filter(|view| view.port.protocol == Protocol::Udp) {
                review.add(&view);
            }
        }
        review
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Whether the flow has to be deleted.
    pub fn is_stale(&self, flow: &UdpFlow<A>) -> bool {
        let allowed = self
            .addresses
            .get(&flow.original_destination)
            .or_else(|| self.node_ports.get(&flow.original_destination.port));
        allowed.is_some_and(|allowed| !allowed.contains(&flow.reply_source))
    }

    fn add(&mut self, view: &PortView<'_, A>) {
        let answering: BTreeSet<Backend<A>> = view.state.answering().iter().copied().collect();
        for (kind, at) in destinations(view.service, view.port) {
            if view.state.lost().contains(&(kind, at)) {
                continue;
            }
            match at {
                Destination::Address(address, _, port) => {
                    self.addresses
                        .insert(Backend { address, port }, answering.clone());
                }
                // The port alone does not prove that a flow is ours; without endpoints to compare
                // with, leave it.
                Destination::NodePort(_, port) if kind == ClaimKind::NodePort && !answering.is_empty() => {
                    self.node_ports.insert(port.0, answering.clone());
                }
                Destination::NodePort(..) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
