//! What do kube-proxy's rules say about a Service in iptables mode?
//!
//! The same as in nftables mode, with rules of shared chains in the place of elements, and with other names.

use pointsman_dataplane::{PortView, ServiceState};
use pointsman_iptables::name::{ChainName, NameHash, Role};
use pointsman_model::{Address, ServicePortName};

use crate::place::Statement;
use crate::said::said;
use crate::tracker::Language;

/// The chains in which a rule stands for a destination, with their tables.
pub const DISPATCH: &[(&str, &str)] = &[
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];
/// What the names of the chains begin with that such rules lead to.
pub const PREFIXES: &[&str] = &["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"];
/// What the names of chains that send to one endpoint begin with.
pub const ENDPOINT_PREFIX: &str = "KUBE-SEP-";
/// Marks packets for masquerading; where they go says another rule.
pub const MARK_CHAIN: &str = "KUBE-MARK-MASQ";

/// What has to be there for any Service: chains with their tables, and what one of their rules each must lead to.
pub const GROUND: &[(&str, &str, &str)] = &[
    ("nat", "PREROUTING", "KUBE-SERVICES"),
    ("nat", "OUTPUT", "KUBE-SERVICES"),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING"),
    ("nat", "KUBE-SERVICES", "KUBE-NODEPORTS"),
    ("filter", "FORWARD", "KUBE-SERVICES"),
    ("filter", "OUTPUT", "KUBE-SERVICES"),
    ("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES"),
];

/// What kube-proxy's rules are written in.
pub const fn language<A: Address>() -> Language<A> {
    Language {
        statement,
        parts: endpoint_chains,
    }
}

/// Names of chains that send to one endpoint each do not say whose they are.
fn endpoint_chains<A: Address>(state: &ServiceState<A>) -> Vec<NameHash> {
    let of_port = |port: PortView<'_, A>| {
        let (name, selection) = (port.name(), port.selection());
        let endpoints = selection.cluster().chain(selection.local());
        let hashes = endpoints.map(|backend| NameHash::of_endpoint(&name, backend));
        hashes.collect::<Vec<_>>()
    };
    state.ports().flat_map(of_port).collect()
}

/// What the rules say about a Service in this state; nothing if there is none.
fn statement<A: Address>(state: Option<&ServiceState<A>>) -> Statement<A> {
    said(state, name)
}

fn name(role: Role, port: &ServicePortName) -> String {
    ChainName::Service(role, NameHash::of_port(port)).to_string()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use pointsman_dataplane::{Change, Watermark};
    use pointsman_testkit::cluster::Cluster;

    use super::*;
    use crate::tracker::{Step, Tracker};

    #[test]
    fn whoever_writes_the_chain_of_an_endpoint_writes_rules_of_its_service() {
        let mut tracker = Tracker::new(language());
        let mut chains = Vec::new();
        for endpoint in ["10.0.1.5:8080", "10.0.1.6:8080"] {
            let service = "node n1\nservice ns1/svc1:p80 172.30.0.1:80/tcp";
            let cluster = Cluster::parse(&format!(
                "{service}\nendpoint ns1/svc1:p80 {endpoint} node=n1 ready"
            ));
            let index = cluster.index::<Ipv4Addr>();
            let state = index.desired().next().unwrap();
            let name = state.service.name.clone();
            let hash = endpoint_chains(&state)[0];
            chains.push(ChainName::Service(Role::Endpoint, hash).to_string());
            let change = Change {
                name: name.clone(),
                before: None,
                after: Some(state.clone()),
            };
            let step = Step {
                watermark: Watermark::default(),
                triggers: Vec::new(),
            };
            tracker.fold(Instant::now(), vec![change], step);
            tracker.observe(Instant::now(), &name, &statement(Some(&state)));
            assert_eq!(tracker.said(Instant::now()).len(), 1);
        }
        let [before, now] = [&chains[0], &chains[1]];
        assert_ne!(before, now);
        tracker.doubt_chain(before);
        assert!(tracker.question().is_none(), "nothing leads there any more");
        tracker.doubt_chain(now);
        assert!(tracker.question().is_some());
    }
}
