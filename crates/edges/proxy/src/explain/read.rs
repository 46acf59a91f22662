//! What does the cluster look like to a node's proxy?

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pointsman_api_client::{ApiError, Client, ConnectError, Resource, Scope, connect};
use pointsman_dataplane::convert::{self, FamilySlice};
use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Host, Index, Settings};
use pointsman_kernel::interfaces;
use pointsman_model::{Interner, Moment, NodeName};
use pointsman_objects::{Node, compact, names};

use crate::config::{Config, NodeState};
use crate::explain::{Explanation, KernelAnswer, Outcome, Question, Subject, explain, subject};

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no usable configuration of the connection.
    #[error("no connection to an API server can be set up")]
    Connect(#[from] ConnectError),
    /// The API server did not answer as it should.
    #[error("reading {what}")]
    Read {
        what: &'static str,
        #[source]
        source: ApiError,
    },
}

/// The part of a cluster that matters to a question, as one node sees it.
#[derive(Debug)]
pub struct Cluster {
    pub node: String,
    /// Whether there is such a Node.
    known: bool,
    /// The addresses its Node names.
    pub addresses: Vec<IpAddr>,
    pub(super) v4: Index<Ipv4Addr>,
    pub(super) v6: Index<Ipv6Addr>,
    pub(super) settings: (Settings<Ipv4Addr>, Settings<Ipv6Addr>),
    hosts: (Host<Ipv4Addr>, Host<Ipv6Addr>),
    zone: Option<String>,
    notes: Vec<String>,
    names: Interner,
}

/// Reads what the question needs: the Node, all Services, and the slices of those it is about. Packets to an
/// address of another node are that node's, unless `insist` says that the configured one is meant.
pub async fn read(
    config: &Config,
    question: &Question,
    insist: bool,
) -> Result<(Cluster, Vec<Subject>), ExplainError> {
    let client = connect::connect(&config.source, "pointsman-explain").await?;
    let other = match question {
        Question::Address { ip, .. } => read_owner(&client, *ip).await,
        Question::Service { .. } => None,
    };
    let other = other.filter(|node| *node.metadata.name != config.node);
    let mut cluster = match other {
        Some(node) if !insist => {
            let name = node.metadata.name.to_string();
            let note = format!("the address is of node {name}: this is what happens there");
            let mut cluster = Cluster::new(config, &name, Some(node));
            cluster.notes.push(note);
            cluster
        }
        other => {
            let mut cluster = Cluster::new(config, &config.node, read_node(&client, &config.node).await?);
            if let Some(node) = other {
                let name = &node.metadata.name;
                cluster.notes.push(format!(
                    "the address is of node {name}, whose rules decide: --node {name}"
                ));
            }
            cluster
        }
    };
    let services: Vec<compact::Service> = list(&client, Scope::all(Resource::SERVICES), "Services").await?;
    services.iter().for_each(|service| cluster.fold_service(service));
    let subjects = cluster.subjects(question);
    for service in subjects.iter().map(|subject| &subject.service) {
        let mut scope = Scope::all(Resource::ENDPOINT_SLICES);
        scope.namespace = Some(service.namespace().to_owned());
        let scope = scope.labels(&format!("{}={}", names::SERVICE_NAME_LABEL, service.name()));
        let slices: Vec<compact::EndpointSlice> = list(&client, scope, "EndpointSlices").await?;
        slices.iter().for_each(|slice| cluster.fold_slice(slice));
    }
    Ok((cluster, subjects))
}

async fn list<T: serde::de::DeserializeOwned>(
    client: &Client,
    scope: Scope,
    what: &'static str,
) -> Result<Vec<T>, ExplainError> {
    let read = client.list(&scope).await;
    read.map_err(|source| ExplainError::Read { what, source })
}

/// The Node with this address. Who may not list Nodes asks about one.
async fn read_owner(client: &Client, ip: IpAddr) -> Option<Node> {
    let nodes: Vec<Node> = list(client, Scope::all(Resource::NODES), "Nodes").await.ok()?;
    let owns = |node: &Node| node.addresses.iter().any(|(_, address)| *address == ip);
    nodes.into_iter().find(owns)
}

/// The Node, or nothing if it does not exist.
async fn read_node(client: &Client, name: &str) -> Result<Option<Node>, ExplainError> {
    match client.api(Resource::NODES, None).get(name).await {
        Ok(node) => Ok(Some(node)),
        Err(ApiError::NotFound(_)) => Ok(None),
        Err(source) => Err(ExplainError::Read {
            what: "the Node",
            source,
        }),
    }
}

