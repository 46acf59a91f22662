//! What can be asked over HTTP? Health, metrics and the stream of watermarks.

use std::convert::Infallible;
use std::time::Instant;

use ::http::{Request, Response, StatusCode, header};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use jiff::Timestamp;
use pointsman_dataplane::Watermark;
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use serde_json::json;
use tokio::sync::{broadcast, watch};

use crate::config::Mode;
use crate::health::{Health, Question};
use crate::http::{Body, reply};
use crate::metrics::Metrics;

/// Commits that a slow reader of the stream may be behind; older ones are skipped, as a later watermark
/// says all that an earlier one said.
const BEHIND: usize = 1024;

/// Tells readers of the stream how far the kernel is.
#[derive(Clone, Debug)]
pub(crate) struct Watermarks {
    node: String,
    newest: watch::Sender<Bytes>,
    lines: broadcast::Sender<Bytes>,
}

impl Watermarks {
    /// A stream that has nothing to tell yet.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            newest: watch::Sender::new(Bytes::new()),
            lines: broadcast::Sender::new(BEHIND),
        }
    }

    /// Everything up to the watermark is in the kernel, in both families.
    pub fn publish(&self, watermark: Watermark, clock: Timestamp) {
        let line = json!({
            "node": self.node,
            "services": watermark.services.map(|revision| revision.0),
            "endpointSlices": watermark.slices.map(|revision| revision.0),
            "time": clock.to_string(),
        });
        let line = Bytes::from(format!("{line}\n"));
        self.newest.send_replace(line.clone());
        // Without readers there is nobody to miss it.
        let _ = self.lines.send(line);
    }

    /// The newest line, then one for each commit, for ever.
    fn stream(&self) -> Body {
        let lines = self.lines.subscribe();
        let newest = self.newest.borrow().clone();
        let first = (!newest.is_empty()).then_some(newest);
        let rest = stream::unfold((first, lines), |(mut first, mut lines)| async move {
            let line = match first.take() {
                Some(line) => line,
                None => loop {
                    match lines.recv().await {
                        Ok(line) => break line,
                        Err(broadcast::error::RecvError::Lagged(_)) => {}
                        Err(broadcast::error::RecvError::Closed) => return None,
                    }
                },
            };
            Some((Ok::<_, Infallible>(Frame::data(line)), (None, lines)))
        });
        StreamBody::new(rest).boxed_unsync()
    }
}

/// Answers on the metrics listener.
pub(crate) fn metrics(
    registry: Registry,
    mode: Mode,
    watermarks: Watermarks,
) -> impl Fn(&Request<Incoming>) -> Response<Body> + Clone {
    move |request| match request.uri().path() {
        "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, registry.render()),
        "/healthz" | "/livez" => reply(StatusCode::OK, "text/plain", "ok".into()),
        "/proxyMode" => reply(StatusCode::OK, "text/plain", mode.as_str().into()),
        "/watermark" => {
            let mut response = Response::new(watermarks.stream());
            let json_lines = ::http::HeaderValue::from_static("application/x-ndjson");
            response.headers_mut().insert(header::CONTENT_TYPE, json_lines);
            response
        }
        _ => reply(StatusCode::NOT_FOUND, "text/plain", "not found".into()),
    }
}

/// Answers on the health listener.
pub(crate) fn healthz(
    health: watch::Receiver<Health>,
    metrics: Metrics,
) -> impl Fn(&Request<Incoming>) -> Response<Body> + Clone {
    move |request| {
        let (question, count) = match request.uri().path() {
            "/healthz" => (Question::Healthz, &metrics.healthz),
            "/livez" => (Question::Livez, &metrics.livez),
            _ => return reply(StatusCode::NOT_FOUND, "text/plain", "not found".into()),
        };
        let answer = health.borrow().answer(question, Instant::now(), Timestamp::now());
        count.with(&[&answer.code.to_string()]).inc();
        let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        reply(code, "application/json", answer.body)
    }
}

#[cfg(test)]
mod tests {
    use pointsman_model::Revision;

    use super::*;

    fn watermark(version: u64) -> Watermark {
        Watermark {
            services: Some(Revision(version)),
            slices: None,
        }
    }

    #[tokio::test]
    async fn a_reader_gets_the_newest_watermark_and_then_every_commit() {
        let watermarks = Watermarks::new("n1");
        watermarks.publish(watermark(1), Timestamp::UNIX_EPOCH);
        watermarks.publish(watermark(2), Timestamp::UNIX_EPOCH);
        let mut body = watermarks.stream();
        watermarks.publish(watermark(3), Timestamp::UNIX_EPOCH);
        watermarks.publish(watermark(4), Timestamp::UNIX_EPOCH);
        for version in 2..=4 {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let line: serde_json::Value = serde_json::from_slice(&frame).unwrap();
            assert_eq!(line["services"], version);
            assert_eq!(line["node"], "n1");
            assert!(frame.ends_with(b"\n"));
        }
    }
}
