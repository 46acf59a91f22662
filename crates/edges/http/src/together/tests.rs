use super::*;
use crate::gathered::Gathered;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{oneshot, watch};

/// Counts what would be system calls.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

/// A body that says `line` whenever the number changes.
fn watching(
    changes: watch::Receiver<u32>,
    line: Bytes,
) -> impl hyper::body::Body<Data = Bytes, Error = Infallible> {
    StreamBody::new(futures::stream::unfold(
        (changes, line),
        |(mut changes, line)| async {
            changes.changed().await.ok()?;
            Some((Ok(Frame::data(line.clone())), (changes, line)))
        },
    ))
}

#[tokio::test]
async fn one_change_for_many_watches_is_a_few_writes() {
    const WATCHES: usize = 50;
    let (near, far) = tokio::io::duplex(1 << 20);
    let (writes, (change, changes)) = (Arc::new(AtomicUsize::new(0)), watch::channel(0));
    let streams = Streams::default();
    let service = service_fn(move |_: Request<Incoming>| {
        let body = watching(changes.clone(), Bytes::from(vec![b'x'; 600]));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let stream = TokioIo::new(Gathered::new(Counted(far, writes.clone())));
    let mut builder = Builder::new(streams.clone()).http2_only();
    builder.http2().max_concurrent_streams(100);
    let connection = builder.serve_connection(stream, service).into_owned();
    let serving = tokio::spawn(Together::new(connection, streams));
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near))
            .await
            .unwrap();
    let client_side = tokio::spawn(connection);
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let request = Request::get("http://a/").body(Empty::<Bytes>::new()).unwrap();
        watches.push(client.send_request(request).await.unwrap().into_body());
    }
    for round in 1..=3 {
        let before = writes.load(Ordering::Relaxed);
        change.send_replace(round);
        for watch in &mut watches {
            let line = watch.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(line.len(), 600);
        }
        let needed = writes.load(Ordering::Relaxed) - before;
        assert!(needed <= 5, "{needed} writes for {WATCHES} watches");
    }
    serving.abort();
    client_side.abort();
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_ends() {
    struct Ended(Arc<AtomicBool>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    let (held, (started, starts)) = (Ended(ended.clone()), oneshot::channel());
    let answer = tokio::spawn(apart(async move {
        started.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(held);
    }));
    starts.await.unwrap();
    answer.abort();
    while !ended.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
}
