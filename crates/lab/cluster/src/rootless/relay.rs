//! How does the user outside reach what listens inside?

use std::net::{SocketAddr, TcpListener};
use std::os::fd::FromRawFd;
use std::str::FromStr;
use std::time::Duration;
use tokio::net::TcpStream;

/// What `up` is given inside: its place outside and the listeners there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    /// The number of process 1, as it is known outside.
    pub pid: u32,
    server: i32,
    page: i32,
}

impl FromStr for Doors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<i32> = text.split(',').filter_map(|part| part.parse().ok()).collect();
        match *numbers.as_slice() {
            // The first three descriptors are not listeners.
            [pid, server, page] if pid > 0 && server > 2 && page > 2 && server != page => Ok(Self {
                pid: pid.unsigned_abs(),
                server,
                page,
            }),
            _ => Err("a process and two descriptors are expected".to_owned()),
        }
    }
}

impl Doors {
    /// Takes the inherited listeners: the API server's and the page's. May be called once.
    pub fn open(self) -> std::io::Result<[TcpListener; 2]> {
        Ok([adopt(self.server)?, adopt(self.page)?])
    }
}

#[expect(unsafe_code, reason = "an inherited descriptor is only known by its number")]
fn adopt(descriptor: i32) -> std::io::Result<TcpListener> {
    // SAFETY: the process that started us left the descriptor open for us and nobody else here knows it.
    let listener = unsafe { TcpListener::from_raw_fd(descriptor) };
    // Children must not keep the port.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects everybody who comes to the outer listener with the inner address, for ever.
pub async fn relay(outer: TcpListener, inner: SocketAddr) -> std::io::Result<()> {
    let outer = tokio::net::TcpListener::from_std(outer)?;
    loop {
        let Ok((mut from, _)) = outer.accept().await else {
            // Out of descriptors, mostly: others have to close theirs first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(async move {
            // Nobody may serve there yet; the client sees its connection close and tries again.
            if let Ok(mut to) = TcpStream::connect(inner).await {
                let _ = from.set_nodelay(true).and_then(|()| to.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn doors_are_a_process_and_two_descriptors() {
        let doors: Doors = "41,3,4".parse().unwrap();
        assert_eq!(doors.pid, 41);
        for bad in ["", "41,3", "41,3,3", "41,0,4", "-1,3,4", "x,3,4"] {
            assert!(bad.parse::<Doors>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions() {
        let inner = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outer = TcpListener::bind("127.0.0.1:0").unwrap();
        outer.set_nonblocking(true).unwrap();
        let address = outer.local_addr().unwrap();
        let relaying = tokio::spawn(relay(outer, inner.local_addr().unwrap()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        let (mut served, _) = inner.accept().await.unwrap();
        let mut heard = [0; 4];
        served.read_exact(&mut heard).await.unwrap();
        served.write_all(b"pong").await.unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&heard, answer.as_str()), (b"ping", "pong"));
        relaying.abort();
    }
}