impl Cluster {
    pub(super) fn new(config: &Config, name: &str, node: Option<Node>) -> Self {
        let mut notes = Vec::new();
        let known = node.is_some();
        if !known {
            notes.push(format!(
                "there is no Node {name}: its addresses, zone and pods are not known"
            ));
        }
        let facts = convert::node(&node.unwrap_or_default());
        let interfaces = interfaces::addresses().unwrap_or_default();
        let here = facts.addresses.iter().any(|address| interfaces.contains(address));
        let interfaces = if here { interfaces } else { facts.addresses.clone() };
        let state = NodeState {
            addresses: facts.addresses.clone(),
            pod_cidrs: facts.pod_cidrs,
            interfaces: interfaces.clone(),
            ..NodeState::default()
        };
        let started = Moment(0);
        let node = NodeName::from(name);
        let mut v4 = Index::new(node.clone(), ExternalIps::Honoured, started);
        let mut v6 = Index::new(node, ExternalIps::Honoured, started);
        v4.set_zone(facts.zone.clone());
        v6.set_zone(facts.zone.clone());
        // The address that the Node names comes first: it stands for the node in sample packets.
        let addresses = || facts.addresses.iter().chain(&interfaces).copied();
        Self {
            node: name.to_owned(),
            known,
            v4,
            v6,
            settings: (config.settings(&state), config.settings(&state)),
            hosts: (
                Host {
                    addresses: addresses().filter_map(routable).collect(),
                },
                Host {
                    addresses: addresses().filter_map(routable).collect(),
                },
            ),
            zone: facts.zone.map(|zone| zone.to_string()),
            addresses: facts.addresses,
            notes,
            names: Interner::default(),
        }
    }

    pub(super) fn fold_service(&mut self, object: &compact::Service) {
        match convert::service(object, &mut self.names) {
            Ok(converted) => {
                self.v4.fold_service(&converted.name, converted.v4, None);
                self.v6.fold_service(&converted.name, converted.v6, None);
                let problems = converted.problems.iter().map(ToString::to_string);
                self.notes.extend(problems);
            }
            Err(error) => self.notes.push(error.to_string()),
        }
    }

    pub(super) fn fold_slice(&mut self, object: &compact::EndpointSlice) {
        match convert::slice(object, &mut self.names) {
            Ok(converted) => {
                match converted.slice {
                    FamilySlice::V4(slice) => self.v4.fold_slice(slice, None, None),
                    FamilySlice::V6(slice) => self.v6.fold_slice(slice, None, None),
                    FamilySlice::Ignored(name) => {
                        self.notes
                            .push(format!("EndpointSlice {name} is not for a proxy"));
                    }
                }
                self.notes
                    .extend(converted.problems.iter().map(ToString::to_string));
            }
            Err(error) => self.notes.push(error.to_string()),
        }
    }

    /// The Services that the question is about: at most one.
    pub(super) fn subjects(&self, question: &Question) -> Vec<Subject> {
        let found = match question {
            Question::Address { ip, .. } if ip.is_ipv6() => subject(&self.v6, &self.hosts.1, question),
            Question::Address { .. } | Question::Service { .. } => subject(&self.v4, &self.hosts.0, question),
        };
        found.into_iter().collect()
    }

    /// The answer, without the kernel's word.
    pub fn explain(&self, config: &Config, question: &Question, subjects: &[Subject]) -> Explanation {
        let mut ports = Vec::new();
        for subject in subjects {
            let (four, six) = &self.settings;
            ports.extend(explain(&self.v4, four, &self.hosts.0, config.mode, subject));
            ports.extend(explain(&self.v6, six, &self.hosts.1, config.mode, subject));
        }
        if let Question::Address { ip, .. } = question {
            ports.retain(|port| (port.family == "IPv6") == ip.is_ipv6());
        }
        let mut notes = self.notes.clone();
        if ports.is_empty() {
            notes.push(self.nothing(config, question, subjects));
        }
        let is_service = |subject: &Subject| {
            let name = &subject.service;
            self.v4.desired_service(name).is_some() || self.v6.desired_service(name).is_some()
        };
        let outcome = match ports.as_slice() {
            _ if !self.known => Outcome::NoNode,
            [_, ..] => Outcome::Explained,
            [] if subjects.iter().any(is_service) => Outcome::NoPort,
            [] => Outcome::NoService,
        };
        Explanation {
            outcome,
            node: self.node.clone(),
            zone: self.zone.clone(),
            mode: config.mode.as_str(),
            ports,
            notes,
            kernel: KernelAnswer::default(),
        }
    }

    fn nothing(&self, config: &Config, question: &Question, subjects: &[Subject]) -> String {
        let mode = config.mode;
        match (question, subjects) {
            (Question::Address { .. }, []) => {
                "no Service answers to this address: packets are left as they are".to_owned()
            }
            (Question::Address { .. }, [subject, ..]) => {
                let fate = match mode {
                    crate::Mode::Iptables => "left as they are",
                    crate::Mode::Nftables => "rejected if it is a cluster address, else left as they are",
                };
                format!(
                    "the address is of {}, which has no such port: packets are {fate}",
                    subject.service
                )
            }
            (Question::Service { name, .. }, _)
                if self.v4.desired_service(name).is_none() && self.v6.desired_service(name).is_none() =>
            {
                format!(
                    "there is no Service {name} for a proxy: it does not exist, is headless, an ExternalName, or \
                 belongs to another proxy"
                )
            }
            (Question::Service { name, port }, _) => {
                format!(
                    "Service {name} has no port {:?} for a proxy",
                    port.as_deref().unwrap_or("")
                )
            }
        }
    }
}

fn routable<A: pointsman_model::Address>(address: IpAddr) -> Option<A> {
    A::narrow(address).filter(|address| !A::LOOPBACK.contains(*address))
}
