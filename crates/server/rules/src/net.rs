//! Which addresses and ranges may a field hold, and which addresses may traffic be sent to?
//!
//! Validation is strict, as upstream's is for new values: no leading zeros, no IPv4-mapped IPv6
//! addresses, no zones. Stored objects are read with `pointsman_model::parse_ip`, which is not.

use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{int_at, str_at};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads an address, or says what is wrong with the field at `path`.
pub fn valid_ip(path: &str, text: &str) -> Result<IpAddr, FieldError> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => Err(FieldError::invalid(
            path,
            text,
            "must not be an IPv4-mapped IPv6 address",
        )),
        Ok(address) => Ok(address),
        Err(_) => Err(FieldError::invalid(
            path,
            text,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        )),
    }
}

/// Reads a range, or says what is wrong with the field at `path`.
pub fn valid_cidr(path: &str, text: &str) -> Result<(IpAddr, u8), FieldError> {
    let malformed = || {
        FieldError::invalid(
            path,
            text,
            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        )
    };
    let (address, prefix) = text.split_once('/').ok_or_else(malformed)?;
    let address: IpAddr = address.parse().map_err(|_| malformed())?;
    let well_formed =
        prefix == "0" || (!prefix.starts_with('0') && prefix.bytes().all(|byte| byte.is_ascii_digit()));
    let prefix: u8 = prefix
        .parse()
        .ok()
        .filter(|_| well_formed)
        .ok_or_else(malformed)?;
    if u32::from(prefix) > bits(address) {
        return Err(malformed());
    }
    if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return Err(FieldError::invalid(
            path,
            text,
            "must not have an IPv4-mapped IPv6 address",
        ));
    }
    if network(address, prefix) != address {
        return Err(FieldError::invalid(
            path,
            text,
            "must not have bits set beyond the prefix length",
        ));
    }
    Ok((address, prefix))
}

/// The transport protocols of ports.
pub const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// What is wrong with the `port` and `protocol` of a port of a Service or of Endpoints.
pub fn port_faults(port: &Value, path: &str, errors: &mut FieldErrors) {
    let number = int_at(port, &["port"]).unwrap_or(0);
    let faults = names::port_number(number);
    invalid_each(errors, &format!("{path}.port"), number, faults);
    let protocol = str_at(port, &["protocol"]);
    if !PROTOCOLS.contains(&protocol) {
        let path = format!("{path}.protocol");
        errors.push(FieldError::not_supported(path, protocol, &PROTOCOLS));
    }
}

/// Why traffic must not be steered to `address`: unspecified, loopback and link-local addresses
/// would let an endpoint reach into whichever node forwards to it.
pub fn endpoint_faults(path: &str, address: IpAddr) -> FieldErrors {
    let link_local_multicast = match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    };
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let checks = [
        (
            address.is_unspecified(),
            format!("may not be unspecified ({address})"),
        ),
        (
            address.is_loopback(),
            "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned(),
        ),
        (
            link_local,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned(),
        ),
        (
            link_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        ),
    ];
    checks
        .into_iter()
        .filter(|(refused, _)| *refused)
        .map(|(_, why)| FieldError::invalid(path, Value::from(address.to_string()), why))
        .collect()
}

/// The first address of the range that contains `address` and has `prefix` bits.
pub fn network(address: IpAddr, prefix: u8) -> IpAddr {
    let host_bits = bits(address).saturating_sub(u32::from(prefix));
    let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
    from_number(to_number(address) & mask, address.is_ipv4())
}

/// The address as a number.
pub fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The address with this number; IPv4 takes the low 32 bits.
pub fn from_number(number: u128, v4: bool) -> IpAddr {
    if v4 {
        IpAddr::V4(Ipv4Addr::from(number as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from(number))
    }
}

/// How many bits addresses of this family have.
pub fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ranges_are_strict() {
        for good in ["10.0.0.1", "::1", "2001:db8::ffff"] {
            assert!(valid_ip("f", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "10.0.0",
            "010.0.0.1",
            "10.0.0.256",
            "::ffff:1.2.3.4",
            "fe80::1%eth0",
            " 10.0.0.1",
            "10.0.0.1/8",
        ] {
            assert!(valid_ip("f", bad).is_err(), "{bad}");
        }
        for good in ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3/32", "2001:db8::/64", "::/0"] {
            assert!(valid_cidr("f", good).is_ok(), "{good}");
        }
        for bad in [
            "10.0.0.0",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "::/129",
            "/8",
            "10.0.0.0/",
        ] {
            assert!(valid_cidr("f", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn special_addresses_cannot_be_endpoints() {
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert_eq!(endpoint_faults("f", bad.parse().unwrap()).len(), 1, "{bad}");
        }
        for good in ["10.0.0.1", "224.0.1.1", "2001:db8::1", "ff05::1"] {
            assert!(endpoint_faults("f", good.parse().unwrap()).is_empty(), "{good}");
        }
    }
}
