//! In which order are the members of a range tried?
//!
//! The lower part of a range is left for people who choose numbers themselves; picks take the upper
//! part first and fall back to the lower one when it is full. Within a part the tries start at a
//! random place and go upward, so a nearly empty range takes one lookup and no list is ever built.

use crate::net;
use crate::strategy::IpRange;
use std::net::IpAddr;

/// How the size of the static part follows from the size of the range (KEP-3070 and KEP-3668):
/// `min(max(MIN, size / step), max)`, and nothing for ranges of at most `MIN`.
struct Split {
    max: u128,
    step: u128,
}

const MIN: u128 = 16;
const ADDRESSES: Split = Split { max: 256, step: 16 };
const PORTS: Split = Split { max: 128, step: 32 };

impl Split {
    fn static_size(&self, size: u128) -> u128 {
        if size <= MIN {
            0
        } else {
            (size / self.step).clamp(MIN, self.max)
        }
    }
}

/// The lowest address that Services may have; the `kubernetes` Service takes it.
pub fn first_address(range: IpRange) -> IpAddr {
    net::from_number(usable(range).0, range.network.is_ipv4())
}

/// Whether a Service may have `address`: in the range, and neither its network nor its IPv4
/// broadcast address.
pub(super) fn contains(range: IpRange, address: IpAddr) -> bool {
    let (first, count) = usable(range);
    let number = net::to_number(address);
    range.network.is_ipv4() == address.is_ipv4() && number >= first && number - first < count
}

/// All usable addresses in the order of tries.
pub(super) fn address_bands(
    range: IpRange,
    pick: &mut dyn FnMut(u64) -> u64,
) -> impl Iterator<Item = IpAddr> + use<> {
    let (first, count) = usable(range);
    let v4 = range.network.is_ipv4();
    bands(count, &ADDRESSES, pick).map(move |offset| net::from_number(first + offset, v4))
}

/// All ports from `first` to `last` in the order of tries.
pub(super) fn port_bands(
    first: u16,
    last: u16,
    pick: &mut dyn FnMut(u64) -> u64,
) -> impl Iterator<Item = u16> + use<> {
    let count = u128::from(last).saturating_sub(u128::from(first)) + 1;
    bands(count, &PORTS, pick).map(move |offset| first.saturating_add(offset as u16))
}

fn bands(count: u128, split: &Split, pick: &mut dyn FnMut(u64) -> u64) -> impl Iterator<Item = u128> + use<> {
    let lower = split.static_size(count).min(count);
    let upper = count - lower;
    let mut start = |count: u128| match u64::try_from(count).unwrap_or(u64::MAX) {
        0 => 0,
        count => u128::from(pick(count) % count),
    };
    let (upper_start, lower_start) = (start(upper), start(lower));
    let around = |count: u128, start: u128| (0..count).map(move |step| (start + step) % count);
    around(upper, upper_start)
        .map(move |offset| lower + offset)
        .chain(around(lower, lower_start))
}

/// The first usable address as a number, and how many there are. The network address is never used,
/// and neither is the broadcast address of IPv4 networks that have one.
fn usable(range: IpRange) -> (u128, u128) {
    let first = net::to_number(net::network(range.network, range.prefix));
    let host_bits = net::bits(range.network).saturating_sub(u32::from(range.prefix));
    let size = 1u128.checked_shl(host_bits).unwrap_or(u128::MAX);
    match (size, range.network.is_ipv4()) {
        (1, _) => (first, 1),
        (2, _) => (first + 1, 1),
        (_, true) => (first + 1, size - 2),
        (_, false) => (first + 1, size - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpRange {
        let (network, prefix) = net::valid_cidr("range", text).unwrap();
        IpRange { network, prefix }
    }

    #[test]
    fn static_parts_have_the_sizes_upstream_documents() {
        assert_eq!(PORTS.static_size(2768), 86);
        assert_eq!(ADDRESSES.static_size(1 << 16), 256);
        assert_eq!(ADDRESSES.static_size(254), 16);
        assert_eq!(ADDRESSES.static_size(1 << 11), 128);
        assert_eq!(ADDRESSES.static_size(14), 0);
    }

    #[test]
    fn picks_come_from_the_upper_part_until_it_is_full() {
        let all: Vec<u16> = port_bands(30000, 30099, &mut |_| 0).collect();
        assert_eq!(all[..2], [30016, 30017]);
        assert_eq!(all[83..86], [30099, 30000, 30001]);
        assert_eq!(all.len(), 100);
        let from_the_end: Vec<u16> = port_bands(30000, 30099, &mut |count| count - 1).take(2).collect();
        assert_eq!(from_the_end, [30099, 30016]);
    }

    #[test]
    fn network_and_broadcast_addresses_are_left_alone() {
        let small: Vec<String> = address_bands(range("10.0.0.0/29"), &mut |_| 0)
            .map(|ip| ip.to_string())
            .collect();
        assert_eq!(
            small,
            [
                "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"
            ]
        );
        assert_eq!(first_address(range("10.96.0.0/12")).to_string(), "10.96.0.1");
        let wide = range("fd00::/64");
        assert_eq!(
            address_bands(wide, &mut |_| 0).next().unwrap().to_string(),
            "fd00::101"
        );
        assert!(contains(wide, "fd00::1".parse().unwrap()));
        assert!(!contains(wide, "fd00::".parse().unwrap()));
        assert!(!contains(range("10.0.0.0/24"), "10.0.0.255".parse().unwrap()));
        assert!(!contains(range("10.0.0.0/24"), "10.0.1.1".parse().unwrap()));
        assert!(contains(range("10.0.0.1/32"), "10.0.0.1".parse().unwrap()));
        assert!(
            address_bands(range("0.0.0.0/0"), &mut |count| count - 1)
                .next()
                .is_some()
        );
        assert!(
            address_bands(range("::/0"), &mut |count| count - 1)
                .next()
                .is_some()
        );
    }
}
