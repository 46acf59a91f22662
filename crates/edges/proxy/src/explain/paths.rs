//! Which rules does a packet meet, and what do they do to it?

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use pointsman_dataplane::{
    Change, Destination, Fate, Host, LocalDetector, NodePortAddresses, Packet, SeenAs, ServiceState, Settings,
};
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::name::Top;
use pointsman_iptables::service::{EndpointComments, ServiceRules, bucket};
use pointsman_iptables::{ChainName, Inventory, Match, Rule, render};
use pointsman_kernel::{Mode, compare};
use pointsman_model::{Address, IpFamily, Port, Protocol};
use pointsman_nft::{KernelTable, TableSettings, describe};

use crate::explain::ClientAnswer;

/// The rules of one Service in a kernel without others.
pub(super) struct Rules<'a, A> {
    state: &'a Arc<ServiceState<A>>,
    settings: &'a Settings<A>,
    host: &'a Host<A>,
    kernel: Kernel<A>,
}

enum Kernel<A> {
    Iptables(Box<FakeKernel<A>>),
    Nftables(Box<KernelTable>),
}

impl<'a, A: Address> Rules<'a, A> {
    pub fn new(
        mode: Mode,
        state: &'a Arc<ServiceState<A>>,
        settings: &'a Settings<A>,
        host: &'a Host<A>,
    ) -> Self {
        let kernel = match mode {
            Mode::Iptables => Kernel::Iptables(Box::new(iptables(state, settings))),
            Mode::Nftables => Kernel::Nftables(Box::new(nftables(state, settings))),
        };
        Self {
            state,
            settings,
            host,
            kernel,
        }
    }

    /// What becomes of new connections of typical clients.
    pub fn clients(&self, at: Destination<A>) -> Vec<ClientAnswer> {
        let Some((destination, protocol, port)) = self.target(at) else {
            return Vec::new();
        };
        let packets = self.sources().into_iter().map(|(client, source, interface)| {
            let packet = Packet {
                source,
                destination,
                protocol,
                port,
                interface,
            };
            (client, packet)
        });
        packets
            .map(|(client, packet)| self.fate(client, &packet))
            .collect()
    }

    /// The rules or elements that decide over traffic to a destination.
    pub fn on_the_way_to(&self, at: Destination<A>) -> Vec<String> {
        match self.kernel {
            Kernel::Iptables(_) => self.chains(at),
            Kernel::Nftables(_) => self.elements(at),
        }
    }

    /// Where a packet would be sent to use the destination.
    fn target(&self, at: Destination<A>) -> Option<(A, Protocol, Port)> {
        match at {
            Destination::Address(address, protocol, port) => Some((address, protocol, port)),
            Destination::NodePort(protocol, port) => {
                let address = match &self.settings.node_ports {
                    NodePortAddresses::All => self.host.addresses.first(),
                    NodePortAddresses::Only(addresses) => addresses.first(),
                };
                Some((*address?, protocol, port.0))
            }
        }
    }

