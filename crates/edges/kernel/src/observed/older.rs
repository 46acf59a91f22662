//! What do kube-proxy's rules say in iptables mode, where the programs write through the older interface?
//!
//! Nobody is told of what is written there, and tables are read whole. So everything is read now and then, at one moment
//! for each table, and questions are answered from the last reading.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use pointsman_dataplane::ProgramError;
use pointsman_model::{Address, Backend, IpFamily, Port};
use pointsman_netlink::xtables::{Destination, Entries, Entry, Extension, HOOKS, Info, Target};
use pointsman_netlink_io::Tables;
use pointsman_observe::iptables::{DISPATCH, ENDPOINT_PREFIX, GROUND, MARK_CHAIN};
use pointsman_observe::{Chain, Content, Key, Place, Statement};

use super::iptables::{Dispatch, is_of_service, map_of, of_number};
use super::narrow;
use crate::variant::Variant;

/// The tables that kube-proxy writes what we look at to.
const TABLES: [&str; 2] = ["nat", "filter"];

/// kube-proxy's chains of one family as they were read last, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct PolledChains<A> {
    tables: Tables,
    said: Said<A>,
}

/// What all chains say.
#[derive(Debug, PartialEq, Eq)]
struct Said<A> {
    dispatch: Dispatch<A>,
    chains: HashMap<String, Chain<A>>,
    /// What of that is missing without which no Service works; the chains of the kernel count too.
    missing: Option<String>,
}

impl<A> Default for Said<A> {
    fn default() -> Self {
        Self {
            dispatch: Dispatch::new(),
            chains: HashMap::new(),
            missing: None,
        }
    }
}

/// What a reading found.
#[derive(Debug)]
pub struct Polled<A> {
    /// What is missing of that without which no Service works.
    pub missing: Option<String>,
    /// Destinations and chains that say something else than before.
    pub keys: BTreeSet<Key<A>>,
    pub chains: BTreeSet<String>,
}

impl<A: Address> PolledChains<A> {
    pub fn open() -> Result<Self, ProgramError> {
        let tables = Tables::open(A::FAMILY == IpFamily::V4).map_err(unreadable)?;
        Ok(Self {
            tables,
            said: Said::default(),
        })
    }

    /// Reads everything; nothing if kube-proxy has no rules there.
    pub fn poll(&mut self) -> Result<Option<Polled<A>>, ProgramError> {
        let there = Variant::older_tables(A::FAMILY);
        let mut said = Said::default();
        let mut leads = BTreeSet::new();
        for table in TABLES {
            if !there.iter().any(|name| name == table) {
                continue;
            }
            let read = self.tables.read(table).map_err(unreadable)?;
            said.read(table, &read.info, read.entries(), &mut leads)
                .map_err(unreadable)?;
        }
        if !leads.contains("KUBE-SERVICES") {
            self.said = Said::default();
            return Ok(None);
        }
        said.missing = GROUND.iter().find_map(|(table, chain, mentioned)| {
            let found = leads.contains(&format!("{table} {chain} {mentioned}"));
            (!found).then(|| format!("chain {chain} of table {table} has no rule with {mentioned}"))
        });
        let before = std::mem::replace(&mut self.said, said);
        Ok(Some(self.said.since(&before)))
    }

    /// What was said at these places when all was read.
    pub fn read(&self, places: &BTreeSet<Place<A>>) -> Statement<A> {
        let content = |place: &Place<A>| match place {
            Place::Element(map, key) => self.said.dispatch.get(&(*map, *key)).cloned(),
            Place::Chain(name) => {
                let chain = self.said.chains.get(name)?;
                (!chain.is_empty()).then(|| Content::Chain(chain.clone()))
            }
        };
        let said = places.iter().map(|place| (place, content(place)));
        said.filter_map(|(place, content)| Some((place.clone(), content?)))
            .collect()
    }
}

impl<A: Address> Said<A> {
    fn since(&self, before: &Self) -> Polled<A> {
        let (mut keys, mut chains) = (BTreeSet::new(), BTreeSet::new());
        for (of, other) in [(self, before), (before, self)] {
            let dispatch = of.dispatch.iter();
            let differing = dispatch.filter(|(place, content)| other.dispatch.get(place) != Some(content));
            keys.extend(differing.map(|((_, key), _)| *key));
            let differing = of
                .chains
                .iter()
                .filter(|(name, chain)| other.chains.get(*name) != Some(chain));
            chains.extend(differing.map(|(name, _)| name.clone()));
        }
        Polled {
            missing: self.missing.clone(),
            keys,
            chains,
        }
    }

