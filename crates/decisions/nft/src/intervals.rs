//! How are ranges written so that the kernel takes them?
//!
//! It refuses overlapping ranges in one set. CIDRs are disjoint or one holds the other, so keeping the
//! outermost ones is enough.

use pointsman_model::{Address, Cidr};
use pointsman_netlink::nft::{Element, Value};

use crate::key::{from_octets, last_address};

/// The ranges that no other holds, in order and without repetition.
pub(crate) fn outermost<A: Address>(ranges: &[Cidr<A>]) -> Vec<Cidr<A>> {
    let mut sorted = ranges.to_vec();
    // A range sorts before those it holds: same or lower network, shorter prefix.
    sorted.sort_unstable_by_key(|range| (range.network(), range.prefix()));
    let mut kept: Vec<Cidr<A>> = Vec::new();
    for range in sorted {
        if !kept.last().is_some_and(|outer| outer.contains(range.network())) {
            kept.push(range);
        }
    }
    kept
}

/// The elements of a plain set of ranges: where each begins, and where it no longer is.
pub(crate) fn interval_elements<A: Address>(ranges: &[Cidr<A>]) -> Vec<Element> {
    let mut elements = Vec::new();
    let mut open_until: Option<A> = None;
    for range in outermost(ranges) {
        if open_until == Some(range.network()) {
            // The range begins where the last one ends: they become one.
            elements.pop();
        } else {
            elements.push(Element::new(crate::key::address(range.network())));
        }
        open_until = successor(last_address(&range));
        if let Some(end) = open_until {
            elements.push(Element {
                interval_end: true,
                ..Element::new(crate::key::address(end))
            });
        }
    }
    elements
}

/// Whether one of the ranges, given as their elements, holds the key.
pub(crate) fn interval_contains<'a>(elements: impl IntoIterator<Item = &'a Element>, key: &Value) -> bool {
    let at_or_before = elements.into_iter().filter(|element| element.key <= *key);
    at_or_before
        .max_by_key(|element| (element.key, !element.interval_end))
        .is_some_and(|element| !element.interval_end)
}

/// The next address, if there is one.
fn successor<A: Address>(address: A) -> Option<A> {
    let mut octets = [0u8; 16];
    let bytes = address.octets();
    let bytes = bytes.as_ref();
    octets[..bytes.len()].copy_from_slice(bytes);
    for octet in octets[..bytes.len()].iter_mut().rev() {
        let (next, carried) = octet.overflowing_add(1);
        *octet = next;
        if !carried {
            return Some(from_octets(&octets[..bytes.len()]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr<Ipv4Addr> {
        Cidr::parse(text).unwrap().unwrap()
    }

    #[test]
    fn neighbours_become_one_and_the_end_of_all_addresses_is_not_written() {
        let elements = interval_elements(&[cidr("10.0.1.0/24"), cidr("10.0.0.0/24"), cidr("255.0.0.0/8")]);
        let ends: Vec<(String, bool)> = elements
            .iter()
            .map(|element| (element.key.to_string(), element.interval_end))
            .collect();
        assert_eq!(
            ends,
            [
                ("0a000000".to_owned(), false),
                ("0a000200".to_owned(), true),
                ("ff000000".to_owned(), false)
            ]
        );
    }

    proptest! {
        #[test]
        fn an_address_is_in_the_elements_exactly_if_it_is_in_a_range(
            ranges in prop::collection::vec((0u32..64, 26u8..=32), 0..12),
            addresses in prop::collection::vec(0u32..80, 8),
        ) {
            let ranges: Vec<Cidr<Ipv4Addr>> =
                ranges.into_iter().map(|(bits, prefix)| Cidr::new(Ipv4Addr::from_bits(bits), prefix)).collect();
            let elements = interval_elements(&ranges);
            for bits in addresses {
                let address = Ipv4Addr::from_bits(bits);
                let wanted = ranges.iter().any(|range| range.contains(address));
                prop_assert_eq!(interval_contains(&elements, &crate::key::address(address)), wanted, "{}", address);
            }
        }
    }
}
