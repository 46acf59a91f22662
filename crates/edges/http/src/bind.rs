//! Which addresses does a socket listen on?

use std::io;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with, sockopt};
use tokio::net::TcpListener;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Whether a wildcard address of IPv6 takes connections of IPv4 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    BothFamilies,
    OwnFamily,
}

/// Listens on an address, whatever the system's default for wildcards is.
pub fn bind(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, wildcard == Wildcard::OwnFamily)?;
    }
    rustix::net::bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}
