//! How does a browser get the page, and its updates?

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use http::{HeaderValue, Response, StatusCode, header};
use pointsman_http::{Body, Bytes, reply, text};
use tokio::sync::{mpsc, oneshot, watch};

use crate::owner::Request;

/// A stream without changes says this often that it is still there.
const STILL_THERE: Duration = Duration::from_secs(15);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Files of the page, which is part of the program and loads nothing from elsewhere.
const ASSETS: [(&str, &str, &[u8]); 8] = [
    ("/", HTML, include_bytes!("../assets/index.html")),
    ("/page.css", CSS, include_bytes!("../assets/page.css")),
    ("/page.js", SCRIPT, include_bytes!("../assets/page.js")),
    ("/dom.js", SCRIPT, include_bytes!("../assets/dom.js")),
    ("/chart.js", SCRIPT, include_bytes!("../assets/chart.js")),
    ("/lists.js", SCRIPT, include_bytes!("../assets/lists.js")),
    ("/waterfall.js", SCRIPT, include_bytes!("../assets/waterfall.js")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
];

/// What the page may do: talk to us, and nothing else.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src 'self'; \
    style-src 'self'; script-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
pub(crate) fn asset(path: &str) -> Response<Body> {
    let path = if path == "/index.html" { "/" } else { path };
    match ASSETS.iter().find(|(name, ..)| *name == path) {
        Some((_, content_type, bytes)) => {
            let mut response = reply(StatusCode::OK, content_type, Bytes::from_static(bytes));
            let policy = HeaderValue::from_static(POLICY);
            response
                .headers_mut()
                .insert(header::CONTENT_SECURITY_POLICY, policy);
            response
        }
        None => text(StatusCode::NOT_FOUND, "not found"),
    }
}

/// Asks the owner for a document; `None` if it is gone.
pub(crate) async fn ask<T>(
    requests: &mpsc::Sender<Request>,
    question: impl FnOnce(oneshot::Sender<T>) -> Request,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    requests.send(question(reply)).await.ok()?;
    answer.await.ok()
}

/// The state now and whenever it changes, as server-sent events named `state`.
pub(crate) async fn events(
    mut page: watch::Receiver<Arc<str>>,
    requests: mpsc::Sender<Request>,
) -> Response<Body> {
    page.mark_unchanged();
    let first = ask(&requests, Request::State).await.unwrap_or_default();
    let states = stream::unfold(
        (Some(first), page, requests),
        |(mut first, mut page, owner)| async move {
            let text = match first.take() {
                Some(first) => event(&first),
                None => match tokio::time::timeout(STILL_THERE, page.changed()).await {
                    Err(_) if owner.is_closed() => return None,
                    Err(_) => ": still there\n\n".to_owned(),
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => event(&page.borrow_and_update()),
                },
            };
            Some((Bytes::from(text), (None, page, owner)))
        },
    );
    pointsman_http::stream("text/event-stream", states)
}

fn event(json: &str) -> String {
    format!("event: state\ndata: {json}\n\n")
}
