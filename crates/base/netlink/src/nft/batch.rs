//! Which bytes carry out a transaction, and which of its changes does an error speak of?

use std::fmt;

use super::element::Element;
use super::name::Name;
use super::path::Path;
use super::transaction::{Op, Transaction};
use super::wire;
use crate::netlink::{Errno, ErrorReply, Header, Writer, flags, kind};

/// A number the kernel increments with every commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// A nested attribute's length is a u16; lists of elements are cut well before that.
const ELEMENT_LIST_MAX: usize = 60_000;

/// A transaction cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// One change is longer than a netlink attribute can be.
    #[error("change {op} of transaction {transaction} is too long for a netlink message")]
    TooLong {
        /// The transaction, counted from zero.
        transaction: usize,
        /// The change in it, counted from zero.
        op: usize,
    },
}

/// The bytes of one or more transactions that the kernel commits as one.
#[derive(Clone, Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: Vec<MessageSource>,
    first_sequence: u32,
}

/// Where one message of a batch comes from.
#[derive(Clone, Copy, Debug)]
struct MessageSource {
    /// Where it starts in the bytes.
    start: usize,
    transaction: usize,
    op: usize,
    /// The first element it carries.
    first_element: usize,
}

/// What the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub errno: Errno,
    /// The kernel's explanation, if it gave one.
    pub message: Option<String>,
    /// The transaction and the change in it, counted from zero; `None` if the batch as a whole is at fault.
    pub op: Option<(usize, usize)>,
    /// The element of that change, counted from zero, if the kernel said which.
    pub element: Option<usize>,
    /// The attribute at fault, if the kernel said which.
    pub attribute: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some((transaction, op)) => write!(f, "change {op} of transaction {transaction}")?,
            None => f.write_str("the batch")?,
        }
        if let Some(element) = self.element {
            write!(f, ", element {element}")?;
        }
        if let Some(attribute) = &self.attribute {
            write!(f, ", {attribute}")?;
        }
        write!(f, ": {}", self.errno)?;
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}

impl Batch {
    /// Writes the transactions. With `only_at` the kernel refuses the batch if its ruleset has changed
    /// since it was at that generation.
    ///
    /// The last change asks for an acknowledgement; that one came is no proof of a commit, because in a
    /// failing batch later changes are still acknowledged. A batch is committed if no error came at all.
    pub fn encode(
        transactions: &[Transaction],
        only_at: Option<Generation>,
        first_sequence: u32,
    ) -> Result<Self, BatchError> {
        let mut encoder = Encoder {
            writer: Writer::new(),
            messages: Vec::new(),
            first_sequence,
            next_set_id: 1,
        };
        encoder.control(kind::BATCH_BEGIN, first_sequence, only_at);
        for (index, transaction) in transactions.iter().enumerate() {
            for (op_index, op) in transaction.ops.iter().enumerate() {
                encoder.op(transaction, op, (index, op_index));
                if encoder.writer.overflowed() {
                    return Err(BatchError::TooLong {
                        transaction: index,
                        op: op_index,
                    });
                }
            }
        }
        let end = first_sequence.wrapping_add(1 + encoder.messages.len() as u32);
        encoder.control(kind::BATCH_END, end, None);
        Ok(encoder.finish())
    }

    /// The bytes to send with one system call.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the batch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of sequence numbers the batch uses.
    pub fn sequence_count(&self) -> u32 {
        2 + self.messages.len() as u32
    }

    /// Whether a reply with this sequence number is about this batch.
    pub fn owns(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first_sequence) < self.sequence_count()
    }

    /// Whether a reply is the acknowledgement of the last change.
    pub fn is_final(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first_sequence) as usize == self.messages.len()
    }

    /// What an error reply speaks of; `None` for acknowledgements.
    pub fn fault(&self, reply: &ErrorReply) -> Option<Fault> {
        let errno = reply.error?;
        let index = reply.sequence.wrapping_sub(self.first_sequence).wrapping_sub(1) as usize;
        let Some(source) = self.messages.get(index) else {
            return Some(Fault {
                errno,
                message: reply.message.clone(),
                op: None,
                element: None,
                attribute: None,
            });
        };
        let end = self
            .messages
            .get(index + 1)
            .map_or(self.bytes.len(), |next| next.start);
        let path = reply
            .offset
            .and_then(|offset| Path::locate(&self.bytes[source.start..end], offset as usize));
        Some(Fault {
            errno,
            message: reply.message.clone(),
            op: Some((source.transaction, source.op)),
            element: path
                .as_ref()
                .and_then(|path| path.element)
                .map(|element| source.first_element + element),
            attribute: path.map(|path| path.text),
        })
    }
}

struct Encoder {
    writer: Writer,
    messages: Vec<MessageSource>,
    first_sequence: u32,
    next_set_id: u32,
}

