//! Which of a destination's lists of endpoints is drawn from?

use pointsman_netlink::nft::Name;

/// A kind of destination and one of its lists.
///
/// Destinations are addresses (with protocol and port) or node ports, which have no address in their key.
/// Both have a main list, and those under the `Local` policy a second one for clients from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// The main list of an address.
    Address,
    /// The list of an address for outside clients under the `Local` policy.
    AddressLocal,
    /// The main list of a node port.
    NodePort,
    /// The list of a node port for outside clients under the `Local` policy.
    NodePortLocal,
}

impl Pool {
    pub const ALL: [Self; 4] = [
        Self::Address,
        Self::AddressLocal,
        Self::NodePort,
        Self::NodePortLocal,
    ];

    /// What the names of the pool's chains and sets begin with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Address => "",
            Self::AddressLocal => "local-",
            Self::NodePort => "np-",
            Self::NodePortLocal => "np-local-",
        }
    }

    /// Whether keys have no address.
    pub const fn is_node_port(self) -> bool {
        matches!(self, Self::NodePort | Self::NodePortLocal)
    }

    /// A name of this pool.
    pub fn name(self, rest: &str) -> Name {
        name(format!("{}{rest}", self.prefix()))
    }
}

/// A name put together from our own short parts.
pub(crate) fn name(text: String) -> Name {
    Name::try_new(text).expect("our names are short and not empty")
}
