//! What do load balancers learn from a Service's health check node port?

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use ::http::{HeaderName, Request, Response, StatusCode};
use pointsman_dataplane::NodePortAddresses;
use pointsman_dataplane::health::HealthCheck;
use pointsman_http::{Body, Incoming, Limits, Peer, Server as HttpServer, Slots, Wildcard, bind, reply};
use pointsman_model::{Address, IpFamily, NodePort, ServiceName};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::health::Health;

/// Connections at once to the port of one Service: load balancers ask it.
const CONNECTIONS: Limits = Limits {
    total: 512,
    kept: 0,
    source: 128,
};
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The servers of all Services that have such a port.
#[derive(Debug)]
pub(crate) struct ServiceServers {
    health: watch::Receiver<Health>,
    listen: Vec<(IpAddr, Wildcard)>,
    servers: BTreeMap<ServiceName, Server>,
}

/// The ready local endpoints of IPv4 and IPv6, for the families that the Service has.
type Counts = [Option<u32>; 2];

#[derive(Debug)]
struct Server {
    port: NodePort,
    counts: watch::Sender<Counts>,
    /// Ends with the value.
    _tasks: JoinSet<()>,
}

impl ServiceServers {
    /// No servers yet.
    pub fn new(health: watch::Receiver<Health>) -> Self {
        Self {
            health,
            listen: Vec::new(),
            servers: BTreeMap::new(),
        }
    }

    /// Listens where node ports answer from now on; existing servers begin anew. As upstream's, a server for all
    /// addresses answers over IPv6 for Services that have only IPv4, and the other way round.
    pub fn listen_on(&mut self, v4: &NodePortAddresses<Ipv4Addr>, v6: &NodePortAddresses<Ipv6Addr>) {
        let listen = match (v4, v6) {
            (NodePortAddresses::All, NodePortAddresses::All) => {
                vec![(Ipv6Addr::UNSPECIFIED.into(), Wildcard::BothFamilies)]
            }
            _ => addresses(v4)
                .chain(addresses(v6))
                .map(|address| (address, Wildcard::OwnFamily))
                .collect(),
        };
        if self.listen != listen {
            self.listen = listen;
            self.servers.clear();
        }
    }

    /// Starts, changes and ends servers until they are the desired ones of both families. What cannot be opened is
    /// tried again the next time.
    pub fn reconcile(&mut self, desired: [&BTreeMap<ServiceName, HealthCheck>; 2]) {
        let port = |name: &ServiceName| {
            let of = |family: usize| desired[family].get(name).map(|check| check.port);
            of(0).or(of(1))
        };
        let families = |name: &ServiceName| desired.map(|checks| checks.contains_key(name));
        self.servers.retain(|name, server| {
            let current = server.counts.borrow().map(|count| count.is_some());
            port(name) == Some(server.port) && families(name) == current
        });
        let [v4, v6] = desired;
        let names: BTreeSet<&ServiceName> = v4.keys().chain(v6.keys()).collect();
        for name in names {
            let counts = desired.map(|checks| checks.get(name).map(|check| check.local_endpoints));
            match (self.servers.get(name), port(name)) {
                (Some(server), _) => drop(server.counts.send_replace(counts)),
                (None, Some(port)) => self.open(name, port, counts),
                (None, None) => {}
            }
        }
    }

    fn open(&mut self, name: &ServiceName, port: NodePort, counts: Counts) {
        let [v4, v6] = counts;
        let counts = watch::Sender::new(counts);
        let mut tasks = JoinSet::new();
        let slots = Slots::new(CONNECTIONS);
        for (address, wildcard) in &self.listen {
            // Where addresses are chosen, a Service is not open at those of a family that it does not have.
            let own = if address.is_ipv4() { v4 } else { v6 };
            if own.is_none() && *wildcard == Wildcard::OwnFamily {
                continue;
            }
            let address = SocketAddr::new(*address, port.0.get());
            let listener = match bind(address, *wildcard) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(service = %name, %address, %error, "the health check node port cannot be opened");
                    return;
                }
            };
            tracing::info!(service = %name, %address, "serving a health check node port");
            let (name, health, counts) = (name.clone(), self.health.clone(), counts.subscribe());
            let connected = move |peer: &Peer| {
                let over_ipv6 = peer.address.is_ipv6();
                let (name, health, counts) = (name.clone(), health.clone(), counts.clone());
                move |_: Request<Incoming>| {
                    let healthy = health.borrow().is_healthy(Instant::now());
                    std::future::ready(answer(&name, count(*counts.borrow(), over_ipv6), healthy))
                }
            };
            let server = HttpServer {
                slots: slots.clone(),
                ..HttpServer::default()
            };
            tasks.spawn(server.serve_forever(listener, connected));
        }
        let server = Server {
            port,
            counts,
            _tasks: tasks,
        };
        self.servers.insert(name.clone(), server);
    }
}

fn addresses<A: Address>(node_ports: &NodePortAddresses<A>) -> impl Iterator<Item = IpAddr> {
    let unspecified = match A::FAMILY {
        IpFamily::V4 => IpAddr::from([0; 4]),
        IpFamily::V6 => IpAddr::from([0; 16]),
    };
    match node_ports {
        NodePortAddresses::All => vec![unspecified],
        NodePortAddresses::Only(addresses) => addresses.iter().map(|address| address.widen()).collect(),
    }
    .into_iter()
}

/// What is said over a family: the Service's endpoints of that family, or those of the only one it has.
fn count([v4, v6]: Counts, over_ipv6: bool) -> u32 {
    let (own, other) = if over_ipv6 { (v6, v4) } else { (v4, v6) };
    own.or(other).unwrap_or(0)
}

/// The same answer for every path.
fn answer(service: &ServiceName, local_endpoints: u32, healthy: bool) -> Response<Body> {
    let body = json!({
        "service": { "namespace": service.namespace(), "name": service.name() },
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": healthy,
    });
    let code = if local_endpoints > 0 && healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut response = reply(code, "application/json", body.to_string());
    response.headers_mut().insert(WEIGHT, local_endpoints.into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_wanted_only_with_local_endpoints_and_a_healthy_proxy() {
        let name = ServiceName::new("ns", "web").unwrap();
        assert_eq!(answer(&name, 2, true).status(), 200);
        assert_eq!(answer(&name, 2, true).headers()[WEIGHT], "2");
        assert_eq!(answer(&name, 0, true).status(), 503);
        assert_eq!(answer(&name, 2, false).status(), 503);
    }

    #[test]
    fn each_family_answers_for_its_own_endpoints_and_the_only_one_for_both() {
        for (counts, over_ipv4, over_ipv6) in [
            ([Some(2), Some(0)], 2, 0),
            ([Some(2), None], 2, 2),
            ([None, Some(3)], 3, 3),
        ] {
            assert_eq!(
                [count(counts, false), count(counts, true)],
                [over_ipv4, over_ipv6]
            );
        }
    }
}
