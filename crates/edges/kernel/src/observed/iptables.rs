//! What do kube-proxy's rules say in iptables mode, where the programs write through nf_tables?
//!
//! kube-proxy writes the chains that find a Service anew with each sync, so these are read whole, once for each
//! ruleset; the chains of a Service are read by name.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_dataplane::ProgramError;
use pointsman_model::{Address, Backend, IpFamily, Port, Protocol};
use pointsman_netlink::netlink::Attributes;
use pointsman_netlink::nft::{CmpOp, Expr, Generation, MetaKey, Name, PayloadBase, Register, Verdict};
use pointsman_netlink_io::{Client, RequestError};
use pointsman_nft::family;
pub(super) use pointsman_observe::iptables::ENDPOINT_PREFIX;
use pointsman_observe::iptables::{DISPATCH, GROUND, MARK_CHAIN, PREFIXES};
use pointsman_observe::{Chain, Content, Key, Map, Place, Statement};

use super::{ATTEMPTS, narrow, open};
use crate::commits::unreadable;

const NAT: Name = Name::fixed("nat");

/// What the chains that all Services share say, by destination.
pub(super) type Dispatch<A> = BTreeMap<(Map, Key<A>), Content<A>>;

/// kube-proxy's chains of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct KubeProxyChains<A> {
    client: Client,
    dispatch: Dispatch<A>,
    /// Which of these chains lead where [`GROUND`] says, by its places.
    leads: BTreeSet<usize>,
    /// When these were read.
    of: Option<Generation>,
    /// Destinations about which they say something else than when somebody last asked for these.
    changed: BTreeSet<Key<A>>,
}

impl<A: Address> KubeProxyChains<A> {
    pub fn open() -> Result<Self, ProgramError> {
        Ok(Self {
            client: open()?,
            dispatch: Dispatch::new(),
            leads: BTreeSet::new(),
            of: None,
            changed: BTreeSet::new(),
        })
    }

    /// The destinations about which something else is said than when this was asked last.
    pub fn changed(&mut self) -> Result<BTreeSet<Key<A>>, ProgramError> {
        self.at_one_moment(|_| Ok(()))?;
        Ok(std::mem::take(&mut self.changed))
    }

    /// What is said at these places, all at one moment.
    pub fn read(&mut self, places: &BTreeSet<Place<A>>) -> Result<Statement<A>, ProgramError> {
        self.at_one_moment(|chains| {
            let mut said = Statement::new();
            for place in places {
                let content = match place {
                    Place::Element(map, key) => chains.dispatch.get(&(*map, *key)).cloned(),
                    Place::Chain(name) => {
                        let chain = chains.chain(name)?;
                        (!chain.is_empty()).then_some(Content::Chain(chain))
                    }
                };
                said.extend(content.map(|content| (place.clone(), content)));
            }
            Ok(said)
        })
    }

    /// What is missing of that without which no Service works.
    pub fn missing(&mut self) -> Result<Option<String>, ProgramError> {
        self.at_one_moment(|chains| {
            for (place, (table, chain, mentioned)) in GROUND.iter().enumerate() {
                // Chains that find a Service are long, and were read already.
                let there = match DISPATCH.contains(&(*table, *chain)) {
                    true => chains.leads.contains(&place),
                    false => {
                        let rules = chains.rules(&Name::fixed(table), &Name::fixed(chain))?;
                        rules
                            .iter()
                            .flatten()
                            .any(|expr| leads_to(expr) == Some(*mentioned))
                    }
                };
                if !there {
                    return Ok(Some(format!(
                        "chain {chain} of table {table} has no rule with {mentioned}"
                    )));
                }
            }
            Ok(None)
        })
    }

