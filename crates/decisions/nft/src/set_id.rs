//! Which sets and maps does the table have?

use pointsman_model::{Address, IpFamily};
use pointsman_netlink::nft::{Field, Name, Set};

use crate::class::Class;
use crate::pool::{Pool, name};

/// A set or map of the table. The order is the order of changes within a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Ranges that cluster addresses are taken from; traffic to unused ones is dropped.
    ServiceCidrs,
    /// The addresses node ports answer on, if not all local ones.
    NodePortAddresses,
    /// Every cluster address.
    ClusterIps,
    /// External and load balancer addresses with protocol and port.
    ExternalIps,
    /// Those under the `Local` policy.
    ExternalLocal,
    /// Those that only some sources may use.
    Firewalled,
    SourceRanges,
    NodePorts,
    /// Those under the `Local` policy.
    NodePortsLocal,
    /// Endpoints of this node, each with itself: a pod that reaches itself must be masqueraded.
    Hairpin,
    /// Destinations that draw from this class's range.
    Size(Pool, Class),
    /// Destinations whose endpoints exist, but may not be used: dropped rather than refused.
    Drops(Pool),
    /// Slot to endpoint.
    Backends(Pool),
    /// Destinations with client affinity, to the number of their Service port.
    Sticky(Pool),
    /// Slot to token, for destinations with client affinity.
    StickySlots(Pool),
    /// Token to endpoint, for destinations with client affinity.
    StickyBackends(Pool),
    /// Destinations whose clients are forgotten after this many seconds.
    Timeout(Pool, u32),
    /// Client and Service port to token, filled by packets.
    Affinity,
}

/// The range printed in the declaration of slots; rules draw from smaller ones.
const SLOTS: Field = Field::Random {
    modulus: Class::MAX_ENDPOINTS as u32,
};

impl SetId {
    /// The sets that always exist, except those that hold one element per client.
    pub fn fixed() -> Vec<Self> {
        let mut all = vec![
            Self::ServiceCidrs,
            Self::NodePortAddresses,
            Self::ClusterIps,
            Self::ExternalIps,
            Self::ExternalLocal,
            Self::Firewalled,
            Self::SourceRanges,
            Self::NodePorts,
            Self::NodePortsLocal,
            Self::Hairpin,
        ];
        for pool in Pool::ALL {
            all.extend(Class::all().map(|class| Self::Size(pool, class)));
            all.extend([
                Self::Drops(pool),
                Self::Backends(pool),
                Self::Sticky(pool),
                Self::StickySlots(pool),
                Self::StickyBackends(pool),
            ]);
        }
        all
    }

    /// The set's name.
    pub fn name(self) -> Name {
        match self {
            Self::ServiceCidrs => Name::fixed("service-cidrs"),
            Self::NodePortAddresses => Name::fixed("node-port-addresses"),
            Self::ClusterIps => Name::fixed("cluster-ips"),
            Self::ExternalIps => Name::fixed("external-ips"),
            Self::ExternalLocal => Name::fixed("external-local"),
            Self::Firewalled => Name::fixed("firewalled"),
            Self::SourceRanges => Name::fixed("source-ranges"),
            Self::NodePorts => Name::fixed("node-ports"),
            Self::NodePortsLocal => Name::fixed("node-ports-local"),
            Self::Hairpin => Name::fixed("hairpin"),
            Self::Size(pool, class) => pool.name(&format!("size-{}", class.range())),
            Self::Drops(pool) => pool.name("drops"),
            Self::Backends(pool) => pool.name("backends"),
            Self::Sticky(pool) => pool.name("sticky"),
            Self::StickySlots(pool) => pool.name("sticky-slots"),
            Self::StickyBackends(pool) => pool.name("sticky-backends"),
            Self::Timeout(pool, seconds) => pool.name(&timeout_suffix(seconds)),
            Self::Affinity => Name::fixed("affinity"),
        }
    }

