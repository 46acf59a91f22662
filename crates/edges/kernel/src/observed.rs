//! What do the rules say that kube-proxy writes?
//!
//! Only what is asked for is read, by name, so that a look costs what changed and not what there is. Nothing is
//! written here.

mod iptables;
mod older;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use pointsman_dataplane::ProgramError;
use pointsman_model::{Address, Backend, IpFamily, Port, Protocol, ServiceName};
use pointsman_netlink::nft::{
    Data, Expr, LookupTarget, Name, NatKind, Notice, Register, Touched, Value, Verdict,
};
use pointsman_netlink_io::{Buffers, Client, Notices, RequestError};
use pointsman_nft::family;
use pointsman_observe::nftables::{ENDPOINT_PREFIX, GROUND, MARK_CHAIN, REJECT_CHAIN, TABLE, service_of};
use pointsman_observe::{Chain, Content, Key, Map, Place, Statement};

use crate::commits::{NF_TABLES, unreadable};
use crate::mode::Mode;

pub use iptables::KubeProxyChains;
pub use older::{Polled, PolledChains};

/// How often reading begins again because somebody committed meanwhile.
const ATTEMPTS: u32 = 20;
/// What may wait of commits until they are looked at; beyond it everything is read again.
const WAITING: Buffers = Buffers {
    send: 4 << 10,
    receive: 32 << 20,
};

/// kube-proxy's table of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct KubeProxyTable {
    client: Client,
}

/// What a commit of anybody touched in kube-proxy's table of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<A> {
    /// Chains of a Service.
    Service(ServiceName),
    /// The chain of this name.
    Chain(String),
    /// What is said about a destination.
    Key(Key<A>),
    /// What all Services share.
    Ground,
    /// It may be anything.
    Anything,
}

/// A place cannot be read now.
enum Unreadable {
    Request(RequestError),
    /// It has a form that we do not know.
    Strange,
}

impl From<RequestError> for Unreadable {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl KubeProxyTable {
    pub fn open() -> Result<Self, ProgramError> {
        Ok(Self { client: open()? })
    }

    /// What is said at these places, all at one moment.
    pub fn read<A: Address>(&mut self, places: &BTreeSet<Place<A>>) -> Result<Statement<A>, ProgramError> {
        self.at_one_moment(|table| {
            let mut said = Statement::new();
            for place in places {
                if let Some(content) = table.content(place)? {
                    said.insert(place.clone(), content);
                }
            }
            Ok(said)
        })
    }

