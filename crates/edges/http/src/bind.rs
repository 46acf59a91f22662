//! Which addresses does a socket listen on?

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with, sockopt};
use tokio::net::TcpListener;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Which connections a wildcard address takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    /// Those of IPv4 and IPv6, whichever of `0.0.0.0` and `[::]` was written, as in Go and so in all of Kubernetes.
    BothFamilies,
    OwnFamily,
}

/// Listens on an address, whatever the system's default for wildcards is.
pub fn bind(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
    let socket = first_possible(&candidates(address, wildcard), |address| {
        open(address, wildcard == Wildcard::OwnFamily)
    })?;
    TcpListener::from_std(socket.into())
}

/// The addresses to listen on, the first that the machine can.
fn candidates(address: SocketAddr, wildcard: Wildcard) -> Vec<SocketAddr> {
    if wildcard == Wildcard::BothFamilies && address.ip().is_unspecified() {
        let port = address.port();
        vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ]
    } else {
        vec![address]
    }
}

/// Goes on to the next address only where the machine does not have the family at all.
fn first_possible<T>(
    addresses: &[SocketAddr],
    open: impl Fn(SocketAddr) -> Result<T, Errno>,
) -> io::Result<T> {
    let mut outcome = Err(Errno::AFNOSUPPORT);
    for address in addresses {
        outcome = open(*address);
        if !matches!(outcome, Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) {
            break;
        }
    }
    Ok(outcome?)
}

fn open(address: SocketAddr, own_family: bool) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, own_family)?;
    }
    rustix::net::bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn either_wildcard_takes_connections_of_both_families() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind(wildcard.parse().unwrap(), Wildcard::BothFamilies).unwrap();
            let port = listener.local_addr().unwrap().port();
            for host in ["127.0.0.1", "::1"] {
                let connected = TcpStream::connect((host, port)).await;
                assert!(connected.is_ok(), "{host} of {wildcard}: {connected:?}");
            }
        }
    }

    #[tokio::test]
    async fn one_family_leaves_the_port_of_the_other_free() {
        let six = bind("[::]:0".parse().unwrap(), Wildcard::OwnFamily).unwrap();
        let port = six.local_addr().unwrap().port();
        let four = (Ipv4Addr::UNSPECIFIED, port).into();
        assert!(bind(four, Wildcard::OwnFamily).is_ok());
        assert!(
            bind(four, Wildcard::BothFamilies).is_err(),
            "a taken port is not half taken"
        );
    }

    #[test]
    fn a_machine_without_ipv6_listens_on_ipv4() {
        let without = |address: SocketAddr| match address {
            SocketAddr::V4(_) => Ok(address),
            SocketAddr::V6(_) => Err(Errno::AFNOSUPPORT),
        };
        let asked: SocketAddr = "0.0.0.0:80".parse().unwrap();
        let addresses = candidates(asked, Wildcard::BothFamilies);
        assert_eq!(first_possible(&addresses, without).unwrap(), asked);
    }
}
