//! Which pod address ranges are free?
//!
//! A cluster range is cut into ranges of one size, one for each node. What nodes hold is counted, not
//! just noted: if two nodes came to hold the same range, the loss of one must not free it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// How many more bits a node's range may have than the cluster's (upstream's limit).
const MOST_BITS: u8 = 16;

/// An address range without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is no range, or a range cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// Not a range.
    #[error("{0:?} is not an address range such as 10.244.0.0/16")]
    Malformed(String),
    /// Node ranges larger than the cluster's, or too many of them.
    #[error("ranges of /{node} cannot be cut out of {cluster}: there must be 1 to 65536")]
    BadSize {
        /// What is cut.
        cluster: Range,
        /// Prefix of the pieces.
        node: u8,
    },
    /// More than one range of a family.
    #[error("there may be one range for each IP family, not {0}")]
    TooMany(String),
}

impl Range {
    fn new(bits: u128, four: bool, prefix: u8) -> Self {
        let network = if four {
            // The caller works with 128 bits, of which IPv4 uses the last 32.
            IpAddr::V4(Ipv4Addr::from_bits(bits as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        };
        Self { network, prefix }
    }

    /// Whether this is an IPv4 range.
    pub fn is_ipv4(&self) -> bool {
        self.network.is_ipv4()
    }

    fn width(&self) -> u8 {
        if self.is_ipv4() { 32 } else { 128 }
    }

    /// The first and the last address, as numbers.
    fn bounds(&self) -> (u128, u128) {
        let first = match self.network {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        (first, first | low_bits(self.width() - self.prefix))
    }
}

fn low_bits(count: u8) -> u128 {
    1u128
        .checked_shl(u32::from(count))
        .map_or(u128::MAX, |bit| bit - 1)
}

impl FromStr for Range {
    type Err = RangeError;

    /// Reads a range; host bits are cleared, as in flags and objects of older clients.
    fn from_str(text: &str) -> Result<Self, RangeError> {
        let malformed = || RangeError::Malformed(text.to_owned());
        let (address, prefix) = text.trim().split_once('/').ok_or_else(malformed)?;
        let network: IpAddr = address.parse().map_err(|_| malformed())?;
        let prefix: u8 = prefix.parse().map_err(|_| malformed())?;
        let range = Self { network, prefix };
        if prefix > range.width() {
            return Err(malformed());
        }
        let (first, _) = range.bounds();
        Ok(Self::new(
            first & !low_bits(range.width() - prefix),
            range.is_ipv4(),
            prefix,
        ))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// A cluster's range and the size of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRange {
    cluster: Range,
    node_prefix: u8,
}

impl ClusterRange {
    /// A range that can be cut into at least one and at most 65,536 pieces.
    pub fn try_new(cluster: Range, node_prefix: u8) -> Result<Self, RangeError> {
        let bits = node_prefix.checked_sub(cluster.prefix);
        if node_prefix > cluster.width() || bits.is_none_or(|bits| bits > MOST_BITS) {
            return Err(RangeError::BadSize {
                cluster,
                node: node_prefix,
            });
        }
        Ok(Self { cluster, node_prefix })
    }

    /// Reads `--cluster-cidr`: one range, or one of each family; the first is every node's first.
    pub fn parse_list(text: &str, four_prefix: u8, six_prefix: u8) -> Result<Vec<Self>, RangeError> {
        let ranges: Vec<Range> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let fours = ranges.iter().filter(|range| range.is_ipv4()).count();
        if fours > 1 || ranges.len() - fours > 1 {
            return Err(RangeError::TooMany(text.to_owned()));
        }
        let cut = |range: Range| Self::try_new(range, if range.is_ipv4() { four_prefix } else { six_prefix });
        ranges.into_iter().map(cut).collect()
    }

    /// How many pieces there are.
    pub fn size(&self) -> u32 {
        1 << (self.node_prefix - self.cluster.prefix)
    }

    fn piece_bits(&self) -> u8 {
        self.cluster.width() - self.node_prefix
    }

    fn piece(&self, index: u32) -> Range {
        let (first, _) = self.cluster.bounds();
        let offset = u128::from(index).checked_shl(self.piece_bits().into());
        Range::new(
            first | offset.unwrap_or(0),
            self.cluster.is_ipv4(),
            self.node_prefix,
        )
    }

    /// The pieces that a range overlaps; none if it lies elsewhere.
    fn overlapped(&self, range: &Range) -> std::ops::Range<u32> {
        if range.is_ipv4() != self.cluster.is_ipv4() {
            return 0..0;
        }
        let ((start, end), (first, last)) = (self.cluster.bounds(), range.bounds());
        if last < start || first > end {
            return 0..0;
        }
        let index = |address: u128| {
            let offset = (address.clamp(start, end) - start).checked_shr(self.piece_bits().into());
            u32::try_from(offset.unwrap_or(0)).expect("a cluster range has at most 65536 pieces")
        };
        index(first)..index(last) + 1
    }
}

impl fmt::Display for ClusterRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.fmt(f)
    }
}

/// The pieces of one cluster range, and which are held.
#[derive(Clone, Debug)]
pub struct Pool {
    range: ClusterRange,
    holders: BTreeMap<u32, u32>,
    /// Where the search goes on: a piece that was freed comes up again as late as possible, because
    /// somebody may still remember its former pods.
    next: u32,
}

impl Pool {
    /// A pool of which nothing is held.
    pub fn new(range: ClusterRange) -> Self {
        Self {
            range,
            holders: BTreeMap::new(),
            next: 0,
        }
    }

    /// What is cut.
    pub fn range(&self) -> &ClusterRange {
        &self.range
    }

    /// How many pieces are held.
    pub fn held(&self) -> usize {
        self.holders.len()
    }

    /// Takes a piece that nobody holds.
    pub fn take(&mut self) -> Option<Range> {
        let size = self.range.size();
        if self.holders.len() as u64 >= u64::from(size) {
            return None;
        }
        let mut index = self.next % size;
        while self.holders.contains_key(&index) {
            index = (index + 1) % size;
        }
        self.next = (index + 1) % size;
        self.holders.insert(index, 1);
        Some(self.range.piece(index))
    }

    /// Somebody holds this range. False when another holds part of it too.
    pub fn hold(&mut self, range: &Range) -> bool {
        let mut alone = true;
        for index in self.range.overlapped(range) {
            let holders = self.holders.entry(index).or_insert(0);
            *holders += 1;
            alone &= *holders == 1;
        }
        alone
    }

    /// A holder of this range let it go.
    pub fn release(&mut self, range: &Range) {
        for index in self.range.overlapped(range) {
            if let Some(holders) = self.holders.get_mut(&index) {
                *holders -= 1;
                if *holders == 0 {
                    self.holders.remove(&index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    fn pool(text: &str, prefix: u8) -> Pool {
        Pool::new(ClusterRange::try_new(range(text), prefix).unwrap())
    }

    #[test]
    fn pieces_are_handed_out_in_order_until_none_is_left() {
        let mut pool = pool("10.244.0.0/22", 24);
        let taken: Vec<String> = std::iter::from_fn(|| pool.take())
            .map(|range| range.to_string())
            .collect();
        assert_eq!(
            taken,
            ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"]
        );
        pool.release(&range("10.244.2.0/24"));
        assert_eq!(pool.take(), Some(range("10.244.2.0/24")));
    }

    #[test]
    fn both_families_and_whole_ranges_can_be_cut() {
        assert_eq!(
            pool("fd00:10:244::/56", 64).take(),
            Some(range("fd00:10:244::/64"))
        );
        assert_eq!(pool("10.0.0.1/32", 32).take(), Some(range("10.0.0.1/32")));
        assert_eq!(pool("::/0", 0).take(), Some(range("::/0")));
        let list = ClusterRange::parse_list("10.244.0.0/16,fd00::/56", 24, 64).unwrap();
        assert_eq!(
            list.iter().map(ClusterRange::size).collect::<Vec<_>>(),
            [256, 256]
        );
    }

    #[test]
    fn ranges_that_cannot_be_cut_are_refused() {
        for (text, four) in [("10.0.0.0/24", 16), ("10.0.0.0/8", 25), ("10.0.0.0/8", 33)] {
            let refused = ClusterRange::parse_list(text, four, 64);
            assert!(
                matches!(refused, Err(RangeError::BadSize { .. })),
                "{text} {refused:?}"
            );
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "x/8"] {
            assert!(
                matches!(
                    ClusterRange::parse_list(text, 24, 64),
                    Err(RangeError::Malformed(_))
                ),
                "{text}"
            );
        }
        assert!(matches!(
            ClusterRange::parse_list("10.0.0.0/16,10.1.0.0/16", 24, 64),
            Err(RangeError::TooMany(_))
        ));
    }

    #[test]
    fn ranges_of_another_size_or_place_hold_what_they_overlap() {
        let mut pool = pool("10.244.0.0/22", 24);
        assert!(
            pool.hold(&range("10.244.1.128/25")),
            "part of a piece holds the piece"
        );
        assert!(pool.hold(&range("10.244.2.0/23")));
        assert!(
            pool.hold(&range("192.168.0.0/16")),
            "what lies elsewhere is nobody's"
        );
        assert!(pool.hold(&range("fd00::/64")));
        assert_eq!((pool.take(), pool.take()), (Some(range("10.244.0.0/24")), None));
        assert!(!pool.hold(&range("10.0.0.0/8")), "everything is held already");
    }

    #[test]
    fn a_range_held_twice_is_free_only_after_both_let_go() {
        let mut pool = pool("10.244.0.0/24", 24);
        let only = range("10.244.0.0/24");
        assert!(pool.hold(&only));
        assert!(!pool.hold(&only));
        pool.release(&only);
        assert_eq!(pool.take(), None);
        pool.release(&only);
        assert_eq!(pool.take(), Some(only));
    }

    proptest! {
        #[test]
        fn no_piece_is_ever_held_twice(steps in proptest::collection::vec(proptest::option::of(0usize..8), 1..60)) {
            let mut pool = pool("10.0.0.0/28", 31);
            let mut held: Vec<Range> = Vec::new();
            for step in steps {
                match step {
                    Some(index) if index < held.len() => pool.release(&held.remove(index)),
                    Some(_) => {}
                    None => match pool.take() {
                        Some(range) => {
                            prop_assert!(!held.contains(&range));
                            held.push(range);
                        }
                        None => prop_assert_eq!(held.len(), 8),
                    },
                }
                prop_assert_eq!(pool.held(), held.len());
            }
        }
    }
}
