//! Which packets must meet which fate, whatever the backend?
//!
//! Every case is a cluster and the packets sent to it, in the words of [`cluster`](crate::cluster).
//! A flow is written `packet => fate`; where upstream's two modes differ, the line goes on with
//! `| nftables: fate`.

use pointsman_dataplane::{Fate, Host, Index, Packet, Settings};

use crate::cluster::{Cluster, Family, parse_fate, parse_packet};

mod table;

pub use table::CASES;

/// Which backend runs the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Iptables,
    Nftables,
}

/// The families a case can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseFamily {
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
}

/// One cluster and what happens to packets there.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// A sentence about behaviour.
    pub name: &'a str,
    /// The family of all addresses.
    pub family: CaseFamily,
    pub cluster: &'a str,
    /// The flows, one on each line.
    pub flows: &'a str,
}

impl Case<'_> {
    /// Splits a line into the packet and its fate in this mode.
    pub fn flow(line: &str, mode: Mode) -> (&str, &str) {
        let (packet, fates) = line
            .split_once("=>")
            .unwrap_or_else(|| panic!("no fate in {line:?}"));
        match (mode, fates.split_once("| nftables:")) {
            (Mode::Nftables, Some((_, fate))) | (Mode::Iptables, Some((fate, _))) => (packet, fate),
            (_, None) => (packet, fates),
        }
    }
}

/// Sends one packet through a backend's rules for a batch of everything in the index.
pub trait Walk<A: Family> {
    /// The packet's fate under the rules for this cluster.
    fn walk(&self, packet: &Packet<A>) -> Fate<A>;
}

/// Runs all cases of one family. `program` builds the backend's rules for a cluster.
///
/// Panics with every flow that went wrong.
pub fn check_all<A: Family, W: Walk<A>>(
    mode: Mode,
    family: CaseFamily,
    program: impl Fn(Index<A>, Settings<A>, Host<A>) -> W,
) {
    let mut failures = Vec::new();
    for case in CASES.iter().filter(|case| case.family == family) {
        failures.extend(check(case, mode, &program));
    }
    assert!(
        failures.is_empty(),
        "{} flows went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Runs one case and describes the flows that went wrong.
pub fn check<A: Family, W: Walk<A>>(
    case: &Case<'_>,
    mode: Mode,
    program: impl Fn(Index<A>, Settings<A>, Host<A>) -> W,
) -> Vec<String> {
    let cluster = Cluster::parse(case.cluster);
    let walk = program(cluster.index(), cluster.settings(), cluster.host());
    let lines = case.flows.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .filter_map(|line| {
            let (packet, expected) = Case::flow(line, mode);
            let (packet, expected) = (parse_packet::<A>(packet), parse_fate::<A>(expected));
            let fate = walk.walk(&packet);
            (fate != expected).then(|| format!("  {}: {packet}: expected {expected}, was {fate}", case.name))
        })
        .collect()
}
