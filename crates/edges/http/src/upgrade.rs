//! How does a connection become a stream of bytes that is no HTTP?

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, Sleep, sleep};

use crate::Body;

/// How long a stream may be silent (the kubelet's number).
pub const IDLE: Duration = Duration::from_secs(4 * 3600);

/// Bytes in both directions, which end when none have come or gone for a time.
pub struct Upgraded {
    stream: TokioIo<hyper::upgrade::Upgraded>,
    idle: Duration,
    deadline: Pin<Box<Sleep>>,
}

/// What was asked for in place of HTTP, if anything, as in `Upgrade: websocket`.
pub fn asked_for(headers: &HeaderMap) -> Option<&str> {
    let lists = headers.get_all(header::CONNECTION).iter();
    let mut options = lists
        .filter_map(|list| list.to_str().ok())
        .flat_map(|list| list.split(','));
    options
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
        .then(|| headers.get(header::UPGRADE)?.to_str().ok())
        .flatten()
}

/// Says yes to an upgrade. What follows is in the [`OnUpgrade`] of the request.
pub fn switching(protocol: &HeaderValue) -> Response<Body> {
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, protocol.clone());
    response
}

/// The stream, once the answer that says yes has been sent or received.
pub async fn upgraded(upgrade: OnUpgrade, idle: Duration) -> io::Result<Upgraded> {
    let stream = upgrade.await.map_err(io::Error::other)?;
    Ok(Upgraded {
        stream: TokioIo::new(stream),
        idle,
        deadline: Box::pin(sleep(idle)),
    })
}

/// Passes bytes on, both ways, until both sides have ended or one has failed.
pub async fn tunnel(mut one: Upgraded, mut other: Upgraded) -> io::Result<()> {
    copy_bidirectional(&mut one, &mut other).await.map(drop)
}

impl Upgraded {
    /// Fails what still waits when nothing has happened for too long.
    fn watched<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            let deadline = Instant::now() + self.idle;
            self.deadline.as_mut().reset(deadline);
            return poll;
        }
        let over = self.deadline.as_mut().poll(context);
        over.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watched(context, poll)
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
