//! Which UDP flows does the kernel still send to the wrong place?
//!
//! A UDP client that keeps its port keeps its conntrack entry, so packets follow the old translation
//! although the rules have changed. After a sync, the flows of changed Services whose answering side is
//! not a current endpoint are deleted, and so are those that were translated for destinations which no Service has
//! any more. Other flows and other protocols are never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_model::{Address, Backend, Port, Protocol};

use crate::claims::{Destination, destinations};
use crate::index::Change;
use crate::state::ServiceState;

/// A UDP flow as conntrack knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow<A> {
    /// Where the client sent it.
    pub original_destination: Backend<A>,
    /// Where answers come from: the endpoint, or the original destination if it was not translated.
    pub reply_source: Backend<A>,
}

/// Which flows to a destination may stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected<A> {
    /// Those to these endpoints.
    Only(BTreeSet<Backend<A>>),
    /// No Service has the destination any more, and these were the endpoints of the last: those that were never
    /// translated.
    Gone(BTreeSet<Backend<A>>),
}

/// The UDP destinations to look at after a batch and the endpoints their flows may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpReview<A> {
    /// By Service address and port.
    pub addresses: BTreeMap<Backend<A>, Expected<A>>,
    /// The same by node port, whatever the address.
    pub node_ports: BTreeMap<Port, Expected<A>>,
}

impl<A: Address> UdpReview<A> {
    /// What a batch of changes makes worth reviewing.
    pub fn of(changes: &[Change<A>]) -> Self {
        let mut review = Self {
            addresses: BTreeMap::new(),
            node_ports: BTreeMap::new(),
        };
        // What one Service lost, another may have: what is comes after what was.
        let states = |pick: fn(&Change<A>) -> Option<&Arc<ServiceState<A>>>| changes.iter().filter_map(pick);
        for state in states(|change| change.before.as_ref()) {
            review.add(state, Expected::Gone);
        }
        for state in states(|change| change.after.as_ref()) {
            review.add(state, Expected::Only);
        }
        review
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// The address and the port that all flows to look at are sent to, if it is one.
    pub fn common(&self) -> (Option<A>, Option<Port>) {
        let mut addresses = self.addresses.keys().map(|at| at.address);
        let ports = self.addresses.keys().map(|at| at.port);
        let mut ports = ports.chain(self.node_ports.keys().copied());
        let address = addresses
            .next()
            .filter(|one| addresses.all(|other| other == *one));
        let port = ports.next().filter(|one| ports.all(|other| other == *one));
        (address.filter(|_| self.node_ports.is_empty()), port)
    }

    /// Whether the flow has to be deleted.
    pub fn is_stale(&self, flow: &UdpFlow<A>) -> bool {
        let UdpFlow {
            original_destination: to,
            reply_source: by,
        } = flow;
        match (self.addresses.get(to), self.node_ports.get(&to.port)) {
            (Some(Expected::Only(endpoints)), _) | (None, Some(Expected::Only(endpoints))) => {
                !endpoints.contains(by)
            }
            (Some(Expected::Gone(_)), _) => by != to,
            // The port alone does not prove that a flow was ours, but its endpoint does.
            (None, Some(Expected::Gone(endpoints))) => endpoints.contains(by),
            (None, None) => false,
        }
    }

    fn add(&mut self, state: &ServiceState<A>, expected: fn(BTreeSet<Backend<A>>) -> Expected<A>) {
        for view in state.ports().filter(|view| view.port.protocol == Protocol::Udp) {
            let answering: BTreeSet<Backend<A>> = view.state.answering().iter().copied().collect();
            for (kind, at) in destinations(view.service, view.port) {
                if view.state.lost().contains(&(kind, at)) {
                    continue;
                }
                match at {
                    Destination::Address(address, _, port) => {
                        self.addresses
                            .insert(Backend { address, port }, expected(answering.clone()));
                    }
                    // Without endpoints to compare with, flows to a port of any address are left.
                    Destination::NodePort(_, port) if answering.is_empty() => {
                        self.node_ports.remove(&port.0);
                    }
                    Destination::NodePort(_, port) => {
                        self.node_ports.insert(port.0, expected(answering.clone()));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
