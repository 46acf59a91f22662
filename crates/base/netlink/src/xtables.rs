//! What does a table of the older iptables interface say, as the kernel hands it out?
//!
//! A table is one block of entries (`struct ipt_entry`, `ip6t_entry`). An entry says which packets it is for, has further
//! matches, and a target at its end. A chain of a user begins with an entry that holds its name, and jumps lead to the entry
//! after that. Numbers are in the machine's own order, but for addresses and ports of translations.

use crate::netlink::Malformed;

/// Where the kernel's chains begin, by the hooks' numbers.
pub const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// The bytes of [`Info`].
pub const INFO_BYTES: usize = 84;
/// What comes before the entries: the table's name and their size, padded.
pub const ENTRIES_HEADER: usize = 40;
/// The bytes of a name of a table.
pub const NAME_BYTES: usize = 32;

/// What the kernel says about a table before it is read (`struct ipt_getinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where the chain of each hook begins, if the table has it.
    pub hooks: [Option<u32>; 5],
    /// The bytes of all entries.
    pub size: u32,
}

impl Info {
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let at = |index: usize| u32_at(bytes, NAME_BYTES + 4 * index);
        let valid = at(0)?;
        let mut hooks = [None; 5];
        for (hook, begins) in hooks.iter_mut().enumerate() {
            *begins = (valid & 1 << hook != 0).then(|| at(1 + hook)).transpose()?;
        }
        Ok(Self { hooks, size: at(12)? })
    }
}

/// Where the parts of an entry are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The bytes of an address.
    address: usize,
    /// What the interfaces' names begin at; their masks end `INTERFACES` later.
    interfaces: usize,
    protocol: usize,
    inverted: usize,
    offsets: usize,
    header: usize,
}

const INTERFACES: usize = 64;
const V4: Layout = Layout {
    address: 4,
    interfaces: 16,
    protocol: 80,
    inverted: 83,
    offsets: 88,
    header: 112,
};
const V6: Layout = Layout {
    address: 16,
    interfaces: 64,
    protocol: 128,
    inverted: 132,
    offsets: 140,
    header: 168,
};

/// The entries of a table, one after the other.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    layout: Layout,
    bytes: &'a [u8],
    at: usize,
}

/// Which packets it is for, and what becomes of them.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    layout: Layout,
    /// Where it begins in the table, which jumps name.
    pub offset: usize,
    head: &'a [u8],
    matches: &'a [u8],
    target: Extension<'a>,
    /// Where the next one begins.
    pub ends: usize,
}

/// A match or target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    pub name: &'a str,
    pub revision: u8,
    pub info: &'a [u8],
}

/// What becomes of packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// None do: a chain of this name begins after the entry.
    Begins(&'a str),
    /// They go on at the entry with this offset.
    Jump(usize),
    Drop,
    /// Another verdict, such as the end of a chain.
    Verdict(i32),
    Other(Extension<'a>),
}

/// To which address packets have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    Any,
    /// To this one, in the network's order.
    Host(&'a [u8]),
    /// To one of a range, or to another than this.
    Range,
}

impl<'a> Entries<'a> {
    /// Those of a table of IPv4, or else of IPv6.
    pub const fn new(is_v4: bool, bytes: &'a [u8]) -> Self {
        let layout = if is_v4 { V4 } else { V6 };
        Self { layout, bytes, at: 0 }
    }

    fn entry(&self) -> Result<Entry<'a>, Malformed> {
        let Layout { offsets, header, .. } = self.layout;
        let rest = &self.bytes[self.at..];
        let head = rest.get(..header).ok_or(Malformed("an entry is cut off"))?;
        let part = |at| u16_at(head, at).map(usize::from);
        let (target, next) = (part(offsets)?, part(offsets + 2)?);
        let entry = rest
            .get(..next)
            .ok_or(Malformed("an entry ends after its table"))?;
        let matches = entry
            .get(header..target)
            .ok_or(Malformed("a target before its entry"))?;
        let (target, _) = Extension::decode(&entry[target..])?;
        Ok(Entry {
            layout: self.layout,
            offset: self.at,
            head,
            matches,
            target,
            ends: self.at + next,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let entry = self.entry();
        self.at = match &entry {
            Ok(entry) => entry.ends,
            Err(_) => self.bytes.len(),
        };
        Some(entry)
    }
}

impl<'a> Entry<'a> {
    /// The protocol of packets, by its number; zero is any.
    pub fn protocol(&self) -> u8 {
        self.head[self.layout.protocol]
    }

    pub fn destination(&self) -> Destination<'a> {
        const INVERTED: u8 = 0x10;
        let bytes = self.layout.address;
        let (address, mask) = (&self.head[bytes..2 * bytes], &self.head[3 * bytes..4 * bytes]);
        let whole = |byte: u8| mask.iter().all(|part| *part == byte);
        match self.head[self.layout.inverted] & INVERTED {
            0 if whole(0) => Destination::Any,
            0 if whole(u8::MAX) => Destination::Host(address),
            _ => Destination::Range,
        }
    }

    /// Whether packets have to come from somewhere, go through an interface, or be of another protocol than named.
    pub fn is_narrowed(&self) -> bool {
        const OTHER_PROTOCOL: u8 = 0x40;
        let Layout {
            address,
            interfaces,
            inverted,
            ..
        } = self.layout;
        let named = |range: std::ops::Range<usize>| self.head[range].iter().any(|byte| *byte != 0);
        named(2 * address..3 * address)
            || named(interfaces..interfaces + INTERFACES)
            || self.head[inverted] & OTHER_PROTOCOL != 0
    }

    /// Its further matches; what cannot be read ends them.
    pub fn matches(&self) -> impl Iterator<Item = Extension<'a>> + use<'a> {
        let mut rest = self.matches;
        std::iter::from_fn(move || {
            let (found, size) = Extension::decode(rest).ok()?;
            rest = rest.get(size..)?;
            Some(found)
        })
    }

    pub fn target(&self) -> Target<'a> {
        let target = self.target;
        let number = || target.info.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        match (target.name, number()) {
            ("ERROR", _) => Target::Begins(text(target.info)),
            // `-NF_DROP - 1`.
            ("", Some(-1)) => Target::Drop,
            ("", Some(verdict)) => usize::try_from(verdict).map_or(Target::Verdict(verdict), Target::Jump),
            _ => Target::Other(target),
        }
    }
}