    /// The number of seconds in the name of a [`SetId::Timeout`] set.
    pub fn timeout_of(set: &Name) -> Option<(Pool, u32)> {
        Pool::ALL.into_iter().rev().find_map(|pool| {
            let seconds = set
                .as_str()
                .strip_prefix(pool.prefix())?
                .strip_prefix("timeout-")?;
            Some((pool, seconds.parse().ok()?))
        })
    }

    /// The set as it is declared.
    pub fn declare<A: Address>(self, affinity_size: u32) -> Set {
        let (saddr, daddr) = addresses::<A>();
        let destination = [daddr, Field::L4Proto, Field::ThDport];
        let set = |key: &[Field], comment| Set::new(self.name(), key, comment);
        match self {
            Self::ServiceCidrs => Set::interval(self.name(), &[daddr], "where cluster IPs are taken from"),
            Self::NodePortAddresses => set(&[daddr], "where node ports answer"),
            Self::ClusterIps => set(&[daddr], "of all services"),
            Self::ExternalIps => set(&destination, "external and load balancer IPs"),
            Self::ExternalLocal => set(&destination, "external traffic policy Local"),
            Self::Firewalled => set(&destination, "with source ranges"),
            Self::SourceRanges => {
                let key = [daddr, Field::L4Proto, Field::ThDport, saddr];
                Set::interval(self.name(), &key, "who may use load balancer IPs")
            }
            Self::NodePorts => set(&destination[1..], "of all services"),
            Self::NodePortsLocal => set(&destination[1..], "external traffic policy Local"),
            Self::Hairpin => set(
                &[saddr, daddr],
                "endpoints of this node that may reach themselves",
            ),
            Self::Size(pool, _) | Self::Drops(pool) | Self::Timeout(pool, _) => {
                set(pool_key(pool, &destination), "")
            }
            Self::Sticky(pool) => {
                let key = pool_key(pool, &destination);
                Set::map(self.name(), key, &[Field::Priority], "to service port")
            }
            Self::Backends(pool) => {
                let key = with(pool_key(pool, &destination), SLOTS);
                Set::map(self.name(), &key, &[daddr, Field::ThDport], "slot to endpoint")
            }
            Self::StickySlots(pool) => {
                let key = with(pool_key(pool, &destination), SLOTS);
                Set::map(self.name(), &key, &[Field::Priority], "slot to token")
            }
            Self::StickyBackends(pool) => {
                let key = with(pool_key(pool, &destination), Field::Priority);
                Set::map(self.name(), &key, &[daddr, Field::ThDport], "token to endpoint")
            }
            Self::Affinity => {
                let day_ms = 86_400_000;
                Set::dynamic_map(
                    self.name(),
                    &[saddr, Field::Priority],
                    &[Field::Priority],
                    affinity_size,
                    day_ms,
                    "client and service port to token",
                )
            }
        }
    }
}

/// The end of the name of the set of destinations with this timeout.
pub(crate) fn timeout_suffix(seconds: u32) -> String {
    format!("timeout-{seconds}")
}

/// The name of a set that a pool does not have by default.
pub(crate) fn timeout_name(pool: Pool, seconds: u32) -> Name {
    name(format!("{}{}", pool.prefix(), timeout_suffix(seconds)))
}

fn addresses<A: Address>() -> (Field, Field) {
    match A::FAMILY {
        IpFamily::V4 => (Field::IpSaddr, Field::IpDaddr),
        IpFamily::V6 => (Field::Ip6Saddr, Field::Ip6Daddr),
    }
}

fn pool_key(pool: Pool, destination: &[Field; 3]) -> &[Field] {
    if pool.is_node_port() {
        &destination[1..]
    } else {
        destination
    }
}

fn with(key: &[Field], last: Field) -> Vec<Field> {
    let mut key = key.to_vec();
    key.push(last);
    key
}
