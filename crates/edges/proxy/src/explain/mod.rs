//! Which way does a packet take on a node, and why?
//!
//! The answer comes from the API server alone, so it can be asked for anywhere: Services and slices are
//! folded as the proxy folds them, its rules are made, and sample packets walk through them. On the node
//! itself, [`verify`] also asks the kernel whether it agrees.

mod paths;
mod question;
mod read;
mod verify;
mod withdrawn;

use pointsman_dataplane::claims::destinations;
use pointsman_dataplane::select::Verdict;
use pointsman_dataplane::{ClaimKind, Destination, Host, Index, PortView, ServiceState, Settings};
use pointsman_kernel::Mode;
use pointsman_model::{Address, Backend, Port, Protocol, ServiceName, TrafficPolicy};
use serde::Serialize;

pub use question::{BadQuestion, Question};
pub use read::{Cluster, ExplainError, read};
pub use verify::verify;
pub use withdrawn::withdrawn;

use paths::Rules;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Whether the question could be answered.
    pub outcome: Outcome,
    /// The node it is about.
    pub node: String,
    /// Its zone, if its label has a value.
    pub zone: Option<String>,
    /// How the proxy writes rules.
    pub mode: &'static str,
    /// The ports that the question is about.
    pub ports: Vec<PortAnswer>,
    /// What else there is to say.
    pub notes: Vec<String>,
    /// What the kernel of this machine says.
    pub kernel: KernelAnswer,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Explained,
    /// There is no such Node, so that its addresses, zone and pods are not known.
    NoNode,
    /// No Service that a proxy forwards for has this name or address.
    NoService,
    /// The Service has no such port.
    NoPort,
}

/// Whether the kernel agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelAnswer {
    /// `true` if what it holds for the Services named is exactly what it should; missing if nobody looked.
    pub agrees: Option<bool>,
    /// Why nobody looked.
    pub not_asked: Option<String>,
    /// What it should have and has not.
    pub missing: Vec<String>,
    /// What it has and should not have.
    pub unexpected: Vec<String>,
}

/// One port of a Service in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortAnswer {
    /// `namespace/name`.
    pub service: String,
    /// The port's name; may be empty.
    pub port: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// How long clients stay with an endpoint.
    pub affinity_seconds: Option<u32>,
    /// The ways in.
    pub ways: Vec<Way>,
    /// All endpoints, used or not.
    pub endpoints: Vec<EndpointAnswer>,
}

/// One way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// `ClusterIP`, `ExternalIP`, `LoadBalancer` or `NodePort`.
    pub kind: &'static str,
    /// Address and port, or `*` and the port of the node.
    pub to: String,
    /// The policy that applies.
    pub policy: &'static str,
    /// The Service that owns this destination instead, if two name it.
    pub taken_by: Option<String>,
    /// What becomes of a new connection, by who makes it.
    pub clients: Vec<ClientAnswer>,
    /// The rules or elements on the way, in order.
    pub rules: Vec<String>,
}

/// What becomes of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientAnswer {
    pub client: &'static str,
    /// `delivered`, `rejected`, `dropped` or `untouched`.
    pub fate: &'static str,
    /// Where it may go.
    pub endpoints: Vec<String>,
    /// Whether the endpoints see the node's address instead of the client's.
    pub masqueraded: bool,
}

/// One endpoint and what this node thinks of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointAnswer {
    /// Address and port.
    pub address: String,
    pub node: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Whether the `Cluster` policy uses it, or why not.
    pub cluster: &'static str,
    /// Whether the `Local` policy uses it, or why not.
    pub local: &'static str,
}

/// What a question is about in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub service: ServiceName,
    /// Only these ports of it: by number on an address of the Service, by name, or by node port.
    pub only: Option<PortChoice>,
}

/// Which ports of a Service are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// The port with this name, number or node port.
    Named(String),
    /// The port on the Service's addresses.
    Number(Port, Option<Protocol>),
    /// The port on the node's addresses.
    Node(Port, Option<Protocol>),
}

impl PortChoice {
    fn admits<A: Address>(&self, view: &PortView<'_, A>) -> bool {
        let speaks = |protocol: &Option<Protocol>| protocol.is_none_or(|it| it == view.port.protocol);
        match self {
            Self::Named(text) => {
                let node_port = view.port.node_port.map(|port| port.0.to_string());
                view.port.name.as_str() == text
                    || view.port.port.to_string() == *text
                    || node_port.as_ref() == Some(text)
            }
            Self::Number(port, protocol) => view.port.port == *port && speaks(protocol),
            Self::Node(port, protocol) => {
                view.port.node_port.is_some_and(|node_port| node_port.0 == *port) && speaks(protocol)
            }
        }
    }
}

