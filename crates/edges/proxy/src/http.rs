//! How are the small HTTP servers of the proxy run?

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::TcpListener;

/// Any body we send.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How long to wait before trying again to listen (upstream's number).
const LISTEN_RETRY: Duration = Duration::from_secs(5);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Whether a wildcard address of IPv6 takes connections of IPv4 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wildcard {
    BothFamilies,
    OwnFamily,
}

/// Listens on an address.
pub(crate) fn bind_listener(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
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
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Listens and answers; tries again for ever if the address is taken.
pub(crate) async fn listen_and_serve(
    address: SocketAddr,
    what: &'static str,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    loop {
        match bind_listener(address, Wildcard::BothFamilies) {
            Ok(listener) => return serve(listener, what, answer).await,
            Err(error) => tracing::warn!(%address, %error, "cannot listen for {what}, trying again"),
        }
        tokio::time::sleep(LISTEN_RETRY).await;
    }
}

/// Answers until the task ends.
pub(crate) async fn serve(
    listener: TcpListener,
    what: &'static str,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving {what}");
    }
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A line of the stream would wait until the reader has acknowledged the one before it.
        let _ = stream.set_nodelay(true);
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

/// A whole answer.
pub(crate) fn reply(code: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}
