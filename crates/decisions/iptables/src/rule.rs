//! What can a rule say?
//!
//! Exactly the matches and targets our rules use, in the order `iptables-save` prints them, so that what
//! we render is what the kernel shows.

use pointsman_dataplane::settings::{InterfaceName, LocalDetector, MasqueradeMark};
use pointsman_model::{Address, Affinity, Backend, Cidr, Port, Protocol};

use crate::name::ChainName;

/// A rule: if all matches hold, do what the target says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule<A> {
    /// All must hold.
    pub matches: Vec<Match<A>>,
    /// For humans; empty means none.
    pub comment: String,
    /// Whether the comment stands behind the matches by modules. To iptables these are two rules.
    pub comment_last: bool,
    pub target: Target<A>,
}

/// Whether a match has to hold or to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Is {
    /// It has to hold.
    In,
    /// It has to fail.
    NotIn,
}

impl Is {
    /// Whether an observation satisfies the match.
    pub const fn agrees(self, holds: bool) -> bool {
        matches!((self, holds), (Self::In, true) | (Self::NotIn, false))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match<A> {
    /// The source lies in the range.
    Source(Is, Cidr<A>),
    /// The destination lies in the range.
    Destination(Is, Cidr<A>),
    /// The last byte of the destination.
    DestinationEnd(u8),
    /// The packet came in through this interface.
    Interface(Is, InterfaceName),
    /// The packet came in through an interface whose name begins so.
    InterfacePrefix(Is, InterfaceName),
    Protocol(Protocol),
    /// The protocol and the destination port.
    Port(Protocol, Port),
    /// The kernel calls the source address its own.
    FromThisNode,
    /// The kernel calls the destination address its own.
    ToThisNode,
    /// The state of the connection.
    State(Is, &'static [ConnectionState]),
    /// The mark's bit is set.
    Mark(Is, MasqueradeMark),
    /// Holds once in `n` times.
    OneIn(u32),
    /// The client was sent to this endpoint not longer ago than the affinity lasts.
    SeenBy(ChainName, Affinity),
    /// Always holds, and notes that the client is being sent to this endpoint.
    NoteSeen(ChainName),
    /// The destination was translated, and lay in the range before.
    TranslatedFrom(Cidr<A>),
    /// Always holds, and counts the packet.
    Counted(PacketCounter),
}

/// A counter of the kernel's (nfacct) that rules of both families may name. Unlike the counters of rules it outlives a
/// chain's rewriting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketCounter {
    /// Packets that belong to no connection and were dropped.
    InvalidDropped,
    /// Connections to node ports on 127.0.0.1 that were accepted.
    LocalhostAccepted,
}

impl PacketCounter {
    pub const ALL: [Self; 2] = [Self::InvalidDropped, Self::LocalhostAccepted];

    /// Upstream's names, so that a node that changes its proxy goes on counting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidDropped => "ct_state_invalid_dropped_pkts",
            Self::LocalhostAccepted => "localhost_nps_accepted_pkts",
        }
    }
}

/// What the connection tracker says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionState {
    /// It begins a connection.
    New,
    /// It belongs to no connection.
    Invalid,
    /// It belongs to a connection related to a known one.
    Related,
    /// It belongs to a known connection.
    Established,
    /// Its destination was translated.
    Dnat,
}

impl ConnectionState {
    /// The spelling of `--ctstate`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Invalid => "INVALID",
            Self::Related => "RELATED",
            Self::Established => "ESTABLISHED",
            Self::Dnat => "DNAT",
        }
    }
}

/// What to do with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target<A> {
    /// Nothing; the rule is a comment for readers.
    Nothing,
    /// Go through another chain, and come back if it does not decide.
    Jump(ChainName),
    /// Go back to the calling chain.
    Return,
    /// Let it pass.
    Accept,
    /// Discard it silently.
    Drop,
    /// Discard it and tell the sender that nobody listens.
    Reject,
    /// Send it, and the rest of its connection, there.
    Dnat(Backend<A>),
    /// Make it look as if this node had sent it.
    Masquerade,
    /// Set the mark's bit.
    SetMark(MasqueradeMark),
    /// Flip the mark's bit.
    FlipMark(MasqueradeMark),
}

impl<A: Address> Rule<A> {
    /// A rule without a comment.
    pub fn new(matches: Vec<Match<A>>, target: Target<A>) -> Self {
        Self {
            matches,
            comment: String::new(),
            comment_last: false,
            target,
        }
    }

    /// The rule with a comment.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = comment.into();
        self
    }

    /// The same rule with its comment on the other side of the matches by modules.
    #[must_use]
    pub fn reworded(mut self) -> Self {
        self.comment_last = !self.comment_last;
        self
    }

    /// The chain the rule depends on.
    pub fn jumps_to(&self) -> Option<ChainName> {
        match self.target {
            Target::Jump(chain) => Some(chain),
            _ => None,
        }
    }
}

/// The match for packets that come from a pod, or for those that do not; `None` without a detector.
pub fn from_pod<A: Address>(is: Is, detector: &LocalDetector<A>) -> Option<Match<A>> {
    match detector {
        LocalDetector::Nothing => None,
        LocalDetector::Source(range) => Some(Match::Source(is, *range)),
        LocalDetector::Bridge(name) => Some(Match::Interface(is, name.clone())),
        LocalDetector::InterfacePrefix(prefix) => Some(Match::InterfacePrefix(is, prefix.clone())),
    }
}