/// Finds the Service that a question means, by the index of one family.
pub fn subject<A: Address>(index: &Index<A>, host: &Host<A>, question: &Question) -> Option<Subject> {
    match question {
        Question::Service { name, port } => Some(Subject {
            service: name.clone(),
            only: port.clone().map(PortChoice::Named),
        }),
        Question::Address { ip, port, protocol } => {
            let (ip, port) = (A::narrow(*ip)?, port.and_then(Port::new));
            let protocols = || {
                Protocol::ALL
                    .into_iter()
                    .filter(|it| protocol.is_none_or(|only| only == *it))
            };
            let owner = |at: Destination<A>| index.claims().owner(&at).cloned();
            if let Some(port) = port {
                let exact = protocols().find_map(|it| owner(Destination::Address(ip, it, port)));
                if let Some(service) = exact {
                    let only = Some(PortChoice::Number(port, *protocol));
                    return Some(Subject { service, only });
                }
                let node_port = |it| owner(Destination::NodePort(it, pointsman_model::NodePort(port)));
                if let Some(service) = protocols().find_map(node_port).filter(|_| host.is_local(ip)) {
                    let only = Some(PortChoice::Node(port, *protocol));
                    return Some(Subject { service, only });
                }
            }
            let service = index
                .desired()
                .find(|state| answers_to(state, ip))?
                .service
                .name
                .clone();
            let only = port.map(|port| PortChoice::Number(port, *protocol));
            Some(Subject { service, only })
        }
    }
}

fn answers_to<A: Address>(state: &ServiceState<A>, ip: A) -> bool {
    let service = &state.service;
    service.cluster_ip == ip
        || service.external_ips().contains(&ip)
        || service.load_balancer_vips().contains(&ip)
}

/// Explains a Service's ports in one family.
pub fn explain<A: Address>(
    index: &Index<A>,
    settings: &Settings<A>,
    host: &Host<A>,
    mode: Mode,
    subject: &Subject,
) -> Vec<PortAnswer> {
    let Some(state) = index.desired_service(&subject.service) else {
        return Vec::new();
    };
    let rules = Rules::new(mode, &state, settings, host);
    let chosen = |view: &PortView<'_, A>| subject.only.as_ref().is_none_or(|only| only.admits(view));
    let port = |view: PortView<'_, A>| PortAnswer {
        service: view.service.name.to_string(),
        port: view.port.name.to_string(),
        protocol: view.port.protocol.to_string(),
        family: A::FAMILY.as_str(),
        affinity_seconds: view.affinity().map(|affinity| affinity.timeout_seconds.get()),
        ways: destinations(view.service, view.port)
            .map(|(kind, at)| way(index, &rules, &view, kind, at))
            .collect(),
        endpoints: index
            .judged(&view.name())
            .into_iter()
            .map(|(endpoint, judgement)| EndpointAnswer {
                address: endpoint.backend.to_string(),
                node: endpoint.node.map(|node| node.to_string()),
                ready: endpoint.conditions.ready,
                serving: endpoint.conditions.serving,
                terminating: endpoint.conditions.terminating,
                cluster: reason(judgement.cluster),
                local: reason(judgement.local),
            })
            .collect(),
    };
    state.ports().filter(chosen).map(port).collect()
}

fn way<A: Address>(
    index: &Index<A>,
    rules: &Rules<'_, A>,
    view: &PortView<'_, A>,
    kind: ClaimKind,
    at: Destination<A>,
) -> Way {
    let lost = view.state.lost().contains(&(kind, at));
    let policy = match kind {
        ClaimKind::ClusterIp => view.service.internal_policy,
        _ => view.service.external_policy,
    };
    let owner = || {
        index
            .claims()
            .owner(&at)
            .map_or_else(|| "nobody".to_owned(), ToString::to_string)
    };
    Way {
        kind: match kind {
            ClaimKind::ClusterIp => "ClusterIP",
            ClaimKind::ExternalIp => "ExternalIP",
            ClaimKind::LoadBalancer => "LoadBalancer",
            ClaimKind::NodePort => "NodePort",
        },
        to: match at {
            Destination::Address(address, _, port) => Backend { address, port }.to_string(),
            Destination::NodePort(_, port) => format!("*:{port}"),
        },
        policy: match policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        },
        taken_by: lost.then(owner),
        clients: if lost { Vec::new() } else { rules.clients(at) },
        rules: if lost { Vec::new() } else { rules.on_the_way_to(at) },
    }
}

/// A verdict in words.
fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Used => "used",
        Verdict::LastResort => "used: terminating, but nothing ready is left",
        Verdict::OtherNode => "not used: its hints keep it for other nodes",
        Verdict::OtherZone => "not used: its hints keep it for other zones",
        Verdict::NotReady => "not used: not ready",
        Verdict::Terminating => "not used: terminating",
        Verdict::Remote => "not used: on another node",
        Verdict::Unneeded => "not used: no traffic under this policy",
    }
}

#[cfg(test)]
mod tests;