    /// What is missing of that without which no Service works.
    pub fn missing<A: Address>(&mut self) -> Result<Option<String>, ProgramError> {
        self.at_one_moment(|table| {
            for (chain, mentioned) in GROUND {
                let mentions = |expr: &Expr| match expr {
                    Expr::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => name.as_str() == *mentioned,
                    Expr::Lookup { set, .. } => set.as_str() == *mentioned,
                    _ => false,
                };
                let rules = table.rules::<A>(&Name::fixed(chain))?;
                if !rules.iter().flatten().any(mentions) {
                    return Ok(Some(format!("chain {chain} has no rule with {mentioned}")));
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
            let found = read(self);
            if self.client.generation().map_err(unreadable)? == before {
                return found.map_err(unreadable);
            }
        }
        Err(unreadable(RequestError::Disturbed(ATTEMPTS)))
    }

    fn content<A: Address>(&mut self, place: &Place<A>) -> Result<Option<Content<A>>, RequestError> {
        match place {
            Place::Element(map, key) => self.element(*map, key),
            Place::Chain(name) => {
                let Ok(name) = Name::try_new(name.as_str()) else {
                    return Ok(None);
                };
                let chain = self.chain(&name)?;
                Ok((!chain.is_empty()).then_some(Content::Chain(chain)))
            }
        }
    }

    fn element<A: Address>(&mut self, map: Map, key: &Key<A>) -> Result<Option<Content<A>>, RequestError> {
        let (set, key) = (Name::fixed(map.as_str()), encode(key));
        let found = self
            .client
            .element(family::<A>(), &Name::fixed(TABLE), &set, &key)?;
        Ok(found.map(|element| match element.data {
            Data::Verdict(Verdict::Drop) => Content::Drops,
            Data::Verdict(Verdict::Goto(chain)) if chain.as_str() == REJECT_CHAIN => Content::Rejects,
            Data::Verdict(Verdict::Goto(chain)) => Content::Leads(chain.as_str().to_owned()),
            other => Content::Leads(format!("{other:?}")),
        }))
    }

    fn rules<A: Address>(&mut self, chain: &Name) -> Result<Vec<Vec<Expr>>, RequestError> {
        let rules = self
            .client
            .rules_of_chain(family::<A>(), &Name::fixed(TABLE), chain)?;
        Ok(rules.into_iter().map(|(rule, _)| rule.exprs).collect())
    }

    /// Where a chain of a Service port sends packets. A rule of a form that we do not know leads somewhere else than
    /// any rule should.
    fn chain<A: Address>(&mut self, name: &Name) -> Result<Chain<A>, RequestError> {
        let mut chain = Chain::default();
        for exprs in self.rules::<A>(name)? {
            // Clients that stay with their endpoint: the map of the same chain names it too.
            let of_clients = |expr: &Expr| {
                matches!(
                    expr,
                    Expr::Lookup {
                        target: LookupTarget::Membership,
                        ..
                    }
                )
            };
            if exprs.iter().any(of_clients) {
                continue;
            }
            match self.rule(&exprs, &mut chain) {
                Ok(()) => {}
                Err(Unreadable::Request(error)) => return Err(error),
                Err(Unreadable::Strange) => drop(chain.chains.insert(format!("a rule {exprs:?}"))),
            }
        }
        Ok(chain)
    }

    fn rule<A: Address>(&mut self, exprs: &[Expr], chain: &mut Chain<A>) -> Result<(), Unreadable> {
        let mut loaded: Vec<(Register, &Value)> = Vec::new();
        let mut mapped = Vec::new();
        for expr in exprs {
            match expr {
                Expr::Load { dreg, value } => loaded.push((*dreg, value)),
                Expr::Lookup { set, target, .. } => {
                    let elements = self.client.elements(family::<A>(), &Name::fixed(TABLE), set)?;
                    for element in elements {
                        match element.data {
                            Data::Verdict(verdict) => self.follow(&verdict, chain)?,
                            Data::Value(value) if *target != LookupTarget::Verdict => mapped.push(value),
                            _ => return Err(Unreadable::Strange),
                        }
                    }
                }
                Expr::Nat {
                    kind: NatKind::Destination,
                    address: Some(address),
                    port: Some(port),
                    ..
                } => {
                    let value = |register: &Register| loaded.iter().rev().find(|(to, _)| to == register);
                    match (value(address), value(port)) {
                        (Some((_, address)), Some((_, port))) => {
                            let backend = backend(address.as_bytes(), port.as_bytes());
                            chain.endpoints.insert(backend.ok_or(Unreadable::Strange)?);
                        }
                        _ => {
                            for value in mapped.drain(..) {
                                let (address, port) = value
                                    .as_bytes()
                                    .split_at_checked(usize::from(A::BITS / 8))
                                    .ok_or(Unreadable::Strange)?;
                                chain
                                    .endpoints
                                    .insert(backend(address, port).ok_or(Unreadable::Strange)?);
                            }
                        }
                    }
                }
                Expr::Verdict(verdict) => self.follow(verdict, chain)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes where a verdict leads; of a chain of one endpoint, its endpoint. Before Kubernetes 1.36 each had one.
    fn follow<A: Address>(&mut self, verdict: &Verdict, chain: &mut Chain<A>) -> Result<(), Unreadable> {
        let (Verdict::Goto(name) | Verdict::Jump(name)) = verdict else {
            return Err(Unreadable::Strange);
        };
        if name.as_str() == MARK_CHAIN {
            return Ok(());
        }
        let endpoint = name.as_str().starts_with(ENDPOINT_PREFIX);
        let mut leads_to = Chain::default();
        if endpoint {
            for exprs in self.rules::<A>(name)? {
                // No chain of an endpoint leads to another, so this ends here.
                if exprs.iter().any(|expr| matches!(expr, Expr::Nat { .. })) {
                    self.rule(&exprs, &mut leads_to)?;
                }
            }
        }
        if leads_to.is_empty() {
            chain.chains.insert(name.as_str().to_owned());
        }
        chain.endpoints.extend(leads_to.endpoints);
        chain.chains.extend(leads_to.chains);
        Ok(())
    }
}

/// Follows the commits of the calling thread's network namespace.
#[derive(Debug)]
pub struct Commits {
    notices: Notices,
}

impl Commits {
    pub fn follow() -> Result<Self, ProgramError> {
        let notices = Notices::open(WAITING).map_err(|error| missing(io::Error::other(error)))?;
        Ok(Self { notices })
    }

    /// Says what commits touched in the tables of the mode and family since this was asked last, without waiting.
    pub fn read<A: Address>(&mut self, mode: Mode, mut each: impl FnMut(Seen<A>)) {
        let outcome = self.notices.read(|notice| {
            let table = notice.table.as_str();
            match mode {
                _ if notice.family != family::<A>() => {}
                Mode::Nftables if table == TABLE => seen(notice, &mut each),
                Mode::Iptables if matches!(table, "nat" | "filter") => each(seen_in_chains(notice)),
                _ => {}
            }
        });
        match outcome {
            Ok(0) => {}
            Ok(_) => each(Seen::Anything),
            Err(error) => {
                tracing::debug!(%error, "commits were missed, all rules are read again");
                each(Seen::Anything);
            }
        }
    }
}

/// Readable once somebody has committed.
impl AsFd for Commits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

fn seen<A: Address>(notice: Notice, each: &mut impl FnMut(Seen<A>)) {
    match notice.touched {
        Touched::Chain(name) => each(service_of(name.as_str()).map_or(Seen::Ground, Seen::Service)),
        Touched::Elements { set, keys } => {
            // Elements of maps without a name come and go with the rules that look into them.
            if Map::ALL.iter().any(|map| map.as_str() == set.as_str()) {
                keys.iter()
                    .filter_map(decode)
                    .for_each(|key| each(Seen::Key(key)));
            }
        }
        Touched::Table => each(Seen::Anything),
        Touched::Set => {}
    }
}

fn seen_in_chains<A: Address>(notice: Notice) -> Seen<A> {
    match notice.touched {
        Touched::Chain(name) => {
            // Those of a Service, or of an endpoint; the others are shared.
            let own = name.as_str().starts_with(iptables::ENDPOINT_PREFIX)
                || iptables::is_of_service(name.as_str());
            if own {
                Seen::Chain(name.as_str().to_owned())
            } else {
                Seen::Ground
            }
        }
        _ => Seen::Anything,
    }
}

fn backend<A: Address>(address: &[u8], port: &[u8]) -> Option<Backend<A>> {
    let port = Port::new(u16::from_be_bytes([*port.first()?, *port.get(1)?]))?;
    Some(Backend {
        address: narrow(address)?,
        port,
    })
}

fn narrow<A: Address>(bytes: &[u8]) -> Option<A> {
    A::narrow(match A::FAMILY {
        IpFamily::V4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        IpFamily::V6 => <[u8; 16]>::try_from(bytes).ok()?.into(),
    })
}

/// A key as the maps have it: address, protocol and port, each in whole registers.
fn encode<A: Address>(key: &Key<A>) -> Value {
    let mut value = Value::EMPTY;
    let mut push = |field: &[u8]| value.push_field(field).expect("24 bytes fit into a value");
    if let Some(address) = key.address {
        push(address.octets().as_ref());
    }
    push(&[key.protocol.number()]);
    push(&key.port.to_be_bytes());
    value
}

fn decode<A: Address>(value: &Value) -> Option<Key<A>> {
    let bytes = value.as_bytes();
    let (address, rest) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let number = *rest.first()?;
    Some(Key {
        address: match address.is_empty() {
            true => None,
            false => Some(narrow(address)?),
        },
        protocol: Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.number() == number)?,
        port: u16::from_be_bytes([*rest.get(4)?, *rest.get(5)?]),
    })
}

fn open() -> Result<Client, ProgramError> {
    Client::open(Buffers::default()).map_err(|error| missing(io::Error::other(error)))
}

fn missing(source: io::Error) -> ProgramError {
    ProgramError::Missing {
        program: NF_TABLES.to_owned(),
        source,
    }
}
