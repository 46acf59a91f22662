//! What is an address together with the size of its network?

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address with a prefix length, as interfaces and routes have them. Host bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// A text that is no address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a prefix length, like 10.0.0.1/24")]
pub struct ParsePrefixError(pub String);

impl Prefix {
    /// Lengths beyond the family's width are cut to it.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Self {
        let address = address.into();
        Self {
            length: length.min(width(address)),
            address,
        }
    }

    /// The address alone: /32 or /128.
    pub fn host(address: impl Into<IpAddr>) -> Self {
        Self::new(address, u8::MAX)
    }

    /// The address, host bits included.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The number of bits that belong to the network.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Whether this network holds the address.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                u32::from(ours) & mask == u32::from(theirs) & mask
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                u128::from(ours) & mask == u128::from(theirs) & mask
            }
            _ => false,
        }
    }

    /// The same network without host bits.
    #[must_use]
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                IpAddr::from((u32::from(address) & mask).to_be_bytes())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                IpAddr::from((u128::from(address) & mask).to_be_bytes())
            }
        };
        Self { address, ..self }
    }

    /// Whether all its addresses are in the other network.
    pub fn is_within(self, other: Self) -> bool {
        other.length <= self.length && other.contains(self.address)
    }

    /// Whether some address is in both networks.
    pub fn overlaps(self, other: Self) -> bool {
        if self.length <= other.length {
            self.contains(other.address)
        } else {
            other.contains(self.address)
        }
    }
}

impl FromStr for Prefix {
    type Err = ParsePrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let length: u8 = length.parse().ok()?;
            (length <= width(address)).then_some(Self { address, length })
        };
        parse().ok_or_else(|| ParsePrefixError(text.to_owned()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_read_and_written_alike() {
        for text in ["10.0.0.1/24", "0.0.0.0/0", "fd00::1/64", "::/0", "10.1.2.3/32"] {
            assert_eq!(prefix(text).to_string(), text);
        }
        for text in ["10.0.0.1", "10.0.0.1/33", "fd00::/129", "x/8", "10.0.0.0/"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_is_known_without_the_bits_of_a_host() {
        for (text, network) in [
            ("10.9.1.7/24", "10.9.1.0/24"),
            ("10.9.1.7/0", "0.0.0.0/0"),
            ("10.9.1.7/32", "10.9.1.7/32"),
            ("fd00::7/64", "fd00::/64"),
        ] {
            assert_eq!(prefix(text).network(), prefix(network));
            assert!(prefix(text).is_within(prefix(network)));
        }
        assert!(!prefix("10.0.0.0/8").is_within(prefix("10.0.0.0/9")));
        assert!(!prefix("fd00::/64").is_within(prefix("0.0.0.0/0")));
    }

    #[test]
    fn networks_overlap_if_one_holds_the_other() {
        assert!(prefix("10.0.0.0/8").overlaps(prefix("10.9.1.0/24")));
        assert!(prefix("10.9.1.7/24").overlaps(prefix("10.9.1.200/25")));
        assert!(prefix("0.0.0.0/0").overlaps(prefix("192.0.2.1/32")));
        assert!(!prefix("10.8.0.0/16").overlaps(prefix("10.9.0.0/16")));
        assert!(!prefix("0.0.0.0/0").overlaps(prefix("::/0")));
        assert!(prefix("fd00::/48").overlaps(prefix("fd00:0:0:7::/64")));
    }
}
