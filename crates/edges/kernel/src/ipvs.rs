//! How does what kube-proxy's IPVS mode left go away, without a connection noticing?
//!
//! In that mode cluster addresses belong to the node: they are on the link `kube-ipvs0`, and virtual servers pick up
//! what arrives for them. Our rules come before both, so new connections are ours from the first sync on. Those that
//! IPVS carries need link and servers until they end, and so does a connection that the node itself began: its own
//! address is the cluster address. Hence the order:
//!
//! 1. our rules stand, and the chains of IPVS mode are gone (the caller's part);
//! 2. new connections of the node get a source that stays;
//! 3. wait for the open ones, but not for ever;
//! 4. virtual servers, link and sets go.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use pointsman_fabric::{FabricError, Network, Prefix};
use pointsman_netlink_io::RequestError;
use pointsman_netlink_io::ipvs::{IpSets, Ipvs};

/// The link that holds the addresses.
pub const LINK: &str = "kube-ipvs0";
/// How long open connections are waited for.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The sets, without the beginning that tells the families apart.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];
/// The longest name of a set; kube-proxy cuts what is longer.
const LONGEST_SET: usize = 31;

/// Something of IPVS mode could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    #[error(transparent)]
    Link(#[from] FabricError),
    #[error("virtual servers of IPVS")]
    Servers(#[source] RequestError),
    #[error("ipset {name}")]
    Set {
        name: String,
        #[source]
        source: RequestError,
    },
}

/// What IPVS mode left in the network namespace of the thread that found it.
#[derive(Debug)]
pub struct Leftovers {
    network: Network,
    addresses: BTreeSet<IpAddr>,
    /// When open connections are not waited for any longer.
    until: Instant,
}

impl Leftovers {
    /// Finds the link and its addresses; `None` if IPVS mode did not run here.
    pub fn find(now: Instant) -> Result<Option<Self>, FabricError> {
        let mut network = Network::here()?;
        let Some(link) = network.find(LINK)? else {
            return Ok(None);
        };
        let all = network.addresses()?.into_iter();
        let its = all.filter(|(index, _)| *index == link.index);
        Ok(Some(Self {
            network,
            addresses: its.map(|(_, prefix)| prefix.address()).collect(),
            until: now + PATIENCE,
        }))
    }

    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Lets new connections of the node to these addresses begin from one that stays.
    pub fn prefer(&mut self, source: Ipv4Addr) -> Result<(), FabricError> {
        let link = self.network.link(LINK)?.index;
        for address in &self.addresses {
            if let IpAddr::V4(address) = address {
                self.network.prefer_source(link, *address, source)?;
            }
        }
        Ok(())
    }

    /// How many open connections would break, as far as the kernel says.
    pub fn in_use(&self) -> usize {
        let read = |name: &str| match std::fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
            // A kernel without IPVS or IPv6 has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.unwrap_or_default(),
        };
        let own = ["tcp", "tcp6"].map(|name| sockets_of(&read(name), &self.addresses));
        carried(&read("ip_vs_conn")) + own.iter().sum::<usize>()
    }

    /// Whether it is time: nobody needs them, or they were waited for long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.until || self.in_use() == 0
    }

    /// Removes virtual servers, link and sets. Servers in excluded ranges are somebody else's, as kube-proxy was told.
    pub fn remove(mut self, excluded: &[Prefix]) -> Result<(), IpvsError> {
        let servers = remove_servers(excluded);
        self.network.delete_link(LINK)?;
        servers?;
        remove_sets()
    }
}

/// Removes everything at once (`--cleanup`).
pub fn remove_all() -> Result<(), IpvsError> {
    match Leftovers::find(Instant::now())? {
        Some(leftovers) => leftovers.remove(&[]),
        None => remove_sets(),
    }
}

fn remove_servers(excluded: &[Prefix]) -> Result<(), IpvsError> {
    let Some(mut ipvs) = Ipvs::open().map_err(IpvsError::Servers)? else {
        return Ok(());
    };
    for server in ipvs.servers().map_err(IpvsError::Servers)? {
        if !excluded.iter().any(|range| range.contains(server.address)) {
            ipvs.delete(&server).map_err(IpvsError::Servers)?;
        }
    }
    Ok(())
}

