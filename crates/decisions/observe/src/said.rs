//! What do kube-proxy's rules say about a Service, whatever they are called?

use pointsman_dataplane::{PortView, ServiceState};
use pointsman_iptables::name::Role;
use pointsman_model::{Address, Backend, ServicePortName, TrafficPolicy};

use crate::place::{Chain, Content, Key, Map, Place, Statement};

/// What the chain of a Service port is called that has this role.
pub(crate) type Naming = fn(Role, &ServicePortName) -> String;

pub(crate) fn said<A: Address>(state: Option<&ServiceState<A>>, naming: Naming) -> Statement<A> {
    let mut said = Statement::new();
    for port in state.into_iter().flat_map(ServiceState::ports) {
        Port::new(port, naming).say(&mut said);
    }
    said
}

/// A Service port and the names of its chains.
struct Port<'a, A> {
    view: PortView<'a, A>,
    naming: Naming,
    cluster: String,
    local: String,
    external: String,
}

impl<'a, A: Address> Port<'a, A> {
    fn new(view: PortView<'a, A>, naming: Naming) -> Self {
        let full = view.name();
        Self {
            view,
            naming,
            cluster: naming(Role::Cluster, &full),
            local: naming(Role::Local, &full),
            external: naming(Role::External, &full),
        }
    }

    fn say(&self, said: &mut Statement<A>) {
        let view = &self.view;
        let policies = (view.service.internal_policy, view.service.external_policy);
        if let Some(address) = view.cluster_ip() {
            let leads = match self.serves(policies.0) {
                true => Some(self.of_policy(policies.0).to_owned()),
                false => None,
            };
            let away = leads.is_none();
            self.dispatch(
                (Map::ServiceIps, Map::NoEndpointServices),
                Some(address),
                leads,
                away,
                said,
            );
        }
        let external = self.view.selection().has_any.then_some(&self.external);
        let away = !self.serves(policies.1);
        let balanced: Vec<A> = view.load_balancer_vips().collect();
        for address in view.external_ips().chain(balanced.iter().copied()) {
            let maps = (Map::ServiceIps, Map::NoEndpointServices);
            self.dispatch(maps, Some(address), external.cloned(), away, said);
        }
        if let Some(node_port) = view.node_port() {
            let maps = (Map::ServiceNodePorts, Map::NoEndpointNodePorts);
            self.dispatch_at(
                maps,
                self.key(None, node_port.0.get()),
                external.cloned(),
                away,
                said,
            );
        }
        if view.source_ranges().is_some_and(|ranges| !ranges.is_empty()) {
            let chain = (self.naming)(Role::Firewall, &view.name());
            for address in balanced {
                let place = Place::Element(Map::FirewallIps, self.key(Some(address), view.port.port.get()));
                said.insert(place, Content::Leads(chain.clone()));
            }
        }
        self.chains(policies.1, said);
    }

    fn chains(&self, external_policy: TrafficPolicy, said: &mut Statement<A>) {
        let selection = self.view.selection();
        self.endpoints(&self.cluster, selection.cluster(), said);
        self.endpoints(&self.local, selection.local(), said);
        if selection.has_any && self.view.is_externally_accessible() {
            // Traffic of the node and its pods goes to all endpoints, whatever the policy.
            let mut chain = Chain::default();
            chain.chains.insert(self.cluster.clone());
            if self.serves(external_policy) {
                chain.chains.insert(self.of_policy(external_policy).to_owned());
            }
            said.insert(Place::Chain(self.external.clone()), Content::Chain(chain));
        }
    }

    fn endpoints(&self, chain: &str, endpoints: impl Iterator<Item = Backend<A>>, said: &mut Statement<A>) {
        let content = Chain {
            endpoints: endpoints.collect(),
            ..Chain::default()
        };
        if !content.is_empty() {
            said.insert(Place::Chain(chain.to_owned()), Content::Chain(content));
        }
    }

    /// Says where packets to an address of the Service go.
    fn dispatch(
        &self,
        maps: (Map, Map),
        address: Option<A>,
        leads: Option<String>,
        away: bool,
        said: &mut Statement<A>,
    ) {
        self.dispatch_at(
            maps,
            self.key(address, self.view.port.port.get()),
            leads,
            away,
            said,
        );
    }

    fn dispatch_at(
        &self,
        (map, no_endpoint): (Map, Map),
        key: Key<A>,
        leads: Option<String>,
        away: bool,
        said: &mut Statement<A>,
    ) {
        if let Some(chain) = leads {
            said.insert(Place::Element(map, key), Content::Leads(chain));
        }
        if away {
            let verdict = match self.view.selection().has_any {
                true => Content::Drops,
                false => Content::Rejects,
            };
            said.insert(Place::Element(no_endpoint, key), verdict);
        }
    }

    fn key(&self, address: Option<A>, port: u16) -> Key<A> {
        Key {
            address,
            protocol: self.view.port.protocol,
            port,
        }
    }

    /// Whether traffic under this policy reaches anybody.
    fn serves(&self, policy: TrafficPolicy) -> bool {
        let selection = self.view.selection();
        selection.has_any && !(policy == TrafficPolicy::Local && selection.local().next().is_none())
    }

    fn of_policy(&self, policy: TrafficPolicy) -> &str {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }
}