impl Encoder {
    fn control(&mut self, kind: u16, sequence: u32, only_at: Option<Generation>) {
        let header = Header {
            kind,
            flags: flags::REQUEST,
            sequence,
            family: 0,
            version: 0,
            resource: wire::SUBSYSTEM,
        };
        self.writer.message(header, |w| {
            if let Some(Generation(number)) = only_at {
                w.u32_be(wire::BATCH_GENID, number);
            }
        });
    }

    fn op(&mut self, at: &Transaction, op: &Op, index: (usize, usize)) {
        use wire::msg;
        let table = &at.table;
        let add = flags::CREATE;
        match op {
            Op::AddTable(table) => self.message(at, index, msg::NEW_TABLE, add, |w| table.encode(w)),
            Op::DeleteTable => {
                self.message(at, index, msg::DEL_TABLE, 0, |w| {
                    w.text(wire::table::NAME, table.as_str())
                });
            }
            Op::AddChain(chain) => self.message(at, index, msg::NEW_CHAIN, add, |w| chain.encode(table, w)),
            Op::DeleteChain(chain) => self.message(at, index, msg::DEL_CHAIN, 0, |w| {
                w.text(wire::chain::TABLE, table.as_str());
                w.text(wire::chain::NAME, chain.as_str());
            }),
            Op::FlushChain(chain) => self.message(at, index, msg::DEL_RULE, 0, |w| {
                w.text(wire::rule::TABLE, table.as_str());
                w.text(wire::rule::CHAIN, chain.as_str());
            }),
            Op::AddRule(rule) => {
                self.message(at, index, msg::NEW_RULE, add | flags::APPEND, |w| {
                    rule.encode(table, w)
                });
            }
            Op::DeleteRule { chain, handle } => self.message(at, index, msg::DEL_RULE, 0, |w| {
                w.text(wire::rule::TABLE, table.as_str());
                w.text(wire::rule::CHAIN, chain.as_str());
                w.u64_be(wire::rule::HANDLE, *handle);
            }),
            Op::AddSet(set) => {
                let id = self.next_set_id;
                self.next_set_id += 1;
                self.message(at, index, msg::NEW_SET, add, |w| set.encode(table, id, w));
            }
            Op::DeleteSet(set) => self.message(at, index, msg::DEL_SET, 0, |w| {
                w.text(wire::set::TABLE, table.as_str());
                w.text(wire::set::NAME, set.as_str());
            }),
            Op::FlushSet(set) => self.message(at, index, msg::DEL_ELEMENTS, 0, |w| {
                w.text(wire::element::LIST_TABLE, table.as_str());
                w.text(wire::element::LIST_SET, set.as_str());
            }),
            Op::AddElements { set, elements } => {
                self.elements(at, index, (msg::NEW_ELEMENTS, add), set, elements);
            }
            Op::DeleteElements { set, elements } => {
                self.elements(at, index, (msg::DEL_ELEMENTS, 0), set, elements);
            }
        }
    }

    /// Writes elements into as many messages as their lengths need.
    fn elements(
        &mut self,
        at: &Transaction,
        index: (usize, usize),
        (kind, flags): (u16, u16),
        set: &Name,
        elements: &[Element],
    ) {
        let mut start = 0;
        while start < elements.len() {
            let mut length = 0;
            let fitting = elements[start..]
                .iter()
                .take_while(|element| {
                    length += element.encoded_len();
                    length <= ELEMENT_LIST_MAX
                })
                .count()
                .max(1);
            let part = &elements[start..start + fitting];
            self.message(at, index, kind, flags, |w| {
                w.text(wire::element::LIST_TABLE, at.table.as_str());
                w.text(wire::element::LIST_SET, set.as_str());
                w.nest(wire::element::LIST_ELEMENTS, |list| {
                    for element in part {
                        element.encode(list);
                    }
                });
            });
            if let Some(message) = self.messages.last_mut() {
                message.first_element = start;
            }
            start += fitting;
        }
    }

    fn message(
        &mut self,
        at: &Transaction,
        (transaction, op): (usize, usize),
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
    ) {
        let header = Header {
            kind: wire::SUBSYSTEM << 8 | kind,
            flags: flags::REQUEST | flags,
            sequence: self.first_sequence.wrapping_add(1 + self.messages.len() as u32),
            family: at.family.number(),
            version: 0,
            resource: 0,
        };
        let start = self.writer.message(header, body);
        self.messages.push(MessageSource {
            start,
            transaction,
            op,
            first_element: 0,
        });
    }

    fn finish(self) -> Batch {
        let mut bytes = self.writer.into_bytes();
        if let Some(last) = self.messages.last() {
            // The flags follow length and type; the acknowledgement is asked of the last change only.
            let at = last.start + 6;
            let flags = u16::from_ne_bytes([bytes[at], bytes[at + 1]]) | flags::ACK;
            bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        }
        Batch {
            bytes,
            messages: self.messages,
            first_sequence: self.first_sequence,
        }
    }
}
