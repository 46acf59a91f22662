//! How does a transaction get into the kernel, and the kernel's state out of it?

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use pointsman_netlink::netlink::{
    Errno, ErrorReply, Header, Malformed, Message, Messages, Writer, flags, kind,
};
use pointsman_netlink::nft::wire::{self, msg};
use pointsman_netlink::nft::{
    Batch, BatchError, Chain, Element, ElementList, Family, Fault, Generation, Name, Rule, Set, Table,
    Transaction, Value,
};

use crate::socket::{Buffers, Listing, Received, RequestError, Socket, SocketError};

/// How often a dump that a commit disturbed is begun again.
const DUMP_ATTEMPTS: u32 = 10;
/// Keys of one request: the list that holds them must stay below 64 KiB, whatever their length.
const KEYS_AT_ONCE: usize = 500;

/// A transaction is not in the kernel, or we cannot know.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// It cannot be written as messages; nothing was sent.
    #[error("the transaction cannot be encoded")]
    Encode(#[from] BatchError),
    /// Someone changed the ruleset since the generation the transaction was made for; nothing was done.
    #[error("the ruleset was changed by someone else in the meantime")]
    GenerationChanged,
    /// The kernel lacked memory or was busy; nothing was done, and the same transaction may succeed later.
    #[error("the kernel could not take the transaction now: {0}")]
    TryAgain(Fault),
    /// The kernel refused a change; nothing was done.
    #[error("the kernel refused {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Refused(
        /// Everything it complained about, first things first.
        Vec<Fault>,
    ),
    /// The batch does not fit into the socket; nothing was done.
    #[error("a batch of {bytes} bytes does not fit into the socket's send buffer")]
    TooLarge { bytes: usize },
    /// No verdict came; it may or may not be in the kernel.
    #[error("no verdict on the transaction")]
    Unknown(#[source] SocketError),
    /// The acknowledgement is missing although nothing went wrong.
    #[error("the kernel did not acknowledge the transaction")]
    Unacknowledged,
}

/// A connection to nf_tables of the network namespace it was opened in.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
}

impl Client {
    /// Connects from the calling thread's network namespace.
    pub fn open(buffers: Buffers) -> Result<Self, SocketError> {
        Ok(Self {
            socket: Socket::netfilter(buffers)?,
        })
    }

    /// Commits the transactions as one. With `only_at`, only if the ruleset is still at that generation.
    pub fn commit(
        &mut self,
        transactions: &[Transaction],
        only_at: Option<Generation>,
    ) -> Result<(), CommitError> {
        let batch = Batch::encode(transactions, only_at, self.next_sequence())?;
        self.commit_batch(&batch)
    }

    /// The sequence number the next batch must begin with.
    pub fn next_sequence(&self) -> u32 {
        self.socket.next_sequence()
    }

    /// Commits a batch encoded elsewhere, which must begin with [`Client::next_sequence`].
    pub fn commit_batch(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.socket.skip_sequences(batch.sequence_count());
        if batch.is_empty() {
            return Ok(());
        }
        self.socket.drain();
        self.socket.send(batch.bytes()).map_err(|error| match error {
            SocketError::Send { bytes, source } if source.raw_os_error() == Some(Errno::MSGSIZE.0) => {
                CommitError::TooLarge { bytes }
            }
            // Neither of these has passed anything on.
            SocketError::Send { source, .. }
                if matches!(source.raw_os_error(), Some(code) if Errno(code) == Errno::NOBUFS || Errno(code) == Errno::NOMEM) =>
            {
                CommitError::TryAgain(Fault {
                    errno: Errno(source.raw_os_error().unwrap_or_default()),
                    message: None,
                    op: None,
                    element: None,
                    attribute: None,
                })
            }
            error => CommitError::Unknown(error),
        })?;
        self.read_verdict(batch)
    }

    fn read_verdict(&mut self, batch: &Batch) -> Result<(), CommitError> {
        let mut faults = Vec::new();
        let mut acknowledged = false;
        while let Received::Datagram(datagram) = self.socket.receive().map_err(CommitError::Unknown)? {
            for message in Messages::new(datagram).map_while(Result::ok) {
                if message.kind != kind::ERROR || !batch.owns(message.sequence) {
                    continue;
                }
                if let Ok(reply) = ErrorReply::decode(&message) {
                    acknowledged |= reply.error.is_none() && batch.is_final(reply.sequence);
                    faults.extend(batch.fault(&reply));
                }
            }
        }
        classify(faults, acknowledged)
    }

