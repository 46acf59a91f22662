//! Which rules does one Service need?
//!
//! Chains of its own (in the nat table), and single rules in the shared chains that lead to them or refuse
//! its traffic. Both are a function of the Service's state and the settings, nothing else.

use std::collections::BTreeMap;

use pointsman_dataplane::settings::Settings;
use pointsman_dataplane::{PortView, ServiceState};
use pointsman_model::{Address, Backend, Cidr, NodePort, Port, Protocol, ServicePortName, TrafficPolicy};

use crate::name::{ChainName, NameHash, Role, Table, Top};
use crate::rule::{Is, Match, Rule, Target, from_pod};

/// Whether rules about endpoints carry comments; upstream leaves them out above 1000 endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointComments {
    Written,
    LeftOut,
}

/// A rule in a chain shared with other Services.
pub type DispatchRule<A> = (Table, ChainName, Rule<A>);

/// Everything one Service needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRules<A> {
    /// Its own chains, all in the nat table.
    pub chains: BTreeMap<ChainName, Vec<Rule<A>>>,
    /// Its rules in shared chains. Those of different Services never match the same packet, so their
    /// order means nothing.
    pub dispatch: Vec<DispatchRule<A>>,
}

impl<A: Address> ServiceRules<A> {
    /// The rules of a Service; none for one that is gone.
    pub fn of(state: Option<&ServiceState<A>>, settings: &Settings<A>, comments: EndpointComments) -> Self {
        let mut rules = Self {
            chains: BTreeMap::new(),
            dispatch: Vec::new(),
        };
        let Some(state) = state else { return rules };
        for view in state.ports() {
            PortRules::new(view, settings, comments).write(&mut rules);
        }
        if let Some(NodePort(port)) = state.service.health_check() {
            // Load balancers ask here whether or not there are endpoints.
            let rule = Rule::new(vec![Match::Port(Protocol::Tcp, port)], Target::Accept)
                .comment(format!("{} health check node port", state.service.name));
            rules
                .dispatch
                .push((Table::Filter, ChainName::Top(Top::NodePorts), rule));
        }
        rules
    }
}

/// The chain that holds the rules for a destination address.
pub fn bucket<A: Address>(address: A) -> ChainName {
    let octets = address.octets();
    ChainName::Bucket(octets.as_ref().last().copied().unwrap_or_default())
}

/// The making of one port's rules.
struct PortRules<'a, A> {
    view: PortView<'a, A>,
    settings: &'a Settings<A>,
    comments: EndpointComments,
    name: ServicePortName,
    hash: NameHash,
}

impl<'a, A: Address> PortRules<'a, A> {
    fn new(view: PortView<'a, A>, settings: &'a Settings<A>, comments: EndpointComments) -> Self {
        let name = view.name();
        let hash = NameHash::of_port(&name);
        Self {
            view,
            settings,
            comments,
            name,
            hash,
        }
    }

