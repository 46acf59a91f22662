//! What do kube-proxy's rules say about a Service in iptables mode?
//!
//! The same as in nftables mode, with rules of shared chains in the place of elements, and with other names.

use pointsman_dataplane::ServiceState;
use pointsman_iptables::name::{ChainName, NameHash, Role};
use pointsman_model::{Address, ServicePortName};

use crate::place::Statement;
use crate::said::said;

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

/// What the rules say about a Service in this state; nothing if there is none.
pub fn statement<A: Address>(state: Option<&ServiceState<A>>) -> Statement<A> {
    said(state, name)
}

fn name(role: Role, port: &ServicePortName) -> String {
    ChainName::Service(role, NameHash::of_port(port)).to_string()
}