    fn at_one_moment<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, RequestError>,
    ) -> Result<T, ProgramError> {
        for _ in 0..ATTEMPTS {
            let before = self.client.generation().map_err(unreadable)?;
            let dispatch = match self.of == Some(before) {
                true => Ok(()),
                false => self.read_dispatch(),
            };
            let found = dispatch.and_then(|()| read(self));
            if self.client.generation().map_err(unreadable)? == before {
                self.of = Some(before);
                return found.map_err(unreadable);
            }
            self.of = None;
        }
        Err(unreadable(RequestError::Disturbed(ATTEMPTS)))
    }

    fn read_dispatch(&mut self) -> Result<(), RequestError> {
        let (mut dispatch, mut leads) = (Dispatch::new(), BTreeSet::new());
        for (table, chain) in DISPATCH {
            let shared = |place: &usize| (GROUND[*place].0, GROUND[*place].1) == (*table, *chain);
            let shared: Vec<usize> = (0..GROUND.len()).filter(shared).collect();
            for exprs in self.rules(&Name::fixed(table), &Name::fixed(chain))? {
                let found = |place: &&usize| exprs.iter().any(|it| leads_to(it) == Some(GROUND[**place].2));
                leads.extend(shared.iter().filter(found));
                let Some((key, content)) = destination(&exprs) else {
                    continue;
                };
                // Of several rules for a destination the first decides.
                dispatch
                    .entry((map_of(table, &key, &content), key))
                    .or_insert(content);
            }
        }
        let differs = |of: &Dispatch<A>, other: &Dispatch<A>| -> Vec<Key<A>> {
            let places = of
                .iter()
                .filter(|(place, content)| other.get(place) != Some(content));
            places.map(|((_, key), _)| *key).collect()
        };
        self.changed.extend(differs(&self.dispatch, &dispatch));
        self.changed.extend(differs(&dispatch, &self.dispatch));
        (self.dispatch, self.leads) = (dispatch, leads);
        Ok(())
    }

    fn rules(&mut self, table: &Name, chain: &Name) -> Result<Vec<Vec<Expr>>, RequestError> {
        let rules = self.client.rules_of_chain(family::<A>(), table, chain)?;
        Ok(rules.into_iter().map(|(rule, _)| rule.exprs).collect())
    }

    /// Where a chain of a Service port sends packets.
    fn chain(&mut self, name: &str) -> Result<Chain<A>, RequestError> {
        let mut chain = Chain::default();
        let Ok(name) = Name::try_new(name) else {
            return Ok(chain);
        };
        for exprs in self.rules(&NAT, &name)? {
            let Some(target) = exprs
                .iter()
                .find_map(leads_to)
                .filter(|target| *target != MARK_CHAIN)
            else {
                continue;
            };
            let endpoint = match (target.starts_with(ENDPOINT_PREFIX), Name::try_new(target)) {
                (true, Ok(name)) => self.rules(&NAT, &name)?.iter().flatten().find_map(translated),
                _ => None,
            };
            match endpoint {
                Some(endpoint) => drop(chain.endpoints.insert(endpoint)),
                None => drop(chain.chains.insert(target.to_owned())),
            }
        }
        Ok(chain)
    }
}

/// In which map of nftables mode a rule of a shared chain would be an element.
pub(super) fn map_of<A>(table: &str, key: &Key<A>, content: &Content<A>) -> Map {
    let away = matches!(content, Content::Drops | Content::Rejects);
    match (table, &key.address) {
        ("filter", _) if !away => Map::FirewallIps,
        ("filter", Some(_)) => Map::NoEndpointServices,
        ("filter", None) => Map::NoEndpointNodePorts,
        (_, Some(_)) => Map::ServiceIps,
        (_, None) => Map::ServiceNodePorts,
    }
}

pub(super) fn is_of_service(chain: &str) -> bool {
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

fn leads_to(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => Some(name.as_str()),
        _ => None,
    }
}

