//! Which addresses may a pod have?

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, such as a node's pod CIDR. Host bits are always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    network: IpAddr,
    length: u8,
}

/// A text that is no address range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address range like 10.244.1.0/24")]
pub struct ParseRangeError(pub String);

/// No node has more pods than this, so larger (IPv6) ranges are used only so far.
const MOST_HOSTS: u128 = 1 << 16;

impl AddressRange {
    /// The range around an address; lengths beyond the family's width are cut to it.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Self {
        let address = address.into();
        let length = length.min(width(address));
        let network = from_bits(address, to_bits(address) & !host_mask(address, length));
        Self { network, length }
    }

    /// Whether the range is of IPv4 addresses.
    pub fn is_ipv4(self) -> bool {
        self.network.is_ipv4()
    }

    /// Whether the address lies in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && Self::new(address, self.length) == self
    }

    /// The addresses a pod may have, in order: not the first, which names the network, and not the last,
    /// which is IPv4's broadcast address.
    pub fn hosts(self) -> impl Iterator<Item = IpAddr> {
        let first = to_bits(self.network);
        let last = host_mask(self.network, self.length).min(MOST_HOSTS);
        (1..last).map(move |offset| from_bits(self.network, first + offset))
    }
}

impl FromStr for AddressRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let (address, length): (IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
            (length <= width(address)).then(|| Self::new(address, length))
        };
        parse().ok_or_else(|| ParseRangeError(text.to_owned()))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn host_mask(address: IpAddr, length: u8) -> u128 {
    let bits = u32::from(width(address) - length);
    1_u128.checked_shl(bits).map_or(u128::MAX, |power| power - 1)
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address of these bits, of the family of `like`.
fn from_bits(like: IpAddr, bits: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_and_last_address_are_not_given_out() {
        let hosts: Vec<String> = range("10.244.1.9/29")
            .hosts()
            .map(|host| host.to_string())
            .collect();
        let want = [
            "10.244.1.9",
            "10.244.1.10",
            "10.244.1.11",
            "10.244.1.12",
            "10.244.1.13",
            "10.244.1.14",
        ];
        assert_eq!(hosts, want);
        assert_eq!(range("10.0.0.0/32").hosts().count(), 0);
        assert_eq!(range("10.0.0.0/31").hosts().count(), 0);
        assert_eq!(range("fd00::/64").hosts().next().unwrap().to_string(), "fd00::1");
        assert_eq!(range("fd00::/64").hosts().count(), 65_535);
        assert_eq!(range("0.0.0.0/0").hosts().count(), 65_535);
    }

    #[test]
    fn a_range_contains_its_own_family_only() {
        assert!(range("10.244.1.0/24").contains("10.244.1.255".parse().unwrap()));
        assert!(!range("10.244.1.0/24").contains("10.244.2.0".parse().unwrap()));
        assert!(!range("::/0").contains("10.244.2.0".parse().unwrap()));
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            assert!(bad.parse::<AddressRange>().is_err(), "{bad}");
        }
    }
}
