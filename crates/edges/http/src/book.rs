//! Which connections may be open at once?
//!
//! Whoever has asked for nothing yet costs a slot without being of use, and cannot be told from somebody whose
//! first bytes are on their way. So newcomers are let in, and the oldest of those that say nothing make room: first
//! of the same source, then of the source that has most of them. Nobody who has asked is ever closed to make room.
//!
//! Invariants: a source without a certificate never has more than its share, clients without a certificate never
//! have the slots that are kept for those with one, and the counts agree with the connections.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// How many connections a listener has at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub total: usize,
    /// Of these, kept for clients that showed a certificate which the listener believes.
    pub kept: usize,
    /// From one source, by clients without a certificate. Those with one may have half of the total.
    pub source: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            total: 4096,
            kept: 0,
            source: 1024,
        }
    }
}

impl Limits {
    /// The same for a process of so many descriptors, of which it needs some for itself.
    pub(crate) fn within(self, descriptors: usize) -> Self {
        let total = self.total.min(descriptors / 4 * 3).max(1);
        let kept = self.kept.min(total / 2);
        Self { total, kept, ..self }
    }

    /// Connections at once that have asked for nothing yet.
    fn silent(self) -> usize {
        (self.total / 4).max(1)
    }

    /// The same from one source.
    fn silent_from_one(self) -> usize {
        self.source.div_ceil(4).min(self.silent())
    }
}

/// Where a connection comes from: an IPv4 address, or the first half of an IPv6 address, as the second half is
/// the client's to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        })
    }
}

/// What a connection has shown of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Nothing: it has not asked, and showed no certificate.
    Silent,
    /// It asked, without a certificate.
    Anonymous,
    Certified,
}

/// The number of a connection; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(u64);

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its source has too many.
    Source,
    /// There are too many.
    Total,
}

/// The connections of a listener. `H` closes one when it is dropped.
#[derive(Debug)]
pub(crate) struct Book<H> {
    limits: Limits,
    next: u64,
    sources: HashMap<Source, Held<H>>,
    all: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub silent: usize,
    pub anonymous: usize,
    pub certified: usize,
}

#[derive(Debug)]
struct Held<H> {
    silent: BTreeMap<Id, H>,
    anonymous: usize,
    certified: usize,
}

impl<H> Book<H> {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            sources: HashMap::new(),
            all: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.all
    }

    /// Lets a connection in, and says which one has to go for it.
    pub fn enter(&mut self, source: Source, handle: H) -> Result<(Id, Option<H>), Refused> {
        let of_source = self.sources.get(&source).map_or(0, |held| held.silent.len());
        let open = self.all.silent + self.all.anonymous + self.all.certified;
        let leaves = if of_source >= self.limits.silent_from_one() {
            self.pop_oldest(source)
        } else if open >= self.limits.total || self.all.silent >= self.limits.silent() {
            let heaviest = self.sources.iter().max_by_key(|(_, held)| held.silent.len());
            let heaviest = heaviest.map(|(source, _)| *source).ok_or(Refused::Total)?;
            Some(self.pop_oldest(heaviest).ok_or(Refused::Total)?)
        } else {
            None
        };
        let id = Id(self.next);
        self.next += 1;
        let held = self.sources.entry(source).or_insert_with(|| Held {
            silent: BTreeMap::new(),
            anonymous: 0,
            certified: 0,
        });
        held.silent.insert(id, handle);
        self.all.silent += 1;
        Ok((id, leaves))
    }

    /// A silent connection has shown more. One that had to go in the meantime is refused.
    pub fn promote(&mut self, source: Source, id: Id, standing: Standing) -> Result<H, Refused> {
        let limits = self.limits;
        let held = self.sources.get_mut(&source).ok_or(Refused::Source)?;
        match standing {
            Standing::Certified if held.certified >= limits.total.div_ceil(2) => return Err(Refused::Source),
            Standing::Anonymous if held.anonymous >= limits.source => return Err(Refused::Source),
            Standing::Anonymous if self.all.anonymous >= limits.total - limits.kept => {
                return Err(Refused::Total);
            }
            _ => {}
        }
        let handle = held.silent.remove(&id).ok_or(Refused::Source)?;
        self.all.silent -= 1;
        let (of_source, of_all) = match standing {
            Standing::Certified => (&mut held.certified, &mut self.all.certified),
            Standing::Silent | Standing::Anonymous => (&mut held.anonymous, &mut self.all.anonymous),
        };
        *of_source += 1;
        *of_all += 1;
        Ok(handle)
    }

    /// A connection has ended.
    pub fn leave(&mut self, source: Source, id: Id, standing: Standing) {
        let Some(held) = self.sources.get_mut(&source) else {
            return;
        };
        match standing {
            // Those that had to go were taken out already.
            Standing::Silent => self.all.silent -= usize::from(held.silent.remove(&id).is_some()),
            Standing::Anonymous => {
                held.anonymous -= 1;
                self.all.anonymous -= 1;
            }
            Standing::Certified => {
                held.certified -= 1;
                self.all.certified -= 1;
            }
        }
        if held.silent.is_empty() && held.anonymous == 0 && held.certified == 0 {
            self.sources.remove(&source);
        }
    }

    fn pop_oldest(&mut self, source: Source) -> Option<H> {
        let (_, handle) = self.sources.get_mut(&source)?.silent.pop_first()?;
        self.all.silent -= 1;
        Some(handle)
    }
}

#[cfg(test)]
mod tests;