    /// Takes in a table; `leads` gets the names of its chains that all Services share, and what leads where there.
    fn read(
        &mut self,
        table: &str,
        info: &Info,
        entries: &[u8],
        leads: &mut BTreeSet<String>,
    ) -> io::Result<()> {
        let entries =
            || Entries::new(A::FAMILY == IpFamily::V4, entries).map(|it| it.map_err(io::Error::other));
        // Chains by the offset that jumps name, and the kernel's own.
        let mut begins: BTreeMap<usize, &str> = BTreeMap::new();
        let mut endpoints: HashMap<&str, Backend<A>> = HashMap::new();
        for entry in entries() {
            let entry = entry?;
            if let Target::Begins(name) = entry.target() {
                begins.insert(entry.ends, name);
            }
        }
        for (hook, at) in HOOKS.iter().zip(info.hooks) {
            begins.extend(at.map(|at| (at as usize, *hook)));
        }
        for entry in entries() {
            let entry = entry?;
            let Some((_, chain)) = begins.range(..=entry.offset).next_back() else {
                continue;
            };
            if chain.starts_with(ENDPOINT_PREFIX)
                && let Target::Other(target) = entry.target()
                && let Some(endpoint) = translated(&target)
            {
                endpoints.insert(chain, endpoint);
            }
        }
        for entry in entries() {
            let entry = entry?;
            let Some((_, chain)) = begins.range(..=entry.offset).next_back() else {
                continue;
            };
            let to = match entry.target() {
                Target::Jump(at) => begins.get(&at).copied(),
                _ => None,
            };
            if table == "nat" && is_of_service(chain) {
                let said = self.chains.entry((*chain).to_owned()).or_default();
                match to.map(|to| (to, endpoints.get(to))) {
                    Some((_, Some(endpoint))) => drop(said.endpoints.insert(*endpoint)),
                    Some((to, None)) if to != MARK_CHAIN => drop(said.chains.insert(to.to_owned())),
                    _ => {}
                }
                continue;
            }
            if table == "nat" && *chain == "KUBE-SERVICES" {
                leads.insert((*chain).to_owned());
            }
            if DISPATCH.contains(&(table, chain))
                && let Some((key, content)) = destination(&entry, to)
            {
                let place = (map_of(table, &key, &content), key);
                // Of several rules for a destination the first decides.
                self.dispatch.entry(place).or_insert(content);
            }
            if let Some(to) = to.filter(|to| GROUND.contains(&(table, chain, *to))) {
                leads.insert(format!("{table} {chain} {to}"));
            }
        }
        Ok(())
    }
}

/// For which destination a rule of a shared chain is, and what it says. None for rules of other kinds.
fn destination<A: Address>(entry: &Entry<'_>, to: Option<&str>) -> Option<(Key<A>, Content<A>)> {
    let address = match entry.destination() {
        Destination::Any => None,
        Destination::Host(address) => Some(narrow(address)?),
        Destination::Range => return None,
    };
    if entry.is_narrowed() {
        return None;
    }
    let port = entry.matches().find_map(|found| match (found.name, found.info) {
        ("tcp" | "udp", [_, _, _, _, low, high, ..]) | ("sctp", [low, high, ..]) => {
            Some(u16::from_ne_bytes([*low, *high]))
        }
        _ => None,
    });
    let content = match entry.target() {
        Target::Drop => Content::Drops,
        Target::Other(Extension { name: "REJECT", .. }) => Content::Rejects,
        _ => Content::Leads(to.filter(|to| is_of_service(to))?.to_owned()),
    };
    let key = Key {
        address,
        protocol: of_number(entry.protocol())?,
        port: port?,
    };
    Some((key, content))
}

/// The endpoint that a rule translates to.
fn translated<A: Address>(target: &Extension<'_>) -> Option<Backend<A>> {
    let (address, port) = match (target.name, target.revision, A::FAMILY) {
        // How many ranges, flags, least and greatest address, least port (`nf_nat_ipv4_multi_range_compat`).
        ("DNAT", 0, IpFamily::V4) => (8, 16),
        // Flags, least and greatest address, least port (`nf_nat_range` and its successor).
        ("DNAT", _, _) => (4, 36),
        _ => return None,
    };
    let address = target.info.get(address..address + usize::from(A::BITS / 8))?;
    let port = target.info.get(port..port + 2)?;
    Some(Backend {
        address: narrow(address)?,
        port: Port::new(u16::from_be_bytes([port[0], port[1]]))?,
    })
}

fn unreadable(source: io::Error) -> ProgramError {
    ProgramError::Missing {
        program: "the older interface of iptables".to_owned(),
        source,
    }
}
