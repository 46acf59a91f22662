//! Which rules of another service proxy stand in this kernel?
//!
//! Asked every few seconds, on no thread that writes: names of tables, and the handles of the rules of one chain,
//! which are new whenever it is rewritten. Only names that the running mode does not write itself are looked for, so
//! that nothing of ours can be taken for another's.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::ProgramError;
use pointsman_dataplane::second_writer::Traces;
use pointsman_fabric::Network;
use pointsman_netlink::nft::{Family, Name};
use pointsman_netlink_io::{Buffers, Client};

use crate::commits::unreadable;
use crate::iptables::{Iptables, Variant};
use crate::ipvs;
use crate::mode::Mode;
use crate::nftables_backend::PREDECESSOR;

/// The chain of kube-proxy's table that leads to Services.
const SERVICES: Name = Name::fixed("services");
const NAT: Name = Name::fixed("nat");
/// The chain that both proxies write in iptables mode, and the kubelet does not.
const KUBE_SERVICES: Name = Name::fixed("KUBE-SERVICES");
/// How often programs are run, which the older interface needs: every so many looks.
const PROGRAMS_EVERY: u32 = 12;

/// Looks for rules of others in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Lookout {
    client: Client,
    own: Option<Variant>,
    looks: u32,
    /// What the last look by a program found.
    legacy: Option<u64>,
}

impl Lookout {
    /// A lookout beside a proxy that writes in this mode.
    pub fn open(mode: Mode) -> Result<Self, ProgramError> {
        let client = Client::open(Buffers::default()).map_err(|error| unreadable(error.into()))?;
        let own = match mode {
            Mode::Iptables => Some(Variant::detect()?),
            Mode::Nftables => None,
        };
        Ok(Self {
            client,
            own,
            looks: 0,
            legacy: None,
        })
    }

    /// What stands now.
    pub fn look(&mut self) -> Result<Traces, ProgramError> {
        let (mut nft, mut table) = (Trace::default(), Trace::default());
        for family in [Family::Ip, Family::Ip6] {
            if self.own != Some(Variant::Nft) {
                self.note(family, &NAT, &KUBE_SERVICES, &mut nft)?;
            }
            let tables = self.client.tables(family).map_err(unreadable)?;
            if tables.iter().any(|table| table.name == PREDECESSOR) {
                table.add(family.number());
                self.note(family, &PREDECESSOR, &SERVICES, &mut table)?;
            }
        }
        if self.looks.is_multiple_of(PROGRAMS_EVERY) {
            self.legacy = self.look_by_program();
        }
        self.looks = self.looks.wrapping_add(1);
        if let Some(found) = self.legacy {
            nft.add(found);
        }
        Ok([nft.0, table.0, ipvs_link()])
    }

    /// Adds the rules of a chain to a trace.
    fn note(
        &mut self,
        family: Family,
        table: &Name,
        chain: &Name,
        trace: &mut Trace,
    ) -> Result<(), ProgramError> {
        let rules = self.client.rules_of_chain(family, table, chain);
        for (_, handle) in rules.map_err(unreadable)? {
            trace.add((family.number(), handle));
        }
        Ok(())
    }

    /// The chains of the older interface, whose rules have no handles: what they say has to do. Nothing is run where
    /// the kernel holds no such table.
    fn look_by_program(&self) -> Option<u64> {
        if self.own.is_some_and(|own| own != Variant::Nft) {
            return None;
        }
        let mut trace = Trace::default();
        let name = KUBE_SERVICES;
        let chain = name.as_str();
        if is_loaded("ip_tables_names") {
            let rules = Iptables::<Ipv4Addr>::new(Variant::Legacy).chain("nat", chain);
            rules.ok()?.into_iter().for_each(|rules| trace.add(rules));
        }
        if is_loaded("ip6_tables_names") {
            let rules = Iptables::<Ipv6Addr>::new(Variant::Legacy).chain("nat", chain);
            rules.ok()?.into_iter().for_each(|rules| trace.add(rules));
        }
        trace.0
    }
}

fn is_loaded(names: &str) -> bool {
    let tables = std::fs::read_to_string(format!("/proc/thread-self/net/{names}"));
    tables.is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
}

/// The number of the link that IPVS mode keeps; a new one has another.
fn ipvs_link() -> Option<u64> {
    let link = Network::here().and_then(|mut network| network.find(ipvs::LINK));
    Some(u64::from(link.ok()??.index))
}

/// Condenses what was seen; `None` as long as it was nothing.
#[derive(Debug, Default)]
struct Trace(Option<u64>);

impl Trace {
    fn add(&mut self, seen: impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.0, seen).hash(&mut hasher);
        self.0 = Some(hasher.finish());
    }
}
