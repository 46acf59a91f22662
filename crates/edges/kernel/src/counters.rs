//! How many packets did the rules of iptables mode drop or accept?
//!
//! Rules name counters of the kernel's (nfacct) where it has them, as kube-proxy's do. Elsewhere the rules' own counters
//! say it, if the programs write through nf_tables; those begin anew when a chain is rewritten. Both are read when
//! somebody asks, by netlink, and no program is run.

use pointsman_iptables::name::{ChainName, Top};
use pointsman_iptables::rule::PacketCounter;
use pointsman_netlink::nft::{Expr, Family, Name, Rule, Verdict};
use pointsman_netlink_io::{Accounting, Buffers, Client};

/// Makes the counters that rules may name; false if the kernel has none, or no match for them.
pub fn make_named() -> bool {
    let Ok(mut accounting) = Accounting::open() else {
        return false;
    };
    let made = |counter: &PacketCounter| {
        let ensured = accounting.ensure(counter.as_str());
        ensured
            .inspect_err(
                |error| tracing::debug!(%error, counter = counter.as_str(), "no counter by this name"),
            )
            .is_ok()
    };
    // A rule that names a counter in a kernel without the match would be refused, and all others with it.
    let usable = Accounting::open().is_ok_and(|mut kernel| kernel.rules_may_count());
    usable && PacketCounter::ALL.iter().all(made)
}

/// What was counted; `None` if the kernel does not say.
pub fn read(counter: PacketCounter) -> Option<u64> {
    let named = Accounting::open().map(|mut kernel| kernel.read(counter.as_str()).ok().flatten());
    named.ok().flatten().or_else(|| of_rules(counter))
}

/// What the rules themselves counted.
fn of_rules(counter: PacketCounter) -> Option<u64> {
    let mut client = Client::open(Buffers::default()).ok()?;
    let (table, chain, families): (_, _, &[Family]) = match counter {
        PacketCounter::InvalidDropped => ("filter", Top::Forward, &[Family::Ip, Family::Ip6]),
        PacketCounter::LocalhostAccepted => ("nat", Top::Postrouting, &[Family::Ip]),
    };
    let (table, chain) = (
        Name::try_new(table).ok()?,
        Name::try_new(ChainName::Top(chain).to_string()).ok()?,
    );
    let mut counted = None;
    for family in families {
        let rules = client.rules_of_chain(*family, &table, &chain).ok()?;
        for packets in rules.iter().filter_map(|(rule, _)| packets(rule, counter)) {
            *counted.get_or_insert(0) += packets;
        }
    }
    counted
}

/// What a rule counted, if it is the one that stands for the counter: no other rule of the two chains drops, and none
/// has no target.
fn packets(rule: &Rule, counter: PacketCounter) -> Option<u64> {
    let its = match counter {
        PacketCounter::InvalidDropped => rule.exprs.contains(&Expr::Verdict(Verdict::Drop)),
        PacketCounter::LocalhostAccepted => matches!(rule.exprs.last(), Some(Expr::Counter { .. })),
    };
    let number = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Counter { packets, .. } => Some(*packets),
        _ => None,
    });
    number.filter(|_| its)
}
