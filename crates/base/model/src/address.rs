//! Which address, of which family?

use std::fmt::{self, Debug, Display};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The two IP families, for labels and dispatch; rules use [`Address`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The spelling of the Kubernetes API and of upstream's `ip_family` label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The family with this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::V4, Self::V6]
            .into_iter()
            .find(|family| family.as_str() == text)
    }

    /// The other family.
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An address of one IP family. Only `Ipv4Addr` and `Ipv6Addr` are.
pub trait Address:
    Copy + Debug + Display + Ord + Hash + Send + Sync + Unpin + 'static + sealed::Sealed
{
    /// The family of every address of this type.
    const FAMILY: IpFamily;
    /// The number of bits.
    const BITS: u8;
    /// The loopback range: 127.0.0.0/8 or ::1/128.
    const LOOPBACK: Cidr<Self>;
    /// The bytes in network order.
    type Octets: AsRef<[u8]> + Copy + Debug + Eq + Hash + Send + Sync;

    /// Narrows an address to this family.
    fn narrow(address: IpAddr) -> Option<Self>;
    /// Widens to the standard type.
    fn widen(self) -> IpAddr;
    /// The bytes in network order.
    fn octets(self) -> Self::Octets;
    /// The address with all bits after the first `prefix` cleared.
    fn mask(self, prefix: u8) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::net::Ipv4Addr {}
    impl Sealed for std::net::Ipv6Addr {}
}

impl Address for Ipv4Addr {
    const FAMILY: IpFamily = IpFamily::V4;
    const BITS: u8 = 32;
    const LOOPBACK: Cidr<Self> = Cidr {
        network: Self::new(127, 0, 0, 0),
        prefix: 8,
    };
    type Octets = [u8; 4];

    fn narrow(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    fn widen(self) -> IpAddr {
        IpAddr::V4(self)
    }

    fn octets(self) -> [u8; 4] {
        Self::octets(&self)
    }

    fn mask(self, prefix: u8) -> Self {
        let keep = u32::MAX.checked_shl(u32::from(32 - prefix.min(32))).unwrap_or(0);
        Self::from_bits(self.to_bits() & keep)
    }
}

impl Address for Ipv6Addr {
    const FAMILY: IpFamily = IpFamily::V6;
    const BITS: u8 = 128;
    const LOOPBACK: Cidr<Self> = Cidr {
        network: Self::LOCALHOST,
        prefix: 128,
    };
    type Octets = [u8; 16];

    fn narrow(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(address),
        }
    }

    fn widen(self) -> IpAddr {
        IpAddr::V6(self)
    }

    fn octets(self) -> [u8; 16] {
        Self::octets(&self)
    }

    fn mask(self, prefix: u8) -> Self {
        let keep = u128::MAX
            .checked_shl(u32::from(128 - prefix.min(128)))
            .unwrap_or(0);
        Self::from_bits(self.to_bits() & keep)
    }
}

/// A text that is no IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IP address")]
pub struct ParseAddressError(pub String);

/// Reads an address as Kubernetes does for stored objects: leading zeros in IPv4 are decimal.
///
/// Old objects contain such addresses, and a stricter reader would lose their Services.
pub fn parse_ip(text: &str) -> Result<IpAddr, ParseAddressError> {
    let bad = || ParseAddressError(text.to_owned());
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(unmap(address));
    }
    if text.contains(':') {
        return Err(bad());
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().ok_or_else(bad)?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().map_err(|_| bad())?
        };
    }
    if parts.next().is_some() {
        Err(bad())
    } else {
        Ok(IpAddr::from(octets))
    }
}

/// `::ffff:a.b.c.d` is an IPv4 address to Kubernetes.
fn unmap(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// An address range; host bits are always zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr<A> {
    network: A,
    prefix: u8,
}

/// A text that is no CIDR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address range like 10.0.0.0/8")]
pub struct ParseCidrError(pub String);

impl<A: Address> Cidr<A> {
    /// The range of `prefix` bits around `address`; prefixes beyond the family's width are cut to it.
    pub fn new(address: A, prefix: u8) -> Self {
        let prefix = prefix.min(A::BITS);
        Self {
            network: address.mask(prefix),
            prefix,
        }
    }

    /// The range that holds only `address`.
    pub fn host(address: A) -> Self {
        Self {
            network: address,
            prefix: A::BITS,
        }
    }

    /// Reads `address/prefix`; `Ok(None)` if it is a range of the other family.
    pub fn parse(text: &str) -> Result<Option<Self>, ParseCidrError> {
        let bad = || ParseCidrError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
        let address = parse_ip(address).map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if prefix > width {
            return Err(bad());
        }
        Ok(A::narrow(address).map(|address| Self::new(address, prefix)))
    }

    /// The first address.
    pub fn network(&self) -> A {
        self.network
    }

    /// The number of fixed bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the range is the whole family.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// Whether `address` lies in the range.
    pub fn contains(&self, address: A) -> bool {
        address.mask(self.prefix) == self.network
    }
}

impl<A: Display> Display for Cidr<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl<A: Debug> Debug for Cidr<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leading_zeros_are_decimal_and_other_odd_spellings_are_refused() {
        assert_eq!(parse_ip("010.020.030.008").unwrap().to_string(), "10.20.30.8");
        assert_eq!(parse_ip("::ffff:1.2.3.4").unwrap().to_string(), "1.2.3.4");
        for bad in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.256",
            "1.2.3.+4",
            "fd00::zz",
            "a.b.c.d",
        ] {
            assert_eq!(parse_ip(bad), Err(ParseAddressError(bad.into())));
        }
    }

    #[test]
    fn a_range_loses_its_host_bits_and_knows_its_family() {
        assert_eq!(
            Cidr::<Ipv4Addr>::parse("10.1.2.3/8")
                .unwrap()
                .unwrap()
                .to_string(),
            "10.0.0.0/8"
        );
        assert_eq!(Cidr::<Ipv6Addr>::parse("10.1.2.3/8"), Ok(None));
        assert!(Cidr::<Ipv4Addr>::parse("10.1.2.3/33").is_err());
        assert!(Cidr::<Ipv4Addr>::parse("10.1.2.3").is_err());
        assert!(Cidr::<Ipv6Addr>::parse("::/0").unwrap().unwrap().is_everything());
    }

    proptest! {
        #[test]
        fn a_range_contains_exactly_the_addresses_that_share_its_prefix(a: u32, b: u32, prefix in 0u8..=32) {
            let range = Cidr::new(Ipv4Addr::from_bits(a), prefix);
            let same = prefix == 0 || (a ^ b) >> (32 - prefix) == 0;
            prop_assert_eq!(range.contains(Ipv4Addr::from_bits(b)), same);
        }
    }
}