impl<'a> Extension<'a> {
    const HEADER: usize = 32;

    /// The first of some bytes, and how many it takes.
    fn decode(bytes: &'a [u8]) -> Result<(Self, usize), Malformed> {
        let size = usize::from(u16_at(bytes, 0)?);
        let cut_off = Malformed("a match or target is cut off");
        let whole = bytes.get(..size).ok_or(cut_off)?;
        let info = whole.get(Self::HEADER..).ok_or(cut_off)?;
        let found = Self {
            name: text(&whole[2..Self::HEADER - 1]),
            revision: whole[Self::HEADER - 1],
            info,
        };
        Ok((found, size))
    }
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found
        .map(|bytes| u16::from_ne_bytes(*bytes))
        .ok_or(Malformed("a number is cut off"))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Malformed("a number is cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of IPv4 with a target that holds a verdict.
    fn entry(destination: [u8; 4], verdict: i32) -> Vec<u8> {
        let mut bytes = vec![0; 112 + 40];
        bytes[4..8].copy_from_slice(&destination);
        bytes[12..16].copy_from_slice(&[255; 4]);
        bytes[80] = 6;
        bytes[88..90].copy_from_slice(&112u16.to_ne_bytes());
        bytes[90..92].copy_from_slice(&152u16.to_ne_bytes());
        bytes[112..114].copy_from_slice(&40u16.to_ne_bytes());
        bytes[144..148].copy_from_slice(&verdict.to_ne_bytes());
        bytes
    }

    #[test]
    fn entries_follow_each_other_and_say_where_packets_go() {
        let bytes = [entry([10, 96, 0, 1], 152), entry([10, 96, 0, 2], -1)].concat();
        let entries: Vec<_> = Entries::new(true, &bytes).map(Result::unwrap).collect();
        let said: Vec<_> = entries
            .iter()
            .map(|entry| {
                (
                    entry.offset,
                    entry.destination(),
                    entry.protocol(),
                    entry.target(),
                )
            })
            .collect();
        let expected = [
            (0, Destination::Host(&[10, 96, 0, 1]), 6, Target::Jump(152)),
            (152, Destination::Host(&[10, 96, 0, 2]), 6, Target::Drop),
        ];
        assert_eq!(said, expected);
        assert!(!entries[0].is_narrowed());
    }

    #[test]
    fn bytes_that_are_no_table_end_in_an_error_and_never_panic() {
        let whole = entry([10, 96, 0, 1], -1);
        for cut in 1..whole.len() {
            let mut entries = Entries::new(true, &whole[..cut]);
            assert!(entries.next().unwrap().is_err(), "{cut}");
            assert!(entries.next().is_none());
        }
        // Whatever the sizes say.
        for at in [88, 90, 112] {
            for size in [0, 1, 31, 111, 113, 151, 153, u16::MAX] {
                let mut bytes = whole.clone();
                bytes[at..at + 2].copy_from_slice(&u16::to_ne_bytes(size));
                let found: usize = Entries::new(true, &bytes)
                    .flatten()
                    .map(|entry| entry.matches().count() + usize::from(entry.is_narrowed()))
                    .sum();
                assert!(found <= 1);
            }
        }
        assert!(Info::decode(&whole[..80]).is_err());
    }
}