    /// The ruleset's current generation.
    pub fn generation(&mut self) -> Result<Generation, RequestError> {
        let mut generation = None;
        self.request(Family::Inet, msg::GET_GENERATION, 0, |_| {}, &mut |message| {
            for attribute in message.attributes()? {
                let attribute = attribute?;
                if attribute.kind == wire::GEN_ID {
                    generation = Some(Generation(attribute.u32_be()?));
                }
            }
            Ok(())
        })?;
        generation.ok_or(RequestError::Unfinished)
    }

    /// The tables of a family.
    pub fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError> {
        self.dump(family, msg::GET_TABLE, &|_| {}, |message| {
            Table::decode(message).map(Option::into_iter)
        })
    }

    /// The chains of a table.
    pub fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError> {
        let of_table = |w: &mut Writer| w.text(wire::chain::TABLE, table.as_str());
        self.dump(family, msg::GET_CHAIN, &of_table, |message| {
            let (owner, chain) = Chain::decode(message)?;
            Ok((owner == *table).then_some(chain).into_iter())
        })
    }

    /// The rules of a table with their handles, in the order of their chains.
    pub fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<(Rule, u64)>, RequestError> {
        let of_table = |w: &mut Writer| w.text(wire::rule::TABLE, table.as_str());
        self.dump(family, msg::GET_RULE, &of_table, |message| {
            let (owner, rule, handle) = Rule::decode(message)?;
            let handle = handle.ok_or(Malformed("a listed rule without a handle"))?;
            Ok((owner == *table).then_some((rule, handle)).into_iter())
        })
    }

    /// The rules of one chain with their handles; none if there is no such chain.
    pub fn rules_of_chain(
        &mut self,
        family: Family,
        table: &Name,
        chain: &Name,
    ) -> Result<Vec<(Rule, u64)>, RequestError> {
        let of_chain = |w: &mut Writer| {
            w.text(wire::rule::TABLE, table.as_str());
            w.text(wire::rule::CHAIN, chain.as_str());
        };
        let listed = self.dump(family, msg::GET_RULE, &of_chain, |message| {
            let (owner, rule, handle) = Rule::decode(message)?;
            let handle = handle.ok_or(Malformed("a listed rule without a handle"))?;
            let asked = owner == *table && rule.chain == *chain;
            Ok(asked.then_some((rule, handle)).into_iter())
        });
        match listed {
            Err(RequestError::NotFound) => Ok(Vec::new()),
            other => other,
        }
    }

    /// The sets of a table.
    pub fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError> {
        let of_table = |w: &mut Writer| w.text(wire::set::TABLE, table.as_str());
        self.dump(family, msg::GET_SET, &of_table, |message| {
            let (owner, set) = Set::decode(message)?;
            Ok((owner == *table).then_some(set).into_iter())
        })
    }

    /// The elements of a set.
    pub fn elements(
        &mut self,
        family: Family,
        table: &Name,
        set: &Name,
    ) -> Result<Vec<Element>, RequestError> {
        self.collect_elements((family, table, set), Vec::new, Vec::push)
    }