fn remove_sets() -> Result<(), IpvsError> {
    let mut failed = Ok(());
    let mut sets = match IpSets::open() {
        Ok(sets) => sets,
        Err(error) => return Err(IpvsError::Servers(error.into())),
    };
    for name in SETS.iter().flat_map(|name| names(name)) {
        if let Err(source) = sets.destroy(&name) {
            failed = Err(IpvsError::Set { name, source });
        }
    }
    failed
}

/// The names of a set for IPv4 and IPv6.
fn names(name: &str) -> [String; 2] {
    ["KUBE-", "KUBE-6-"].map(|family| {
        let mut name = format!("{family}{name}");
        name.truncate(LONGEST_SET);
        name
    })
}

/// The connections that IPVS carries, from `/proc/net/ip_vs_conn`: those of TCP that are open, and what a UDP client may
/// still answer.
fn carried(listed: &str) -> usize {
    let fields = listed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let open = fields.filter(|fields| match fields.as_slice() {
        ["TCP", .., state, _expires] => *state == "ESTABLISHED",
        ["UDP", ..] => true,
        _ => false,
    });
    open.count()
}

/// The open connections whose own address is one of these, from `/proc/net/tcp`.
fn sockets_of(listed: &str, addresses: &BTreeSet<IpAddr>) -> usize {
    let open = listed.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, _port) = local.split_once(':')?;
        (state == "01").then(|| address_of(address)).flatten()
    });
    open.filter(|address| addresses.contains(address)).count()
}

/// An address as the kernel prints it there: words of four bytes, each in the processor's order.
fn address_of(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(digits.get(at * 8..at * 8 + 8)?, 16).ok();
    let octets = |at: usize| word(at).map(u32::to_ne_bytes);
    match digits.len() {
        8 => Some(Ipv4Addr::from(octets(0)?).into()),
        32 => {
            let words = [octets(0)?, octets(1)?, octets(2)?, octets(3)?];
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?);
            Some(address.to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_of_ipvs_are_counted_and_closing_ones_are_not() {
        let listed = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n\
             TCP 0A000105 C1F2 0A60000A 0050 0A000106 1F90 ESTABLISHED     897\n\
             TCP 0A000105 C1F3 0A60000A 0050 0A000106 1F90 TIME_WAIT       117\n\
             UDP 0A000105 9C40 0A60000A 0035 0A000107 0035 UDP             297\n";
        assert_eq!(carried(listed), 2);
        assert_eq!(carried(""), 0, "a kernel without IPVS");
    }

    #[test]
    fn sockets_are_counted_by_their_own_address_in_both_forms() {
        let v4 = u32::from_ne_bytes([10, 96, 0, 10]);
        let v6: Vec<u8> = "fd00::a".parse::<Ipv6Addr>().unwrap().octets().to_vec();
        let v6: String = v6
            .chunks(4)
            .map(|word| format!("{:08X}", u32::from_ne_bytes(word.try_into().unwrap())))
            .collect();
        let listed = format!(
            "  sl  local_address rem_address   st\n   0: {v4:08X}:C1F2 00000000:0050 01\n   \
             1: {v4:08X}:0050 00000000:0000 0A\n   2: 0100007F:C1F2 0100007F:0050 01\n   3: {v6}:0016 {v6}:0017 01\n"
        );
        let addresses: BTreeSet<IpAddr> = ["10.96.0.10", "fd00::a"].map(|it| it.parse().unwrap()).into();
        assert_eq!(
            sockets_of(&listed, &addresses),
            2,
            "one listens, one is another's"
        );
    }

    #[test]
    fn names_of_sets_are_those_of_kube_proxy() {
        assert_eq!(names("CLUSTER-IP"), ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"]);
        let cut = names("LOAD-BALANCER-SOURCE-CIDR");
        assert_eq!(cut[1], "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert!(cut.iter().all(|name| name.len() <= LONGEST_SET));
    }
}
