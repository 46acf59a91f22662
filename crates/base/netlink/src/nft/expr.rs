//! Which instructions can a rule have?
//!
//! A rule is a little program over sixteen registers of four bytes and a verdict. An expression that does
//! not match ends the rule; the next rule of the chain follows.

use std::fmt;

use super::name::{Family, Name};
use super::value::Value;

/// One of the sixteen registers of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u8);

impl Register {
    /// The number of registers.
    pub const COUNT: u8 = 16;

    /// Register `index`, 0 to 15.
    pub const fn new(index: u8) -> Option<Self> {
        if index < Self::COUNT {
            Some(Self(index))
        } else {
            None
        }
    }

    /// A register known at compile time.
    pub const fn fixed(index: u8) -> Self {
        assert!(index < Self::COUNT, "there are 16 registers");
        Self(index)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The kernel's number. The kernel reports every fourth by the number of the 16-byte register it
    /// begins, so that is what we send.
    pub(super) fn number(self) -> u32 {
        if self.0.is_multiple_of(4) {
            u32::from(self.0 / 4) + 1
        } else {
            u32::from(self.0) + 8
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self(((number - 1) * 4) as u8)),
            8..=23 => Some(Self((number - 8) as u8)),
            _ => None,
        }
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Drop,
    /// Accept it, as far as this base chain is concerned.
    Accept,
    /// Go on with the next rule.
    Continue,
    /// Go back to the calling chain.
    Return,
    /// Run a chain and come back.
    Jump(Name),
    /// Run a chain and go back to where this chain was called from.
    Goto(Name),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Accept => f.write_str("accept"),
            Self::Continue => f.write_str("continue"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$item_doc])* $item = $number),* }

        impl $name {
            pub(super) const fn number(self) -> u32 {
                self as u32
            }

            pub(super) const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$item),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// From where an offset into the packet counts.
    PayloadBase {
        /// The link header.
        Link = 0,
        /// The IP header.
        Network = 1,
        /// The TCP, UDP or SCTP header.
        Transport = 2,
    }
}

numbered! {
    /// Facts about a packet that are not in it.
    MetaKey {
        /// The queueing priority, 4 bytes in host order.
        Priority = 2,
        /// The mark, 4 bytes in host order.
        Mark = 3,
        /// The input interface's name, 16 bytes.
        InputName = 6,
        /// The output interface's name, 16 bytes.
        OutputName = 7,
        /// The transport protocol, 1 byte.
        L4Proto = 16,
    }
}

numbered! {
    /// Facts about a packet's connection.
    CtKey {
        /// How the packet relates to it, a bit mask.
        State = 0,
        /// Its status bits.
        Status = 2,
        Mark = 3,
        /// Its destination port.
        ProtoDst = 12,
        /// Its IPv4 source.
        SrcIp = 19,
        /// Its IPv4 destination.
        DstIp = 20,
        /// Its IPv6 source.
        SrcIp6 = 21,
        /// Its IPv6 destination.
        DstIp6 = 22,
    }
}

numbered! {
    /// The two directions of a connection.
    CtDirection {
        /// From the client.
        Original = 0,
        /// From the server.
        Reply = 1,
    }
}

numbered! {
    /// How to compare.
    CmpOp {
        Eq = 0,
        Neq = 1,
        Lt = 2,
        /// Less or equal.
        Lte = 3,
        Gt = 4,
        /// Greater or equal.
        Gte = 5,
    }
}

numbered! {
    /// How to compare with a range.
    RangeOp {
        Within = 0,
        Outside = 1,
    }
}

numbered! {
    /// What to do with a dynamic set's element.
    DynsetOp {
        /// Add it, if it does not exist.
        Add = 0,
        /// Add it, or restart its timeout.
        Update = 1,
        Delete = 2,
    }
}

numbered! {
    /// Which address is translated.
    NatKind {
        Source = 0,
        Destination = 1,
    }
}

numbered! {
    /// What a routing lookup yields.
    FibResult {
        /// The output interface.
        Oif = 1,
        /// The output interface's name.
        OifName = 2,
        /// The type of the address: 2 is local.
        AddressType = 3,
    }
}

numbered! {
    /// How to refuse a packet.
    RejectKind {
        /// An ICMP error of the family.
        Icmp = 0,
        TcpReset = 1,
        /// An ICMP error in tables of both families.
        Icmpx = 2,
    }
}

/// What a routing lookup looks at, a bit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FibFlags(pub u32);

impl FibFlags {
    /// The source address.
    pub const SADDR: Self = Self(1);
    /// The destination address.
    pub const DADDR: Self = Self(2);
}

/// Where a lookup puts what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LookupTarget {
    /// Nowhere: it only tests membership of a set.
    Membership,
    /// A map's data goes into registers from this one on.
    Data(Register),
    /// A verdict map's data is the verdict.
    Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        dreg: Register,
        base: PayloadBase,
        offset: u32,
        len: u32,
    },
    /// Loads a fact about the packet.
    Meta {
        dreg: Register,
        key: MetaKey,
    },
    /// Sets a fact about the packet.
    MetaSet {
        sreg: Register,
        key: MetaKey,
    },
    /// Loads a fact about the connection.
    Ct {
        dreg: Register,
        key: CtKey,
        direction: Option<CtDirection>,
    },
    /// Matches if the comparison holds.
    Cmp {
        sreg: Register,
        op: CmpOp,
        value: Value,
    },
    /// Matches if the value lies within (or outside) the range.
    Range {
        sreg: Register,
        op: RangeOp,
        from: Value,
        to: Value,
    },
    /// `(source & mask) ^ xor`.
    Bitwise {
        sreg: Register,
        dreg: Register,
        mask: Value,
        xor: Value,
    },
    /// Matches if the set has the key (or, inverted, has not).
    Lookup {
        set: Name,
        sreg: Register,
        target: LookupTarget,
        invert: bool,
    },
    /// Loads a constant.
    Load {
        dreg: Register,
        value: Value,
    },
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Draws a number from `offset..offset + modulus`.
    Numgen {
        dreg: Register,
        modulus: u32,
        random: bool,
        offset: u32,
    },
    /// Translates an address. Ends the base chain.
    Nat {
        kind: NatKind,
        family: Family,
        address: Option<Register>,
        port: Option<Register>,
        flags: u32,
    },
    /// Translates the source to the outgoing interface's address. Ends the base chain.
    Masquerade {
        flags: u32,
    },
    /// Asks the routing table.
    Fib {
        dreg: Register,
        result: FibResult,
        flags: FibFlags,
    },
    Counter {
        packets: u64,
        bytes: u64,
    },
    /// Refuses the packet.
    Reject {
        kind: RejectKind,
        code: u8,
    },
    /// Changes a dynamic set from the packet path.
    Dynset {
        set: Name,
        op: DynsetOp,
        key: Register,
        data: Option<Register>,
        timeout_ms: Option<u64>,
    },
    /// An instruction this crate has no type for: its name and its attributes.
    Other {
        name: Box<str>,
        attributes: Box<[u8]>,
    },
}

impl Expr {
    /// Randomises the source port completely (`fully-random`).
    pub const NAT_FULLY_RANDOM: u32 = 0x10;
    /// The address type of a local address in [`FibResult::AddressType`].
    pub const FIB_LOCAL: u32 = 2;
}