    /// The element of a set with this key, if there is one.
    pub fn element(
        &mut self,
        family: Family,
        table: &Name,
        set: &Name,
        key: &Value,
    ) -> Result<Option<Element>, RequestError> {
        let body = |w: &mut Writer| {
            w.text(wire::element::LIST_TABLE, table.as_str());
            w.text(wire::element::LIST_SET, set.as_str());
            w.nest(wire::element::LIST_ELEMENTS, |list| {
                Element::new(*key).encode(list)
            });
        };
        let mut found = None;
        let answered = self.request(family, msg::GET_ELEMENTS, 0, body, &mut |message| {
            found = ElementList::decode(message)?.elements.pop();
            Ok(())
        });
        match answered {
            Ok(_) => Ok(found),
            Err(RequestError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How many elements with a key a set has; `None` if this kernel does not say, or if there is an element for
    /// all other keys besides.
    pub fn element_count(
        &mut self,
        family: Family,
        table: &Name,
        set: &Name,
    ) -> Result<Option<u32>, RequestError> {
        let of_set = |w: &mut Writer| {
            w.text(wire::set::TABLE, table.as_str());
            w.text(wire::set::NAME, set.as_str());
        };
        let mut count = None;
        self.request(family, msg::GET_SET, 0, of_set, &mut |message| {
            for attribute in message.attributes()? {
                let attribute = attribute?;
                if attribute.kind == wire::set::COUNT {
                    count = Some(attribute.u32_be()?);
                }
            }
            Ok(())
        })?;
        // Kernels that count look for this one safely.
        if count.is_none() || self.has_catch_all((family, table, set))? {
            return Ok(None);
        }
        Ok(count)
    }

    fn has_catch_all(&mut self, (family, table, set): (Family, &Name, &Name)) -> Result<bool, RequestError> {
        let body = |w: &mut Writer| {
            w.text(wire::element::LIST_TABLE, table.as_str());
            w.text(wire::element::LIST_SET, set.as_str());
            w.nest(wire::element::LIST_ELEMENTS, |list| {
                list.nest(wire::LIST_ELEM, |element| {
                    element.u32_be(wire::element::FLAGS, wire::element::FLAG_CATCH_ALL);
                });
            });
        };
        match self.request(family, msg::GET_ELEMENTS, 0, body, &mut |_| Ok(())) {
            Ok(_) => Ok(true),
            Err(RequestError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Hands the elements of a set that have these keys to `visit`, in the order of the keys. Unlike a listing, whose
    /// every 32 KiB the kernel begins to count at the front of the set, this costs the same for each element however
    /// many there are.
    pub fn visit_elements(
        &mut self,
        (family, table, set): (Family, &Name, &Name),
        mut keys: impl Iterator<Item = Value>,
        mut visit: impl FnMut(Element),
    ) -> Result<(), RequestError> {
        loop {
            let some: Vec<Value> = keys.by_ref().take(KEYS_AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            let mut unanswered = some.as_slice();
            while !unanswered.is_empty() {
                let body = |w: &mut Writer| {
                    w.text(wire::element::LIST_TABLE, table.as_str());
                    w.text(wire::element::LIST_SET, set.as_str());
                    w.nest(wire::element::LIST_ELEMENTS, |list| {
                        unanswered.iter().for_each(|key| Element::new(*key).encode(list));
                    });
                };
                let mut found = 0;
                let answered = self.request(family, msg::GET_ELEMENTS, 0, body, &mut |message| {
                    for element in ElementList::decode(message)?.elements {
                        found += 1;
                        visit(element);
                    }
                    Ok(())
                });
                match answered {
                    Ok(_) => break,
                    // It stops at the first key that has no element.
                    Err(RequestError::NotFound) => {
                        unanswered = unanswered.get(found + 1..).unwrap_or_default();
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Reads the elements of a set into a collection of the caller's; if the listing has to begin again, so
    /// does the collection.
    pub fn collect_elements<T>(
        &mut self,
        (family, table, set): (Family, &Name, &Name),
        begin: impl Fn() -> T,
        mut push: impl FnMut(&mut T, Element),
    ) -> Result<T, RequestError> {
        let of_set = |w: &mut Writer| {
            w.text(wire::element::LIST_TABLE, table.as_str());
            w.text(wire::element::LIST_SET, set.as_str());
        };
        for attempt in 0..DUMP_ATTEMPTS {
            let begin = || (begin(), Listed::default());
            let (collection, listed) = self.dump_into(
                family,
                msg::GET_ELEMENTS,
                &of_set,
                begin,
                |(collection, listed), message| {
                    for element in ElementList::decode(message)?.elements {
                        listed.note(&element);
                        push(collection, element);
                    }
                    Ok(())
                },
            )?;
            if !listed.has_repeated {
                return Ok(collection);
            }
            // The table stops growing by itself, a little later on a busy machine.
            std::thread::sleep(Duration::from_millis(1 << attempt));
        }
        Err(RequestError::Disturbed(DUMP_ATTEMPTS))
    }

    fn dump<T, I: Iterator<Item = T>>(
        &mut self,
        family: Family,
        kind: u16,
        body: &dyn Fn(&mut Writer),
        decode: impl Fn(&Message<'_>) -> Result<I, Malformed>,
    ) -> Result<Vec<T>, RequestError> {
        self.dump_into(family, kind, body, Vec::new, |found, message| {
            found.extend(decode(message)?);
            Ok(())
        })
    }

    fn dump_into<T>(
        &mut self,
        family: Family,
        kind: u16,
        body: &dyn Fn(&mut Writer),
        begin: impl Fn() -> T,
        mut visit: impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<T, RequestError> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = begin();
            let listing = self.request(family, kind, flags::DUMP, body, &mut |message| {
                visit(&mut found, message)
            });
            match listing {
                Ok(Listing::Whole) => return Ok(found),
                // The kernel gives up a dump during which the ruleset changed too much.
                Ok(Listing::Disturbed)
                | Err(RequestError::Refused {
                    errno: Errno::INTR | Errno::AGAIN,
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(RequestError::Disturbed(DUMP_ATTEMPTS))
    }

    fn request(
        &mut self,
        family: Family,
        kind: u16,
        extra_flags: u16,
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Listing, RequestError> {
        let header = Header {
            kind: wire::SUBSYSTEM << 8 | kind,
            flags: extra_flags,
            sequence: 0,
            family: family.number(),
            version: 0,
            resource: 0,
        };
        self.socket.request(header, body, visit)
    }
}

fn classify(faults: Vec<Fault>, acknowledged: bool) -> Result<(), CommitError> {
    let Some(first) = faults.first() else {
        return if acknowledged {
            Ok(())
        } else {
            Err(CommitError::Unacknowledged)
        };
    };
    if faults.iter().any(|fault| fault.errno == Errno::RESTART) {
        return Err(CommitError::GenerationChanged);
    }
    let passing = |errno: Errno| matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS);
    // BUSY is passing for chains that lose their last reference late (before Linux 6.2), but for elements
    // it says that one exists with other data, which trying again does not change.
    if faults.iter().all(|fault| passing(fault.errno)) {
        return Err(CommitError::TryAgain(first.clone()));
    }
    Err(CommitError::Refused(faults))
}

/// Notices a listing that names an element twice. The kernel walks a hash table that grows in the background
/// after many elements were added, and then repeats some and leaves out as many others without saying so.
#[derive(Default)]
struct Listed {
    keys: HashSet<u64>,
    has_repeated: bool,
}

impl Listed {
    fn note(&mut self, element: &Element) {
        // The end of one range may be the start of the next.
        let mut hasher = DefaultHasher::new();
        (&element.key, &element.key_end, element.interval_end).hash(&mut hasher);
        self.has_repeated |= !self.keys.insert(hasher.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_is_listed_twice_shows_that_others_are_missing() {
        let element = |byte| Element::new(Value::host_u32(byte));
        let end = |byte| Element {
            interval_end: true,
            ..element(byte)
        };
        let has_repeated = |elements: &[Element]| {
            let mut listed = Listed::default();
            elements.iter().for_each(|element| listed.note(element));
            listed.has_repeated
        };
        assert!(!has_repeated(&[element(1), end(2), element(2)]));
        assert!(has_repeated(&[element(1), element(2), element(1)]));
    }

    fn faults(errnos: &[Errno]) -> Vec<Fault> {
        let fault = |errno: &Errno| Fault {
            errno: *errno,
            message: None,
            op: None,
            element: None,
            attribute: None,
        };
        errnos.iter().map(fault).collect()
    }

    #[test]
    fn an_acknowledgement_beside_an_error_is_no_commit() {
        assert!(matches!(
            classify(faults(&[Errno::EXIST]), true),
            Err(CommitError::Refused(_))
        ));
        assert!(classify(Vec::new(), true).is_ok());
        assert!(matches!(
            classify(Vec::new(), false),
            Err(CommitError::Unacknowledged)
        ));
    }

    #[test]
    fn passing_errors_may_be_tried_again_unless_another_one_stays() {
        for errno in [Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS] {
            assert!(matches!(
                classify(faults(&[errno]), false),
                Err(CommitError::TryAgain(_))
            ));
            assert!(matches!(
                classify(faults(&[errno, Errno::NOENT]), false),
                Err(CommitError::Refused(_))
            ));
        }
        assert!(matches!(
            classify(faults(&[Errno::BUSY]), false),
            Err(CommitError::Refused(_))
        ));
    }

    #[test]
    fn another_writer_is_told_apart_from_a_bad_transaction() {
        let error = classify(faults(&[Errno::RESTART]), false);
        assert!(matches!(error, Err(CommitError::GenerationChanged)));
    }
}
