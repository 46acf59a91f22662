//! How do connections end that lead to nodes which are gone?
//!
//! A small table of its own, in both modes of the proxy: packets of TCP to the pods of such nodes are answered with a reset.
//! The rule is constant; which ranges it is about is a set. The table is there only while there are such nodes.

use pointsman_model::{Address, Cidr, IpFamily};
use pointsman_netlink::nft::{
    BaseChain, Chain, ChainKind, CmpOp, Expr, Field, Hook, LookupTarget, MetaKey, Name, Op, PayloadBase,
    Policy, Register, RejectKind, Rule, Set, Table, Transaction, Value,
};

use crate::intervals::interval_elements;
use crate::ruleset::family;

/// The table's name, in the families `ip` and `ip6`.
pub const RESETS: Name = Name::fixed("pointsman-resets");
const RANGES: Name = Name::fixed("gone");
const KEY: Register = Register::fixed(0);
const TCP: u8 = 6;

/// What makes the table answer for these ranges, and for no others, whatever it was before.
pub fn reset_connections<A: Address>(ranges: &[Cidr<A>]) -> Transaction {
    let mut transaction = Transaction::new(family::<A>(), RESETS);
    let table = || Op::AddTable(Table::new(family::<A>(), RESETS));
    // Adding what is there does nothing, so this also deletes a table that is not.
    transaction.ops.extend([table(), Op::DeleteTable]);
    if ranges.is_empty() {
        return transaction;
    }
    let address = match A::FAMILY {
        IpFamily::V4 => Field::IpDaddr,
        IpFamily::V6 => Field::Ip6Daddr,
    };
    transaction.ops.extend([
        table(),
        Op::AddSet(Set::interval(RANGES, &[address], "pods of nodes that are gone")),
        Op::AddElements {
            set: RANGES,
            elements: interval_elements(ranges),
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
            set: RANGES,
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
