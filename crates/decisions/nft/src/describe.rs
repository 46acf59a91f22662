//! How are elements written for people?
//!
//! As `nft` prints them: `10.96.0.1 . tcp . 80 . 0 : 10.0.1.5 . 8080`.

use std::fmt::Write;
use std::net::Ipv6Addr;

use pointsman_netlink::nft::{Data, DataSpec, Element, Set, TypeId, Value};

/// Type numbers of `nft`, six bits for each component.
const IPV4: u32 = 7;
const IPV6: u32 = 8;
const PROTOCOL: u32 = 12;
const PORT: u32 = 13;

/// An element of a set or map.
pub fn element(set: &Set, element: &Element) -> String {
    let mut text = value(set.key_type, &element.key);
    if let Some(end) = &element.key_end {
        let _ = write!(text, " - {}", value(set.key_type, end));
    }
    if let (Data::Value(data), DataSpec::Value { kind, .. }) = (&element.data, &set.data) {
        let _ = write!(text, " : {}", value(*kind, data));
    }
    text
}

/// A value of a type.
pub fn value(kind: TypeId, value: &Value) -> String {
    let mut kinds = Vec::new();
    let mut rest = kind.0;
    while rest != 0 {
        kinds.push(rest & 0x3f);
        rest >>= 6;
    }
    let mut bytes = value.as_bytes();
    let mut parts = Vec::new();
    for kind in kinds.into_iter().rev() {
        let length = if kind == IPV6 { 16 } else { 4 };
        let Some((field, after)) = bytes.split_at_checked(length.min(bytes.len())) else {
            break;
        };
        bytes = after;
        parts.push(component(kind, field));
    }
    parts.join(" . ")
}

fn component(kind: u32, field: &[u8]) -> String {
    let four = field.first_chunk::<4>();
    match (kind, four, field.first_chunk::<16>()) {
        (IPV4, Some(octets), _) => std::net::Ipv4Addr::from(*octets).to_string(),
        (IPV6, _, Some(octets)) => Ipv6Addr::from(*octets).to_string(),
        (PROTOCOL, _, _) => match field.first() {
            Some(6) => "tcp".to_owned(),
            Some(17) => "udp".to_owned(),
            Some(132) => "sctp".to_owned(),
            other => format!("{}", other.copied().unwrap_or_default()),
        },
        (PORT, _, _) => {
            let port = field.first_chunk::<2>().copied().unwrap_or_default();
            u16::from_be_bytes(port).to_string()
        }
        (_, Some(number), _) => u32::from_ne_bytes(*number).to_string(),
        _ => format!("{field:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Pool, SetId};

    #[test]
    fn elements_read_as_nft_prints_them() {
        let set = SetId::Backends(Pool::Address).declare::<Ipv4Addr>(1);
        let mut key = Value::EMPTY;
        for field in [
            &[10u8, 96, 0, 1][..],
            &[6],
            &80u16.to_be_bytes(),
            &3u32.to_ne_bytes(),
        ] {
            key.push_field(field).unwrap();
        }
        let mut data = Value::EMPTY;
        for field in [&[10u8, 0, 1, 5][..], &8080u16.to_be_bytes()] {
            data.push_field(field).unwrap();
        }
        let text = element(&set, &Element::mapping(key, data));
        assert_eq!(text, "10.96.0.1 . tcp . 80 . 3 : 10.0.1.5 . 8080");
        let set = SetId::ClusterIps.declare::<Ipv6Addr>(1);
        let address: Ipv6Addr = "fd00::1".parse().unwrap();
        let key = Value::try_new(&address.octets()).unwrap();
        assert_eq!(element(&set, &Element::new(key)), "fd00::1");
    }
}
