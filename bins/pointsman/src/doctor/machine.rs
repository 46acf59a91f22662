//! What is this machine like? Read from `/proc`, `/sys` and the kernel's rules; nothing is changed.

use super::checks::Machine;
use pointsman_kernel::features::probe_nftables;
use pointsman_kernel::iptables::{Iptables, Variant};
use pointsman_model::IpFamily;
use std::fs;
use std::net::Ipv4Addr;

/// The bit of CAP_NET_ADMIN in the sets of a process.
const NET_ADMIN: u32 = 12;

/// Where the proxy listens.
const PORTS: [u16; 2] = [10249, 10256];

/// The kernel interfaces of iptables.
const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// A listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Everything that can be read.
pub fn look() -> Machine {
    let net_admin = has_net_admin();
    Machine {
        release: word("/proc/sys/kernel/osrelease").unwrap_or_default(),
        net_admin,
        nftables: net_admin.then(|| probe_nftables::<Ipv4Addr>().map_err(|error| chain(&error))),
        iptables: net_admin.then(|| match Variant::detect() {
            Ok(Variant::Legacy) => Ok("the older kernel interface (legacy)".to_owned()),
            Ok(_) => Ok("nf_tables".to_owned()),
            Err(error) => Err(error.to_string()),
        }),
        both_interfaces: net_admin && VARIANTS.into_iter().all(|it| holds(it, "nat", ":KUBE-SERVICES ")),
        forwards: word("/proc/sys/net/ipv4/ip_forward").map(|value| value == "1"),
        drops_forwarded: net_admin
            && VARIANTS
                .into_iter()
                .any(|it| holds(it, "filter", ":FORWARD DROP ")),
        tracked: number("/proc/sys/net/netfilter/nf_conntrack_count")
            .zip(number("/proc/sys/net/netfilter/nf_conntrack_max")),
        proxies: running(|name, arguments| {
            name == "kube-proxy" || (name == "pointsman" && arguments.contains(&"proxy"))
        }),
        neighbours: running(|name, _| {
            [
                "firewalld",
                "dockerd",
                "cilium-agent",
                "calico-node",
                "kube-router",
            ]
            .contains(&name)
        })
        .into_iter()
        .map(|(name, _)| name)
        .collect(),
        ipvs: fs::exists("/sys/class/net/kube-ipvs0").unwrap_or(false),
        taken: taken(),
        mtus: mtus(),
    }
}

/// An error and what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn word(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    word(path)?.parse().ok()
}

fn has_net_admin() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> NET_ADMIN & 1 == 1)
}

/// Whether a table that the kernel has in this interface says so.
fn holds(variant: Variant, table: &str, words: &str) -> bool {
    Variant::in_use(IpFamily::V4).contains(&variant)
        && Iptables::<Ipv4Addr>::new(variant)
            .save(table)
            .is_ok_and(|rules| rules.contains(words))
}

/// Processes in our network namespace that are meant.
fn running(is_meant: impl Fn(&str, &[&str]) -> bool) -> Vec<(String, u32)> {
    let ours = fs::read_link("/proc/self/ns/net").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<(String, u32)> = entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm"))
                .ok()?
                .trim()
                .to_owned();
            let arguments = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let arguments: Vec<&str> = arguments.split('\0').collect();
            let here = fs::read_link(entry.path().join("ns/net")).ok() == ours;
            (here && is_meant(&name, &arguments)).then_some((name, pid))
        })
        .collect();
    found.sort_unstable();
    found
}

fn taken() -> Vec<u16> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let mut ports: Vec<u16> = lines
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port = words.get(1)?.rsplit(':').next()?;
            let port = u16::from_str_radix(port, 16).ok()?;
            (words.get(3) == Some(&LISTENING) && PORTS.contains(&port)).then_some(port)
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Interfaces with their largest packets, that of the default route first; without one there is nothing to compare with.
fn mtus() -> Vec<(String, u32)> {
    let routes = fs::read_to_string("/proc/self/net/route").unwrap_or_default();
    let uplink = routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (name, target) = (words.next()?, words.next()?);
        (target == "00000000").then(|| name.to_owned())
    });
    let Some(uplink) = uplink else { return Vec::new() };
    let mtu = |name: &str| {
        Some((
            name.to_owned(),
            number(&format!("/sys/class/net/{name}/mtu"))?.try_into().ok()?,
        ))
    };
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_up =
        |name: &String| word(&format!("/sys/class/net/{name}/operstate")).is_some_and(|state| state == "up");
    let others = names.filter(|name| *name != uplink && is_up(name));
    // `/sys` may be that of another network namespace, and knows nothing of ours then.
    let Some(first) = mtu(&uplink) else {
        return Vec::new();
    };
    std::iter::once(first)
        .chain(others.filter_map(|name| mtu(&name)))
        .collect()
}
