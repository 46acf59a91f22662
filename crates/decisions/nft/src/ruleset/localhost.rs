//! What becomes of packets to node ports of a loopback address?
//!
//! The table never translates them (TCP is carried by listeners of the proxy); with the feature on, what nobody
//! carries is refused and counted. One rule of `nat-output` leads here, so no other packet meets more than that.

use pointsman_dataplane::Localhost;
use pointsman_model::{Address, Protocol};
use pointsman_netlink::nft::{CmpOp, Expr, Name, Rule};

use super::program::{Program, Side, loopback};
use super::{Chains, REFUSE};
use crate::pool::Pool;
use crate::set_id::SetId;

const LOCALHOST: Name = Name::fixed("localhost");

/// Adds the chain that refuses, and returns the rule that leads to it.
pub(super) fn chain<A: Address>(chains: &mut Chains<A>, localhost: Localhost) -> Option<Program<A>> {
    let refused = localhost.refused();
    if refused.is_empty() {
        return None;
    }
    let rules = refused.iter().map(|protocol| {
        let rule = Program::new().protocol_is(*protocol);
        let rule = rule.key_in(Pool::NodePort, SetId::NodePorts);
        rule.counted().goto(REFUSE)
    });
    chains.chain(LOCALHOST, rules);
    let to_loopback = Program::new().address_is(Side::Destination, CmpOp::Eq, &loopback());
    Some(to_loopback.goto(LOCALHOST))
}

/// How many packets the table refused on loopback addresses, by the rules read from the kernel.
pub fn refused_on_localhost(rules: &[Rule]) -> Vec<(Protocol, u64)> {
    let of_chain = rules.iter().filter(|rule| rule.chain == LOCALHOST);
    of_chain
        .filter_map(|rule| {
            let protocol = rule.exprs.iter().find_map(|expr| match expr {
                Expr::Cmp { value, .. } => Protocol::ALL
                    .into_iter()
                    .find(|protocol| value.as_bytes() == [protocol.number()]),
                _ => None,
            })?;
            let packets = rule.exprs.iter().find_map(|expr| match expr {
                Expr::Counter { packets, .. } => Some(*packets),
                _ => None,
            })?;
            Some((protocol, packets))
        })
        .collect()
}
