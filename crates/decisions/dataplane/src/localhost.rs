//! Which node ports need a listener on a loopback address, and where does it lead (nftables mode, KEP-6032)?

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pointsman_model::{Address, Affinity, Backend, NodePort, Protocol, ServiceName};

use crate::index::Change;

/// What becomes of listeners when a batch is in the kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Listening<A> {
    /// The Services of the batch: other listeners of theirs must go.
    pub changed: BTreeSet<ServiceName>,
    /// The listeners that they need.
    pub wanted: BTreeMap<NodePort, Listener<A>>,
}

/// Where connections to one node port lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener<A> {
    pub service: ServiceName,
    /// Never empty: without an endpoint nobody listens, so that clients are refused.
    pub endpoints: Box<[Backend<A>]>,
    pub affinity: Option<Affinity>,
}

impl<A: Address> Listening<A> {
    /// As upstream decides: TCP alone, and under the policy `Local` the endpoints of this node alone.
    pub fn of(changes: &[Change<A>]) -> Self {
        let states = changes.iter().filter_map(|change| change.after.as_deref());
        let ports = states.flat_map(|state| state.ports());
        let wanted = ports.filter(|port| port.port.protocol == Protocol::Tcp);
        let wanted = wanted.filter_map(|port| {
            let policy = port.service.external_policy;
            let listener = Listener {
                service: port.service.name.clone(),
                endpoints: port.selection().under(policy).collect(),
                affinity: port.affinity(),
            };
            let node_port = port.node_port()?;
            (!listener.endpoints.is_empty()).then_some((node_port, listener))
        });
        Self {
            changed: changes.iter().map(|change| change.name.clone()).collect(),
            wanted: wanted.collect(),
        }
    }
}

/// Which endpoint gets the next connection. All clients have the same address, so affinity means one endpoint for
/// all of them, until nobody has connected for the timeout.
#[derive(Debug)]
pub struct Choice<A> {
    endpoints: Box<[Backend<A>]>,
    affinity: Option<Affinity>,
    remembered: Option<(Backend<A>, Instant)>,
}

impl<A: Address> Choice<A> {
    /// Nothing is remembered yet.
    pub fn new(listener: Listener<A>) -> Self {
        Self {
            endpoints: listener.endpoints,
            affinity: listener.affinity,
            remembered: None,
        }
    }

    /// Takes over a change. An endpoint that stays is remembered.
    pub fn update(&mut self, listener: Listener<A>) {
        if self.affinity != listener.affinity {
            self.remembered = None;
        }
        self.endpoints = listener.endpoints;
        self.affinity = listener.affinity;
    }

    /// The endpoint for a connection at `now`; `random` draws a number below its argument.
    pub fn next(&mut self, now: Instant, random: impl FnOnce(usize) -> usize) -> Option<Backend<A>> {
        let timeout = self
            .affinity
            .map(|affinity| Duration::from_secs(affinity.timeout_seconds.get().into()));
        let remembered = self.remembered.filter(|(endpoint, used)| {
            let age = now.saturating_duration_since(*used);
            timeout.is_some_and(|timeout| age <= timeout) && self.endpoints.contains(endpoint)
        });
        let chosen = match remembered {
            Some((endpoint, _)) => endpoint,
            None => *self.endpoints.get(random(self.endpoints.len()))?,
        };
        self.remembered = timeout.map(|_| (chosen, now));
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroU32;

    use pointsman_model::Port;

    use super::*;

    fn backend(last: u8) -> Backend<Ipv4Addr> {
        Backend {
            address: Ipv4Addr::new(10, 0, 1, last),
            port: Port::new(80).unwrap(),
        }
    }

    fn listener(endpoints: &[u8], affinity: Option<u32>) -> Listener<Ipv4Addr> {
        Listener {
            service: ServiceName::new("default", "web").unwrap(),
            endpoints: endpoints.iter().copied().map(backend).collect(),
            affinity: affinity.map(|seconds| Affinity {
                timeout_seconds: NonZeroU32::new(seconds).unwrap(),
            }),
        }
    }

    #[test]
    fn each_connection_draws_anew_without_affinity() {
        let mut choice = Choice::new(listener(&[1, 2, 3], None));
        let now = Instant::now();
        let drawn = [2, 0, 1].map(|number| choice.next(now, |_| number));
        assert_eq!(drawn, [Some(backend(3)), Some(backend(1)), Some(backend(2))]);
    }

    #[test]
    fn affinity_keeps_an_endpoint_until_it_leaves_or_nobody_connects_for_the_timeout() {
        let mut choice = Choice::new(listener(&[1, 2, 3], Some(10)));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(choice.next(at(0), |_| 1), Some(backend(2)));
        assert_eq!(choice.next(at(9), |_| 0), Some(backend(2)));
        assert_eq!(choice.next(at(19), |_| 0), Some(backend(2)), "time starts anew");
        assert_eq!(choice.next(at(30), |_| 0), Some(backend(1)), "forgotten");
        choice.update(listener(&[1, 2], Some(10)));
        assert_eq!(choice.next(at(31), |_| 1), Some(backend(1)), "it stayed");
        choice.update(listener(&[2, 3], Some(10)));
        assert_eq!(choice.next(at(32), |_| 1), Some(backend(3)), "it left");
    }
}
