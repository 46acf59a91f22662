//! How is a table of the older iptables interface read?
//!
//! Whole, by a socket option; a part cannot be asked for. Reading changes nothing, but asking for a table that is not there
//! makes the kernel load it: whoever asks has to know that it is.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use pointsman_netlink::netlink::Errno;
use pointsman_netlink::xtables::{ENTRIES_HEADER, INFO_BYTES, Info, NAME_BYTES};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, which IPv6 shares.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// How often reading begins again because somebody replaced the table meanwhile.
const ATTEMPTS: u32 = 20;

/// The tables of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct Tables {
    socket: OwnedFd,
    level: libc::c_int,
}

/// A table as it was read.
#[derive(Debug)]
pub struct Read {
    pub info: Info,
    bytes: Vec<u8>,
}

impl Read {
    pub fn entries(&self) -> &[u8] {
        &self.bytes[ENTRIES_HEADER..]
    }
}

impl Tables {
    /// Needs CAP_NET_ADMIN once it reads.
    pub fn open(is_v4: bool) -> io::Result<Self> {
        let (family, level) = match is_v4 {
            true => (AddressFamily::INET, libc::SOL_IP),
            false => (AddressFamily::INET6, libc::SOL_IPV6),
        };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, level })
    }

    /// Reads a table that is there.
    pub fn read(&self, table: &str) -> io::Result<Read> {
        for _ in 0..ATTEMPTS {
            let mut info = named(table, INFO_BYTES)?;
            self.ask(GET_INFO, &mut info)?;
            let info = Info::decode(&info).map_err(io::Error::other)?;
            let mut bytes = named(table, ENTRIES_HEADER + info.size as usize)?;
            bytes[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&info.size.to_ne_bytes());
            match self.ask(GET_ENTRIES, &mut bytes) {
                Ok(()) => return Ok(Read { info, bytes }),
                // It has another size by now.
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.0) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the table was replaced whenever it was read"))
    }

    #[expect(unsafe_code, reason = "no safe wrapper reads these options")]
    fn ask(&self, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
        let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open for the call, and the kernel writes at most `length` bytes to `buffer`.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level,
                option,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        match status {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A buffer that begins with the name of a table.
fn named(table: &str, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let name = buffer.get_mut(..table.len()).filter(|_| table.len() < NAME_BYTES);
    let name = name.ok_or_else(|| io::Error::other("no table has such a long name"))?;
    name.copy_from_slice(table.as_bytes());
    Ok(buffer)
}