/// For which destination a rule of a shared chain is, and what it says. None for rules of other kinds, such as those for
/// a part of the node's addresses only.
fn destination<A: Address>(exprs: &[Expr]) -> Option<(Key<A>, Content<A>)> {
    /// What a register holds.
    enum Loaded {
        Protocol,
        Address,
        Port,
    }
    let offset = match A::FAMILY {
        IpFamily::V4 => 16,
        IpFamily::V6 => 24,
    };
    let (mut registers, mut content): (BTreeMap<Register, Loaded>, _) = (BTreeMap::new(), None);
    let (mut address, mut protocol, mut port) = (None, None, None);
    for expr in exprs {
        match expr {
            Expr::Meta {
                dreg,
                key: MetaKey::L4Proto,
            } => drop(registers.insert(*dreg, Loaded::Protocol)),
            Expr::Payload {
                dreg,
                base: PayloadBase::Network,
                offset: at,
                len,
            } => {
                // A shorter piece is that of a range.
                (*at == offset && *len == u32::from(A::BITS / 8)).then_some(())?;
                registers.insert(*dreg, Loaded::Address);
            }
            Expr::Payload {
                dreg,
                base: PayloadBase::Transport,
                offset: 2,
                len: 2,
            } => {
                registers.insert(*dreg, Loaded::Port);
            }
            Expr::Cmp {
                sreg,
                op: CmpOp::Eq,
                value,
            } => match (registers.get(sreg)?, value.as_bytes()) {
                (Loaded::Protocol, [number, ..]) => protocol = of_number(*number),
                (Loaded::Address, bytes) => address = Some(narrow(bytes)?),
                (Loaded::Port, [high, low]) => port = Some(u16::from_be_bytes([*high, *low])),
                _ => return None,
            },
            Expr::Payload { .. } | Expr::Bitwise { .. } | Expr::Cmp { .. } => return None,
            Expr::Verdict(Verdict::Drop) => content = Some(Content::Drops),
            Expr::Other { name, attributes } => match Extension::decode(attributes)? {
                Extension {
                    name: "tcp" | "udp",
                    info: [_, _, _, _, low, high, ..],
                } if &**name == "match" => {
                    port = Some(u16::from_ne_bytes([*low, *high]));
                }
                Extension {
                    name: "sctp",
                    info: [low, high, ..],
                } if &**name == "match" => {
                    port = Some(u16::from_ne_bytes([*low, *high]));
                }
                Extension { name: "REJECT", .. } => content = Some(Content::Rejects),
                _ => {}
            },
            other => {
                let chain = leads_to(other).filter(|name| is_of_service(name));
                content = chain.map(|chain| Content::Leads(chain.to_owned())).or(content);
            }
        }
    }
    let key = Key {
        address,
        protocol: protocol?,
        port: port?,
    };
    Some((key, content?))
}

pub(super) fn of_number(number: u8) -> Option<Protocol> {
    Protocol::ALL
        .into_iter()
        .find(|protocol| protocol.number() == number)
}

/// The endpoint that a rule translates to.
fn translated<A: Address>(expr: &Expr) -> Option<Backend<A>> {
    let Expr::Other { attributes, .. } = expr else {
        return None;
    };
    let Extension { name: "DNAT", info } = Extension::decode(attributes)? else {
        return None;
    };
    // Flags, least and greatest address, least port (`nf_nat_range` and its successor).
    let address = info.get(4..4 + usize::from(A::BITS / 8))?;
    let port = info.get(36..38)?;
    Some(Backend {
        address: narrow(address)?,
        port: Port::new(u16::from_be_bytes([port[0], port[1]]))?,
    })
}

/// A match or target of the older interface.
struct Extension<'a> {
    name: &'a str,
    info: &'a [u8],
}

impl<'a> Extension<'a> {
    fn decode(attributes: &'a [u8]) -> Option<Self> {
        let (mut name, mut info) = (None, None);
        for attribute in Attributes::new(attributes).map_while(Result::ok) {
            match attribute.kind {
                1 => name = std::str::from_utf8(attribute.value).ok(),
                3 => info = Some(attribute.value),
                _ => {}
            }
        }
        Some(Self {
            name: name?.trim_end_matches('\0'),
            info: info?,
        })
    }
}
