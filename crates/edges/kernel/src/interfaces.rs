//! Which addresses does this node have?
//!
//! Read from `/proc/net`, which shows the network namespace of the calling process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pointsman_model::IpFamily;

/// The addresses of all interfaces, of both families, in order.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let four = read_or_empty("/proc/net/fib_trie")?;
    let six = read_or_empty("/proc/net/if_inet6")?;
    let mut found: Vec<IpAddr> = local_v4(&four).map(IpAddr::from).collect();
    found.extend(local_v6(&six).map(IpAddr::from));
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Whether this kernel speaks a family at all; without it there is nothing to program.
pub fn has_family(family: IpFamily) -> bool {
    let disabled = || {
        std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
            .is_ok_and(|text| text.trim() == "1")
    };
    match family {
        IpFamily::V4 => true,
        IpFamily::V6 => std::path::Path::new("/proc/net/if_inet6").exists() && !disabled(),
    }
}

/// Whether connection tracking accepts TCP packets outside of the window.
pub fn conntrack_is_liberal() -> bool {
    std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
        .is_ok_and(|text| text.trim() == "1")
}

/// A kernel without the family has no such file.
fn read_or_empty(path: &str) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

/// An address line of the trie is followed by what it is; ours are local hosts.
fn local_v4(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    trie.lines().zip(trie.lines().skip(1)).filter_map(|(line, next)| {
        let address = line.trim().strip_prefix("|-- ")?;
        (next.trim() == "/32 host LOCAL")
            .then(|| address.parse().ok())
            .flatten()
    })
}

/// Every line begins with an address of 32 hexadecimal digits.
fn local_v6(text: &str) -> impl Iterator<Item = Ipv6Addr> {
    text.lines().filter_map(|line| {
        let digits = line.split_whitespace().next()?;
        (digits.len() == 32)
            .then(|| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_told_from_broadcasts_and_networks() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.1.0\n        /24 link UNICAST\n     \
                    |-- 10.0.1.1\n        /32 host LOCAL\n     |-- 10.0.1.255\n        /32 link BROADCAST\n";
        assert_eq!(local_v4(trie).collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 1, 1)]);
        let six = "00000000000000000000000000000001 01 80 10 80       lo\nnonsense\n";
        assert_eq!(local_v6(six).collect::<Vec<_>>(), [Ipv6Addr::LOCALHOST]);
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        assert!(addresses().unwrap().contains(&IpAddr::from(Ipv4Addr::LOCALHOST)));
    }
}
