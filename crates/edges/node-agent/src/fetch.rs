//! How does the agent make a plain HTTP request of its own, to a gate or a hook?

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;

/// As much of an answer as anybody reads.
const MAX_BODY: usize = 64 << 10;

/// Gets a URL within a time. The error is one sentence.
pub(crate) async fn get(
    uri: &Uri,
    headers: &[(String, String)],
    within: Duration,
) -> Result<(StatusCode, Bytes), String> {
    match tokio::time::timeout(within, exchange(uri, headers)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer from {uri} within {within:?}")),
    }
}

async fn exchange(uri: &Uri, headers: &[(String, String)]) -> Result<(StatusCode, Bytes), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {uri}: {error}");
    if uri.scheme_str() != Some("http") {
        return Err(format!("{uri} is not an http URL"));
    }
    let host = uri.host().unwrap_or("").trim_matches(['[', ']']);
    let address = (host, uri.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| failed("cannot reach", &error))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("cannot speak to", &error))?;
    tokio::spawn(connection);
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::get(target).header(header::HOST, authority);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed("cannot ask", &error))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| failed("no answer from", &error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BODY)
        .collect()
        .await
        .map_err(|error| failed("cannot read the answer of", &error))?;
    Ok((status, body.to_bytes()))
}
