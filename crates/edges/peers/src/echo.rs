//! How does an ICMP echo request go out, and which answers are to ours?

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto, socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Header and payload of a request; with the header of IPv4 that is 36 bytes.
const LENGTH: usize = 16;
/// Packets that are read in a row at most, so that a flood does not stop the asking.
const BATCH: usize = 64;

/// A socket for echo requests of one family.
///
/// Where the kernel lets this process's group ask (`net.ipv4.ping_group_range`) it sorts the answers out itself;
/// otherwise the socket is a raw one, which needs CAP_NET_RAW.
pub(crate) struct Echo {
    socket: AsyncFd<OwnedFd>,
    v6: bool,
    /// Tells our requests from those of others; nobody off the path can guess it.
    nonce: u32,
    sequence: u16,
}

impl Echo {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open(v6: bool) -> io::Result<Self> {
        let (family, protocol) = match v6 {
            true => (AddressFamily::INET6, ipproto::ICMPV6),
            false => (AddressFamily::INET, ipproto::ICMP),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = |kind| socket_with(family, kind, flags, Some(protocol));
        let socket = open(SocketType::DGRAM).or_else(|_| open(SocketType::RAW))?;
        #[expect(
            unsafe_code,
            reason = "the descriptor has to stay open, and its owner is given away here"
        )]
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self {
            socket,
            v6,
            nonce: fastrand::u32(..),
            sequence: 0,
        })
    }

    /// Asks. What cannot be sent now is lost, as on the way.
    pub fn ask(&mut self, address: IpAddr, now: Duration) {
        self.sequence = self.sequence.wrapping_add(1);
        let packet = request(self.v6, self.nonce, self.sequence, now);
        let to = SocketAddr::new(address, 0);
        let _ = sendto(self.socket.as_fd(), &packet, SendFlags::empty(), &to);
    }

    /// Waits until something can be read.
    pub async fn readable(&self) {
        if let Ok(mut ready) = self.socket.readable().await {
            ready.retain_ready();
        }
    }

    /// Hands over whoever answered, and when it was asked.
    pub fn read(&mut self, now: Duration, mut answered: impl FnMut(IpAddr, Duration)) {
        let mut buffer = [0; 128];
        for _ in 0..BATCH {
            let read = self.socket.try_io(Interest::READABLE, |socket| {
                Ok(recvfrom(socket, &mut buffer, RecvFlags::empty())?)
            });
            let (length, from) = match read {
                Ok((length, _, Some(from))) => (length, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Errors of earlier requests, such as "no route", come this way too.
                Ok(_) | Err(_) => continue,
            };
            let Ok(from) = SocketAddr::try_from(from) else {
                continue;
            };
            if let Some(sent) = answer(&buffer[..length], self.v6, self.nonce, now) {
                answered(from.ip(), sent);
            }
        }
    }
}

fn request(v6: bool, nonce: u32, sequence: u16, now: Duration) -> [u8; LENGTH] {
    let mut packet = [0; LENGTH];
    packet[0] = if v6 { 128 } else { 8 };
    packet[4..6].copy_from_slice(&nonce.to_be_bytes()[..2]);
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    packet[8..12].copy_from_slice(&nonce.to_be_bytes());
    // It wraps after 71 minutes, long after the last answer.
    packet[12..].copy_from_slice(&(now.as_micros() as u32).to_be_bytes());
    if !v6 {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// When the request was sent that this packet answers, if it is an answer to one of ours.
fn answer(packet: &[u8], v6: bool, nonce: u32, now: Duration) -> Option<Duration> {
    // A raw socket of IPv4 shows the packet's header as well.
    let header = match packet.first()? {
        first if !v6 && first >> 4 == 4 => usize::from(first & 0x0f) * 4,
        _ => 0,
    };
    let packet = packet.get(header..)?;
    let payload: [u8; 8] = packet.get(8..LENGTH)?.try_into().ok()?;
    if packet[0] != if v6 { 129 } else { 0 } || payload[..4] != nonce.to_be_bytes() {
        return None;
    }
    let sent = u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]);
    let ago = (now.as_micros() as u32).wrapping_sub(sent);
    now.checked_sub(Duration::from_micros(ago.into()))
}

/// The checksum of RFC 1071.
fn checksum(packet: &[u8]) -> u16 {
    let words = packet.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_when_it_was_asked_for_and_garbage_tells_nothing() {
        let (sent, now) = (
            Duration::from_micros(5_000_000_123),
            Duration::from_micros(5_000_004_000),
        );
        for v6 in [false, true] {
            let mut packet = request(v6, 7, 1, sent).to_vec();
            assert_eq!(answer(&packet, v6, 7, now), None, "a request of our own");
            packet[0] = if v6 { 129 } else { 0 };
            assert_eq!(answer(&packet, v6, 7, now), Some(sent));
            assert_eq!(answer(&packet, v6, 8, now), None, "of another process");
            if !v6 {
                let raw = [&[0x45; 20][..], &packet].concat();
                assert_eq!(answer(&raw, v6, 7, now), Some(sent));
            }
            for length in 0..packet.len() {
                assert_eq!(answer(&packet[..length], v6, 7, now), None);
            }
        }
        let packet = request(false, 7, 1, sent);
        assert_eq!(
            checksum(&packet),
            0,
            "a packet with its own checksum sums up to nothing"
        );
    }

    #[test]
    fn an_answer_names_its_ask_by_the_clock_that_asks_are_made_with() {
        let start = tokio::time::Instant::now();
        for _ in 0..100 {
            let sent = crate::ask::since(start);
            let mut packet = request(true, 7, 1, sent);
            packet[0] = 129;
            assert_eq!(answer(&packet, true, 7, crate::ask::since(start)), Some(sent));
        }
    }
}