    fn write(&self, rules: &mut ServiceRules<A>) {
        self.internal_dispatch(&mut rules.dispatch);
        self.external_dispatch(&mut rules.dispatch);
        if !self.view.selection().has_any {
            return;
        }
        if self.view.has_external_destination() {
            rules
                .chains
                .insert(self.chain(Role::External), self.external_chain());
        }
        if self.is_guarded() {
            rules
                .chains
                .insert(self.chain(Role::Firewall), self.firewall_chain());
        }
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            if self.uses(policy) {
                rules
                    .chains
                    .insert(self.policy_chain(policy), self.balancing_chain(policy));
            }
        }
        let (cluster, local) = (self.uses(TrafficPolicy::Cluster), self.uses(TrafficPolicy::Local));
        for endpoint in &self.view.selection().reachable {
            if cluster && endpoint.in_cluster || local && endpoint.in_local {
                let backend = endpoint.backend;
                rules
                    .chains
                    .insert(self.endpoint_chain(backend), self.endpoint_rules(backend));
            }
        }
    }

    /// Whether some traffic goes to the set of a policy.
    fn uses(&self, policy: TrafficPolicy) -> bool {
        let internal = policy == self.view.service.internal_policy && self.view.cluster_ip().is_some();
        // The cluster set also serves what is short-circuited past the Local policy.
        let by_external = policy == TrafficPolicy::Cluster || policy == self.view.service.external_policy;
        let external = by_external && self.view.has_external_destination();
        (internal || external) && !self.view.selection().is_empty_under(policy)
    }

    fn chain(&self, role: Role) -> ChainName {
        ChainName::Service(role, self.hash)
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> ChainName {
        self.chain(match policy {
            TrafficPolicy::Cluster => Role::Cluster,
            TrafficPolicy::Local => Role::Local,
        })
    }

    fn endpoint_chain(&self, backend: Backend<A>) -> ChainName {
        ChainName::Service(Role::Endpoint, NameHash::of_endpoint(&self.name, backend))
    }

    /// Matches the port on one of the Service's addresses.
    fn to(&self, address: A) -> Vec<Match<A>> {
        vec![
            Match::Destination(Is::In, Cidr::host(address)),
            self.port(self.view.port.port),
        ]
    }

    fn port(&self, port: Port) -> Match<A> {
        Match::Port(self.view.port.protocol, port)
    }

    /// What refuses traffic under a policy: nothing if there are endpoints for it.
    fn refusal(&self, policy: TrafficPolicy) -> Option<(Target<A>, String)> {
        let selection = self.view.selection();
        if !selection.has_any {
            Some((Target::Reject, format!("{} has no endpoints", self.name)))
        } else if selection.is_empty_under(policy) {
            Some((Target::Drop, format!("{} has no local endpoints", self.name)))
        } else {
            None
        }
    }

    fn internal_dispatch(&self, dispatch: &mut Vec<DispatchRule<A>>) {
        let Some(address) = self.view.cluster_ip() else {
            return;
        };
        let policy = self.view.service.internal_policy;
        dispatch.push(match self.refusal(policy) {
            Some((target, comment)) => (
                Table::Filter,
                bucket(address),
                Rule::new(self.to(address), target).comment(comment),
            ),
            None => {
                let target = Target::Jump(self.policy_chain(policy));
                let rule = Rule::new(self.to(address), target).comment(format!("{} cluster IP", self.name));
                (Table::Nat, bucket(address), rule)
            }
        });
    }

    fn external_dispatch(&self, dispatch: &mut Vec<DispatchRule<A>>) {
        let has_any = self.view.selection().has_any;
        let refusal = self.refusal(self.view.service.external_policy);
        let external = Target::Jump(self.chain(Role::External));
        let refuse = |matches: Vec<Match<A>>, dispatch: &mut Vec<_>| {
            if let Some((target, comment)) = &refusal {
                let rule = Rule::new(matches, target.clone()).comment(comment.clone());
                dispatch.push((Table::Filter, ChainName::Top(Top::ExternalServices), rule));
            }
        };
        for address in self.view.external_ips() {
            if has_any {
                let rule = Rule::new(self.to(address), external.clone())
                    .comment(format!("{} external IP", self.name));
                dispatch.push((Table::Nat, bucket(address), rule));
            }
            refuse(self.to(address), dispatch);
        }
        for address in self.view.load_balancer_vips() {
            if has_any {
                dispatch.push((Table::Nat, bucket(address), self.load_balancer_rule(address)));
            }
            if self.is_guarded() {
                let firewall = self.chain(Role::Firewall);
                let rule = Rule::new(self.to(address), Target::Drop)
                    .comment(format!("{} traffic not accepted by {firewall}", self.name));
                dispatch.push((Table::Filter, ChainName::Top(Top::ProxyFirewall), rule));
            }
            refuse(self.to(address), dispatch);
        }
        if let Some(NodePort(port)) = self.view.node_port() {
            if has_any {
                let rule = Rule::new(vec![self.port(port)], external).comment(self.name.to_string());
                dispatch.push((Table::Nat, ChainName::Top(Top::NodePorts), rule));
            }
            refuse(vec![self.port(port), Match::ToThisNode], dispatch);
        }
    }

    fn load_balancer_rule(&self, address: A) -> Rule<A> {
        let role = if self.is_guarded() {
            Role::Firewall
        } else {
            Role::External
        };
        Rule::new(self.to(address), Target::Jump(self.chain(role)))
            .comment(format!("{} loadbalancer IP", self.name))
    }

    /// Whether source ranges apply, which needs endpoints: without any, all traffic is refused anyway.
    fn is_guarded(&self) -> bool {
        let guarded = self.view.source_ranges().is_some() && self.view.load_balancer_vips().next().is_some();
        guarded && self.view.selection().has_any
    }

    fn external_chain(&self) -> Vec<Rule<A>> {
        let name = &self.name;
        let cluster = Target::Jump(self.chain(Role::Cluster));
        let mark = Target::Jump(ChainName::Top(Top::MarkMasq));
        if self.view.service.external_policy == TrafficPolicy::Cluster {
            return vec![
                // Answers must come back through this node, wherever the endpoint is.
                Rule::new(Vec::new(), mark)
                    .comment(format!("masquerade traffic for {name} external destinations")),
                Rule::new(Vec::new(), cluster),
            ];
        }
        let mut rules = Vec::new();
        // Traffic from inside is subject to neither policy: it behaves as if it had gone out to the
        // load balancer and come back through a node that has an endpoint.
        if let Some(pod) = from_pod(Is::In, &self.settings.local) {
            rules.push(
                Rule::new(vec![pod], cluster.clone())
                    .comment(format!("pod traffic for {name} external destinations")),
            );
        }
        let own = vec![Match::FromThisNode];
        rules.push(Rule::new(own.clone(), mark).comment(format!(
            "masquerade LOCAL traffic for {name} external destinations"
        )));
        rules.push(
            Rule::new(own, cluster).comment(format!("route LOCAL traffic for {name} external destinations")),
        );
        if !self.view.selection().is_empty_under(TrafficPolicy::Local) {
            rules.push(Rule::new(Vec::new(), Target::Jump(self.chain(Role::Local))));
        }
        rules
    }

    fn firewall_chain(&self) -> Vec<Rule<A>> {
        let name = &self.name;
        let allow = |source| {
            Rule::new(
                vec![Match::Source(Is::In, source)],
                Target::Jump(self.chain(Role::External)),
            )
            .comment(format!("{name} loadbalancer IP"))
        };
        let ranges = self.view.source_ranges().unwrap_or_default();
        let mut rules: Vec<Rule<A>> = ranges.iter().map(|range| allow(*range)).collect();
        let node_allowed = self
            .settings
            .node_ip
            .is_some_and(|node| ranges.iter().any(|range| range.contains(node)));
        if node_allowed {
            // A load balancer address is often also an address of the node; the node's own requests
            // then loop back with it as their source.
            rules.extend(
                self.view
                    .load_balancer_vips()
                    .map(|address| allow(Cidr::host(address))),
            );
        }
        rules.push(Rule::new(Vec::new(), Target::Nothing).comment(format!(
            "other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL"
        )));
        rules
    }

    /// Marks what needs masquerading, then sends to one of the endpoints.
    fn balancing_chain(&self, policy: TrafficPolicy) -> Vec<Rule<A>> {
        let mut rules = Vec::new();
        if policy == self.view.service.internal_policy {
            rules.extend(self.internal_masquerade());
        }
        let endpoints: Vec<Backend<A>> = self.view.selection().under(policy).collect();
        if let Some(affinity) = self.view.affinity() {
            rules.extend(endpoints.iter().map(|endpoint| {
                let chain = self.endpoint_chain(*endpoint);
                self.balance(*endpoint, vec![Match::SeenBy(chain, affinity)])
            }));
        }
        for (position, endpoint) in endpoints.iter().enumerate() {
            let left = u32::try_from(endpoints.len() - position).unwrap_or(u32::MAX);
            let chance = if left > 1 {
                vec![Match::OneIn(left)]
            } else {
                Vec::new()
            };
            rules.push(self.balance(*endpoint, chance));
        }
        // No packet gets here, unless the rule of the last endpoint is taken out ahead of the others' new chances.
        if let [.., endpoint, _] = endpoints[..] {
            rules.push(self.balance(endpoint, Vec::new()));
        }
        rules
    }

    fn internal_masquerade(&self) -> Option<Rule<A>> {
        let mut matches = self.to(self.view.cluster_ip()?);
        if !self.settings.masquerade_all {
            // Somebody routed the Service range to this node; answers must come back the same way.
            matches.push(from_pod(Is::NotIn, &self.settings.local)?);
        }
        let mark = Target::Jump(ChainName::Top(Top::MarkMasq));
        Some(Rule::new(matches, mark).comment(format!("{} cluster IP", self.name)))
    }

    fn balance(&self, endpoint: Backend<A>, matches: Vec<Match<A>>) -> Rule<A> {
        let rule = Rule::new(matches, Target::Jump(self.endpoint_chain(endpoint)));
        self.endpoint_comment(rule, || format!("{} -> {endpoint}", self.name))
    }

    fn endpoint_rules(&self, backend: Backend<A>) -> Vec<Rule<A>> {
        // An endpoint that reaches itself must see the node, or it would answer itself directly.
        let hairpin = Rule::new(
            vec![Match::Source(Is::In, Cidr::host(backend.address))],
            Target::Jump(ChainName::Top(Top::MarkMasq)),
        );
        let mut matches = vec![Match::Protocol(self.view.port.protocol)];
        if self.view.affinity().is_some() {
            matches.push(Match::NoteSeen(self.endpoint_chain(backend)));
        }
        let send = Rule::new(matches, Target::Dnat(backend));
        [hairpin, send]
            .map(|rule| self.endpoint_comment(rule, || self.name.to_string()))
            .into()
    }

    fn endpoint_comment(&self, rule: Rule<A>, comment: impl FnOnce() -> String) -> Rule<A> {
        match self.comments {
            EndpointComments::Written => rule.comment(comment()),
            EndpointComments::LeftOut => rule,
        }
    }
}
