//! How do connections end that lead to nodes which are gone?
//!
//! A small table of its own, in both modes of the proxy: packets of TCP to the pods of such nodes are answered with a reset.
//! The rule is constant; which addresses it is about is a set. The table is there only while there are such nodes, and the
//! kernel forgets the addresses by itself if nobody writes them again: a proxy that was killed must not keep pods cut off.

use std::collections::BTreeSet;
use std::time::Duration;

use pointsman_model::{Address, IpFamily};
use pointsman_netlink::nft::{
    BaseChain, Chain, ChainKind, CmpOp, Element, Expr, Field, Hook, LookupTarget, MetaKey, Name, Op,
    PayloadBase, Policy, Register, RejectKind, Rule, Set, SetFlags, Table, Transaction, Value,
};

use crate::key;
use crate::ruleset::family;

/// The table's name, in the families `ip` and `ip6`.
pub const RESETS: Name = Name::fixed("pointsman-resets");
const PODS: Name = Name::fixed("gone");
/// How long the kernel answers for an address that is not written again.
pub const LASTING: Duration = Duration::from_secs(15);
const KEY: Register = Register::fixed(0);
const TCP: u8 = 6;

/// What makes the table answer for these addresses, for [`LASTING`], and for no others, whatever it was before.
pub fn reset_connections<A: Address>(pods: &BTreeSet<A>) -> Transaction {
    let mut transaction = Transaction::new(family::<A>(), RESETS);
    let table = || Op::AddTable(Table::new(family::<A>(), RESETS));
    // Adding what is there does nothing, so this also deletes a table that is not.
    transaction.ops.extend([table(), Op::DeleteTable]);
    if pods.is_empty() {
        return transaction;
    }
    let address = match A::FAMILY {
        IpFamily::V4 => Field::IpDaddr,
        IpFamily::V6 => Field::Ip6Daddr,
    };
    let mut set = Set::new(PODS, &[address], "pods of nodes that are gone");
    set.flags = set.flags | SetFlags::TIMEOUT;
    set.timeout_ms = u64::try_from(LASTING.as_millis()).ok();
    transaction.ops.extend([
        table(),
        Op::AddSet(set),
        Op::AddElements {
            set: PODS,
            elements: pods.iter().map(|pod| Element::new(key::address(*pod))).collect(),
        },
    ]);
    for hook in [Hook::Forward, Hook::Output] {
        let chain = Name::fixed(if hook == Hook::Forward {
            "forward"
        } else {
            "output"
        });
        transaction.ops.extend([
            Op::AddChain(Chain {
                base: Some(BaseChain {
                    kind: ChainKind::Filter,
                    hook,
                    priority: 0,
                    policy: Policy::Accept,
                }),
                ..Chain::regular(chain.clone())
            }),
            Op::AddRule(Rule::new(chain, answer::<A>())),
        ]);
    }
    transaction
}

/// How many packets the rules of this table have answered.
pub fn resets_sent(rules: &[Rule]) -> u64 {
    let exprs = rules.iter().flat_map(|rule| &rule.exprs);
    let counted = exprs.filter_map(|expr| match expr {
        Expr::Counter { packets, .. } => Some(*packets),
        _ => None,
    });
    counted.sum()
}

fn answer<A: Address>() -> Vec<Expr> {
    let (offset, len) = match A::FAMILY {
        IpFamily::V4 => (16, 4),
        IpFamily::V6 => (24, 16),
    };
    vec![
        Expr::Meta {
            dreg: KEY,
            key: MetaKey::L4Proto,
        },
        Expr::Cmp {
            sreg: KEY,
            op: CmpOp::Eq,
            value: Value::try_new(&[TCP]).expect("one byte fits"),
        },
        Expr::Payload {
            dreg: KEY,
            base: PayloadBase::Network,
            offset,
            len,
        },
        Expr::Lookup {
            set: PODS,
            sreg: KEY,
            target: LookupTarget::Membership,
            invert: false,
        },
        Expr::Counter { packets: 0, bytes: 0 },
        Expr::Reject {
            kind: RejectKind::TcpReset,
            code: 0,
        },
    ]
}
