//! How are counters that rules name made and read?

use pointsman_netlink::accounting::{packets, wire};
use pointsman_netlink::netlink::{Errno, Header, Writer, flags};

use crate::socket::{Buffers, RequestError, Socket, SocketError};

/// A connection to the counters (nfacct) of the network namespace it was opened in.
#[derive(Debug)]
pub struct Accounting {
    socket: Socket,
}

impl Accounting {
    /// Connects from the calling thread's network namespace.
    pub fn open() -> Result<Self, SocketError> {
        let buffers = Buffers {
            send: 4 << 10,
            receive: 64 << 10,
        };
        Ok(Self {
            socket: Socket::netfilter(buffers)?,
        })
    }

    /// Whether rules may name counters: asks for the match, which the kernel then loads.
    pub fn rules_may_count(&mut self) -> bool {
        let body = |w: &mut Writer| {
            w.text(wire::COMPAT_NAME, "nfacct");
            w.u32_be(wire::COMPAT_REVISION, 0);
            w.u32_be(wire::COMPAT_KIND, 0);
        };
        let header = Header {
            // Matches are looked for by family; this one is the same for both.
            family: 2,
            ..header(wire::COMPAT_SUBSYSTEM, wire::COMPAT_GET, 0)
        };
        self.socket.request(header, body, &mut |_| Ok(())).is_ok()
    }

    /// Makes a counter, unless it is there.
    pub fn ensure(&mut self, name: &str) -> Result<(), RequestError> {
        let header = header(wire::SUBSYSTEM, wire::NEW, flags::CREATE | flags::EXCLUSIVE);
        let body = |w: &mut Writer| w.text(wire::NAME, name);
        match self.socket.request(header, body, &mut |_| Ok(())) {
            Err(RequestError::Refused { errno: Errno::EXIST }) => Ok(()),
            // Before Linux 3.16 one that is in use is called busy.
            Err(RequestError::Refused { errno: Errno::BUSY }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The packets that were counted; `None` if there is no such counter.
    pub fn read(&mut self, name: &str) -> Result<Option<u64>, RequestError> {
        let mut counted = None;
        let body = |w: &mut Writer| w.text(wire::NAME, name);
        let header = header(wire::SUBSYSTEM, wire::GET, 0);
        let asked = self.socket.request(header, body, &mut |message| {
            counted = Some(packets(message)?);
            Ok(())
        });
        match asked {
            Ok(_) => Ok(counted),
            Err(RequestError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn header(subsystem: u16, kind: u16, flags: u16) -> Header {
    Header {
        kind: subsystem << 8 | kind,
        flags,
        sequence: 0,
        family: 0,
        version: 0,
        resource: 0,
    }
}
