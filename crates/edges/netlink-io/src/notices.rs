//! Who says that somebody committed to nf_tables?
//!
//! The kernel does, to everybody who joined the group, once the commit is in force.

use pointsman_netlink::netlink::Messages;
use pointsman_netlink::nft::Notice;

use crate::socket::{Buffers, Received, Socket, SocketError};

/// The group of nf_tables (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;

/// The commits of the network namespace it was opened in.
#[derive(Debug)]
pub struct Notices {
    socket: Socket,
}

impl Notices {
    /// Begins to follow; needs CAP_NET_ADMIN in the namespace.
    pub fn open(buffers: Buffers) -> Result<Self, SocketError> {
        let socket = Socket::netfilter(buffers)?;
        socket.join(GROUP)?;
        Ok(Self { socket })
    }

    /// Waits for notices and hands over all that have come. After [`SocketError::Overrun`] some are missing, and so are
    /// those of messages that cannot be read; they are counted.
    pub fn next(&mut self, mut each: impl FnMut(Notice)) -> Result<usize, SocketError> {
        let mut unreadable = 0;
        let mut take = |datagram: &[u8]| {
            for message in Messages::new(datagram) {
                match message.and_then(|message| Notice::decode(&message)) {
                    Ok(Some(notice)) => each(notice),
                    Ok(None) => {}
                    Err(_) => unreadable += 1,
                }
            }
        };
        if let Received::Datagram(datagram) = self.socket.wait()? {
            take(datagram);
        }
        while let Received::Datagram(datagram) = self.socket.receive()? {
            take(datagram);
        }
        Ok(unreadable)
    }
}
