//! How do connections end whose other side is on a node that is gone?
//!
//! The kernel answers their packets with a reset ([`Resets::answer_for`]). A client that only waits sends none, so it is
//! made to ([`Waker`]): a SYN/ACK on the connection's way back belongs to no connection that is open, and by RFC 5961 the
//! client says with an acknowledgement where the connection stands. That packet meets the reset, which therefore carries
//! the number that the client expects; nobody has to guess it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use pointsman_dataplane::ProgramError;
use pointsman_model::{Address, IpFamily};
use pointsman_netlink::conntrack::{Flow, Tuple};
use pointsman_netlink_io::{Buffers, Client, Conntrack, RequestError};
pub use pointsman_nft::LASTING;
use pointsman_nft::{RESETS, family, reset_connections, resets_sent};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, sendto, socket_with};

use crate::commits::{Commits, NF_TABLES, unreadable};

const TCP: u8 = 6;
/// Packets with headers of our own; the number of no protocol.
const RAW: u32 = 255;
const SYN_ACK: u8 = 0x12;

/// The table that answers, of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct Resets {
    client: Client,
    commits: Commits,
}

impl Resets {
    /// Connects to the kernel.
    pub fn open(commits: Commits) -> Result<Self, ProgramError> {
        let client = Client::open(Buffers::default()).map_err(|error| ProgramError::Missing {
            program: NF_TABLES.to_owned(),
            source: io::Error::other(error),
        })?;
        Ok(Self { client, commits })
    }

    /// Answers packets to these pods for [`LASTING`] from now on, and to no others. Returns whether anything was written.
    pub fn answer_for<A: Address>(&mut self, pods: &BTreeSet<A>) -> Result<bool, ProgramError> {
        if pods.is_empty() && !self.is_there::<A>()? {
            return Ok(false);
        }
        let transaction = reset_connections(pods);
        let Self { client, commits } = self;
        commits
            .making(|| client.commit(std::slice::from_ref(&transaction), None))
            .map_err(|error| ProgramError::Io {
                program: NF_TABLES.to_owned(),
                source: io::Error::other(error),
            })?;
        Ok(true)
    }

    /// How many packets were answered since [`Resets::answer_for`] last wrote.
    pub fn sent<A: Address>(&mut self) -> Result<u64, ProgramError> {
        if !self.is_there::<A>()? {
            return Ok(0);
        }
        let rules = self.client.rules(family::<A>(), &RESETS).map_err(unreadable)?;
        let rules: Vec<_> = rules.into_iter().map(|(rule, _)| rule).collect();
        Ok(resets_sent(&rules))
    }

    fn is_there<A: Address>(&mut self) -> Result<bool, ProgramError> {
        let tables = self.client.tables(family::<A>()).map_err(unreadable)?;
        Ok(tables.iter().any(|table| table.name == RESETS))
    }
}

/// Makes clients that wait for somebody on a node that is gone send a packet.
#[derive(Debug)]
pub struct Waker {
    flows: Conntrack,
    socket: OwnedFd,
    family: IpFamily,
}

impl Waker {
    /// Connects to the connection tracker, and opens a socket for which CAP_NET_RAW is needed.
    pub fn open(family: IpFamily) -> io::Result<Self> {
        let domain = match family {
            IpFamily::V4 => AddressFamily::INET,
            IpFamily::V6 => AddressFamily::INET6,
        };
        let protocol = std::num::NonZeroU32::new(RAW).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(domain, SocketType::RAW, flags, protocol);
        Ok(Self {
            flows: Conntrack::open(Buffers::default()).map_err(io::Error::other)?,
            socket: socket?,
            family,
        })
    }

    /// Wakes the clients of these pods; returns how many there are. The kernel walks all flows once, so this belongs on
    /// a thread of its own.
    pub fn wake<A: Address>(&mut self, pods: &BTreeSet<A>) -> Result<usize, RequestError> {
        let family = match self.family {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        };
        let like = Tuple {
            protocol: TCP,
            ..Tuple::default()
        };
        let (mut woken, socket) = (0, &self.socket);
        self.flows.visit(family, &like, &mut |flow| {
            let Some([from, to]) = way_back(&flow) else { return };
            if A::narrow(from.ip()).is_some_and(|from| pods.contains(&from)) {
                // What cannot be sent now is lost, as it can be on the way; there is a next time.
                let to_host = SocketAddr::new(to.ip(), 0);
                let sent = sendto(socket, &syn_ack(from, to), SendFlags::empty(), &to_host);
                woken += usize::from(sent.is_ok());
            }
        })?;
        Ok(woken)
    }
}

/// From whom and to whom the answers of a connection go.
fn way_back(flow: &Flow) -> Option<[SocketAddr; 2]> {
    let Tuple {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
    } = flow.reply;
    (protocol == TCP).then_some(())?;
    Some([
        SocketAddr::new(source?, source_port?),
        SocketAddr::new(destination?, destination_port?),
    ])
}

/// The packet with its header. The kernel adds the checksum of the header of IPv4.
fn syn_ack(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut tcp = [0u8; 20];
    tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    // The header's length in words of four bytes; sequence numbers do not matter.
    tcp[12] = 5 << 4;
    tcp[13] = SYN_ACK;
    let addresses: Vec<u8> = [from.ip(), to.ip()]
        .iter()
        .flat_map(|address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        })
        .collect();
    let sum = checksum(&[&addresses, &[0, TCP, 0, tcp.len() as u8], &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut packet = match from.ip() {
        IpAddr::V4(_) => {
            let mut header = vec![0u8; 12];
            header[0] = 4 << 4 | 5;
            header[3] = 40;
            header[8] = 64;
            header[9] = TCP;
            header
        }
        IpAddr::V6(_) => {
            let mut header = vec![0u8; 8];
            header[0] = 6 << 4;
            header[5] = tcp.len() as u8;
            header[6] = TCP;
            header[7] = 64;
            header
        }
    };
    packet.extend(addresses);
    packet.extend(tcp);
    packet
}

/// The checksum of the Internet over parts that each have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = pairs
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