    /// Typical clients: their address, and the interface they come in through if that matters.
    fn sources(&self) -> Vec<(&'static str, A, Option<pointsman_dataplane::InterfaceName>)> {
        let outside = match A::FAMILY {
            IpFamily::V4 => IpAddr::from([203, 0, 113, 99]),
            IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x99]),
        };
        let outside = A::narrow(outside);
        let pod = match &self.settings.local {
            LocalDetector::Nothing => None,
            LocalDetector::Source(range) => Some((range.network(), None)),
            LocalDetector::Bridge(name) | LocalDetector::InterfacePrefix(name) => {
                outside.map(|address| (address, Some(name.clone())))
            }
        };
        let pod = pod.map(|(address, interface)| ("a pod", address, interface));
        let node = self
            .host
            .addresses
            .first()
            .map(|address| ("this node", *address, None));
        let outside = outside.map(|address| ("outside", address, None));
        pod.into_iter().chain(node).chain(outside).collect()
    }

    fn fate(&self, client: &'static str, packet: &Packet<A>) -> ClientAnswer {
        let fate = match &self.kernel {
            Kernel::Iptables(kernel) => Ok(pointsman_iptables::walk::walk(kernel, self.host, packet)),
            Kernel::Nftables(table) => {
                let draws = self.state.endpoints.max(1);
                pointsman_nft::walk::explore(table, packet, self.host, draws)
            }
        };
        let plain = |fate| ClientAnswer {
            client,
            fate,
            endpoints: Vec::new(),
            masqueraded: false,
        };
        match fate {
            Ok(Fate::Delivered(backends)) => ClientAnswer {
                client,
                fate: "delivered",
                masqueraded: backends.values().all(|seen_as| *seen_as == SeenAs::Node),
                endpoints: backends.keys().map(ToString::to_string).collect(),
            },
            Ok(Fate::Untouched) => plain("untouched"),
            Ok(Fate::Dropped) => plain("dropped"),
            Ok(Fate::Rejected) => plain("rejected"),
            Err(_) => plain("unknown"),
        }
    }

    /// The rule that leads to the Service's chains, and the chains it leads to.
    fn chains(&self, at: Destination<A>) -> Vec<String> {
        let rules = ServiceRules::of(Some(self.state), self.settings, EndpointComments::Written);
        let mut lines = Vec::new();
        let mut next: Vec<ChainName> = Vec::new();
        for (table, chain, rule) in &rules.dispatch {
            if leads_to(*chain, rule, at) {
                if let ChainName::Bucket(_) = chain {
                    let jump = Rule::new(vec![last_byte(at)], pointsman_iptables::Target::Jump(*chain));
                    let services = ChainName::Top(Top::Services);
                    lines.push(format!(
                        "{} {}",
                        table.as_str(),
                        render::append_line(services, &jump)
                    ));
                }
                lines.push(format!(
                    "{} {}",
                    table.as_str(),
                    render::append_line(*chain, rule)
                ));
                next.extend(rule.jumps_to());
            }
        }
        let mut seen = BTreeSet::new();
        while let Some(chain) = next.pop() {
            let Some(content) = rules.chains.get(&chain).filter(|_| seen.insert(chain)) else {
                continue;
            };
            for rule in content {
                lines.push(format!("nat {}", render::append_line(chain, rule)));
            }
            // The first endpoint's chain comes first.
            next.extend(content.iter().rev().filter_map(Rule::jumps_to));
        }
        lines
    }

    fn elements(&self, at: Destination<A>) -> Vec<String> {
        let prefix = match at {
            Destination::Address(address, protocol, port) => format!("{address} . {protocol} . {port}"),
            Destination::NodePort(protocol, port) => format!("{protocol} . {port}"),
        };
        let mut lines = Vec::new();
        if let Destination::Address(address, ..) = at
            && address == self.state.service.cluster_ip
        {
            lines.push(format!("cluster-ips {{ {address} }}"));
        }
        for (set, element) in compare::elements(self.state, self.settings) {
            let text = describe::element(&set, &element);
            if text == prefix || text.starts_with(&format!("{prefix} ")) {
                lines.push(format!("{} {{ {text} }}", set.name));
            }
        }
        lines
    }
}

fn iptables<A: Address>(state: &Arc<ServiceState<A>>, settings: &Settings<A>) -> FakeKernel<A> {
    let mut kernel = FakeKernel::default();
    let mut planner = pointsman_iptables::Planner::new(settings.clone());
    for transaction in planner.full(vec![Arc::clone(state)], Inventory::default()) {
        kernel
            .apply(&transaction)
            .expect("a full plan fits an empty kernel");
    }
    kernel
}

fn nftables<A: Address>(state: &Arc<ServiceState<A>>, settings: &Settings<A>) -> KernelTable {
    let planner = pointsman_nft::Planner::new(TableSettings::new(settings.clone()));
    let change = Change {
        name: state.service.name.clone(),
        before: None,
        after: Some(Arc::clone(state)),
    };
    let mut table = KernelTable::default();
    for transaction in [planner.ruleset().create(), planner.plan(&[change]).transaction] {
        table.apply(&transaction).expect("a Service fits an empty table");
    }
    table
}

fn leads_to<A: Address>(chain: ChainName, rule: &Rule<A>, at: Destination<A>) -> bool {
    match at {
        Destination::Address(address, protocol, port) => {
            let to = |condition: &Match<A>| matches!(condition, Match::Destination(_, range) if range.contains(address));
            rule.matches.contains(&Match::Port(protocol, port)) && rule.matches.iter().any(to)
        }
        Destination::NodePort(protocol, port) => {
            let to_node = matches!(chain, ChainName::Top(Top::NodePorts | Top::ExternalServices));
            let addressed = |condition: &Match<A>| matches!(condition, Match::Destination(..));
            to_node
                && rule.matches.contains(&Match::Port(protocol, port.0))
                && !rule.matches.iter().any(addressed)
        }
    }
}

fn last_byte<A: Address>(at: Destination<A>) -> Match<A> {
    match at {
        Destination::Address(address, ..) => match bucket(address) {
            ChainName::Bucket(byte) => Match::DestinationEnd(byte),
            _ => Match::ToThisNode,
        },
        Destination::NodePort(..) => Match::ToThisNode,
    }
}
