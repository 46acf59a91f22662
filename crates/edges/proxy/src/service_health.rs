//! What do load balancers learn from a Service's health check node port?

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ::http::{HeaderName, Response, StatusCode};
use pointsman_dataplane::NodePortAddresses;
use pointsman_dataplane::health::HealthCheck;
use pointsman_http::{Body, Limits, Slots, Wildcard, bind, reply};
use pointsman_model::{Address, NodePort, ServiceName};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::health::Health;
use crate::http::{Door, serve};

/// Connections at once to the port of one Service: load balancers ask it.
const CONNECTIONS: Limits = Limits {
    total: 512,
    kept: 0,
    source: 128,
};
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The servers of one family.
#[derive(Debug)]
pub(crate) struct ServiceServers {
    health: watch::Receiver<Health>,
    addresses: Vec<IpAddr>,
    servers: BTreeMap<ServiceName, Server>,
}

#[derive(Debug)]
struct Server {
    port: NodePort,
    local_endpoints: Arc<AtomicU32>,
    /// Ends with the value.
    _tasks: JoinSet<()>,
}

impl ServiceServers {
    /// No servers yet.
    pub fn new(health: watch::Receiver<Health>) -> Self {
        Self {
            health,
            addresses: Vec::new(),
            servers: BTreeMap::new(),
        }
    }

    /// Listens where node ports answer from now on; existing servers begin anew.
    pub fn listen_on<A: Address>(&mut self, node_ports: &NodePortAddresses<A>) {
        let unspecified = match A::FAMILY {
            pointsman_model::IpFamily::V4 => IpAddr::from([0; 4]),
            pointsman_model::IpFamily::V6 => IpAddr::from([0; 16]),
        };
        let addresses = match node_ports {
            NodePortAddresses::All => vec![unspecified],
            NodePortAddresses::Only(addresses) => addresses.iter().map(|address| address.widen()).collect(),
        };
        if self.addresses != addresses {
            self.addresses = addresses;
            self.servers.clear();
        }
    }

    /// Starts, changes and ends servers until they are the wanted ones. What cannot be opened is tried
    /// again the next time.
    pub fn reconcile(&mut self, wanted: &BTreeMap<ServiceName, HealthCheck>) {
        self.servers
            .retain(|name, server| wanted.get(name).is_some_and(|check| check.port == server.port));
        for (name, check) in wanted {
            match self.servers.get(name) {
                Some(server) => server
                    .local_endpoints
                    .store(check.local_endpoints, Ordering::Relaxed),
                None => self.open(name, check),
            }
        }
    }

    fn open(&mut self, name: &ServiceName, check: &HealthCheck) {
        let local_endpoints = Arc::new(AtomicU32::new(check.local_endpoints));
        let mut tasks = JoinSet::new();
        let door = Door {
            slots: Slots::new(CONNECTIONS),
            guard: None,
        };
        for address in &self.addresses {
            let address = SocketAddr::new(*address, check.port.0.get());
            let listener = match bind(address, Wildcard::OwnFamily) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(service = %name, %address, %error, "the health check node port cannot be opened");
                    return;
                }
            };
            let (name, health, count) = (name.clone(), self.health.clone(), Arc::clone(&local_endpoints));
            tasks.spawn(serve(
                listener,
                "a health check node port",
                door.clone(),
                move |_| {
                    let healthy = health.borrow().is_healthy(Instant::now());
                    answer(&name, count.load(Ordering::Relaxed), healthy)
                },
            ));
        }
        let server = Server {
            port: check.port,
            local_endpoints,
            _tasks: tasks,
        };
        self.servers.insert(name.clone(), server);
    }
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
}
