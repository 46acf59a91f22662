//! How do connections come in, how many at once, and what happens to them at the end?

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Out of descriptors, most likely: some are given back in this time.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs `connection` for each accepted connection until `stop`, at most `most` at a time; others wait in
/// the kernel's queue. Whoever is in that queue at the end has connected and is taken in as well. Returns
/// what is still open then; dropping it, or this future, ends all connections.
pub async fn accept<C>(
    listener: TcpListener,
    most: usize,
    stop: impl Future<Output = ()>,
    mut connection: impl FnMut(TcpStream, SocketAddr) -> C,
) -> JoinSet<()>
where
    C: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            accepted = listener.accept(), if open.len() < most => match accepted {
                Ok((stream, from)) => {
                    open.spawn(begin(stream, from, &mut connection));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = open.join_next() => {}
            () = &mut stop => break,
        }
    }
    let Ok(listener) = listener.into_std() else {
        return open;
    };
    while let Ok((stream, from)) = listener.accept() {
        if let Ok(stream) = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream))
        {
            open.spawn(begin(stream, from, &mut connection));
        }
    }
    open
}

fn begin<C>(
    stream: TcpStream,
    mut from: SocketAddr,
    connection: &mut impl FnMut(TcpStream, SocketAddr) -> C,
) -> C {
    // A small answer would wait until the one before it is acknowledged.
    let _ = stream.set_nodelay(true);
    // A client of IPv4 at a socket for both families is who it would be at one of its own.
    from.set_ip(from.ip().to_canonical());
    connection(stream, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{Notify, oneshot};

    #[tokio::test]
    async fn no_more_connections_than_allowed_are_served_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let seen = most.clone();
        let server = tokio::spawn(accept(
            listener,
            3,
            std::future::pending(),
            move |mut stream, _| {
                let (now, most) = (now.clone(), most.clone());
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    stream.read_u8().await.unwrap();
                    now.fetch_sub(1, Ordering::SeqCst);
                    let _ = stream.write_u8(1).await;
                }
            },
        ));
        let mut clients = JoinSet::new();
        for _ in 0..12 {
            clients.spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_u8(0).await.unwrap();
                stream.read_u8().await.unwrap()
            });
        }
        assert_eq!(clients.join_all().await, [1; 12]);
        assert!(seen.load(Ordering::SeqCst) <= 3);
        server.abort();
    }

    #[tokio::test]
    async fn whoever_connected_before_the_end_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let release = Arc::new(Notify::new());
        let released = release.clone();
        let server = tokio::spawn(accept(
            listener,
            1,
            async move { drop(stopped.await) },
            move |mut stream, _| {
                let released = released.clone();
                async move {
                    released.notified().await;
                    let _ = stream.write_u8(7).await;
                }
            },
        ));
        // The second one waits in the kernel's queue, as only one at a time is served.
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        let open = server.await.unwrap();
        assert!(
            TcpStream::connect(address).await.is_err(),
            "nobody listens any more"
        );
        release.notify_one();
        assert_eq!(first.read_u8().await.unwrap(), 7);
        release.notify_one();
        assert_eq!(second.read_u8().await.unwrap(), 7);
        open.join_all().await;
    }
}
