//! What does an answer look like?

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

/// Any body that is sent.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A whole answer.
pub fn reply(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    respond(code, content_type, Full::new(body.into()).boxed_unsync())
}

/// A short text.
pub fn text(code: StatusCode, body: impl Into<String>) -> Response<Body> {
    reply(code, "text/plain; charset=utf-8", body.into())
}

/// An answer that goes on for as long as the stream does.
pub fn stream(
    content_type: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
    respond(
        StatusCode::OK,
        content_type,
        StreamBody::new(frames).boxed_unsync(),
    )
}

/// The answer to HEAD. Over HTTP/1 hyper leaves the body out, over HTTP/2 it does not, and clients end the stream.
pub(crate) fn without_body<B: hyper::body::Body>(response: Response<B>) -> Response<Body> {
    let length = response.body().size_hint().exact();
    let mut response = response.map(|_| Full::default().boxed_unsync());
    if let Some(length) = length {
        let headers = response.headers_mut();
        headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    response
}

fn respond(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let plain = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, plain);
    response
}
