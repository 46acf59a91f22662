//! Who says that somebody committed to nf_tables?
//!
//! The kernel does, to everybody who joined the group, once the commit is in force.

use std::os::fd::{AsFd, BorrowedFd};

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

    /// Hands over all that have come, without waiting. After [`SocketError::Overrun`] some are missing, and so are those of
    /// messages that cannot be read; they are counted.
    pub fn read(&mut self, mut each: impl FnMut(Notice)) -> Result<usize, SocketError> {
        let mut unreadable = 0;
        while let Received::Datagram(datagram) = self.socket.receive()? {
            for message in Messages::new(datagram) {
                match message.and_then(|message| Notice::decode(&message)) {
                    Ok(Some(notice)) => each(notice),
                    Ok(None) => {}
                    Err(_) => unreadable += 1,
                }
            }
        }
        Ok(unreadable)
    }
}

/// Readable once notices have come.
impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
