//! What can be asked over HTTP? Health, metrics and the stream of watermarks.

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use ::http::{Request, Response, StatusCode, header};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use jiff::Timestamp;
use pointsman_dataplane::{Progress, Watermark};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use serde_json::json;
use tokio::sync::{broadcast, watch};

use crate::config::Config;
use crate::health::{Health, Question};
use crate::http::{Body, reply};
use crate::metrics::Metrics;

/// Commits that a slow reader of the stream may be behind; older ones are skipped, as a later watermark
/// says all that an earlier one said.
const BEHIND: usize = 1024;
/// The most bytes of lines in one write.
const FRAME: usize = 16 << 10;
/// How often a reader is told of changes that have not reached the kernel.
const PACE: Duration = Duration::from_millis(100);
/// A reader hears from us at least this often, so that silence means that we are gone or hang.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Tells readers of the stream how far the kernel is.
#[derive(Clone, Debug)]
pub(crate) struct Watermarks {
    /// The node's name as a JSON string.
    node: String,
    /// Grows with each start, so that a watermark that goes back after a restart is no lie.
    generation: i64,
    newest: watch::Sender<Option<Progress>>,
    lines: broadcast::Sender<Bytes>,
}

impl Watermarks {
    /// A stream that has nothing to tell yet.
    pub fn new(node: &str, started: Timestamp) -> Self {
        Self {
            node: json!(node).to_string(),
            generation: started.as_microsecond(),
            newest: watch::Sender::new(None),
            lines: broadcast::Sender::new(BEHIND),
        }
    }

    /// Everything up to the watermark is in the kernel, in both families.
    pub fn publish(&self, progress: Progress, clock: Timestamp) {
        self.newest.send_replace(Some(progress));
        // Without readers there is nobody to miss it.
        if self.lines.receiver_count() > 0 {
            let _ = self.lines.send(self.line(progress, clock));
        }
    }

    /// Changes are on their way to the kernel.
    pub fn advance(&self, progress: Progress) {
        self.newest.send_if_modified(|newest| {
            let known = newest.is_some_and(|newest| newest == progress);
            *newest = Some(progress);
            !known
        });
    }

    /// Comes with every commit, so that it is written straight: a tree of values would cost ten times as much.
    fn line(&self, progress: Progress, clock: Timestamp) -> Bytes {
        let Progress {
            received,
            planned,
            committed,
        } = progress;
        let line = format!(
            "{{\"node\":{},\"generation\":{},{},\"planned\":{{{}}},\"received\":{{{}}},\"time\":\"{clock}\"}}\n",
            self.node,
            self.generation,
            Members(committed),
            Members(planned),
            Members(received),
        );
        Bytes::from(line)
    }

    /// The newest line, then one for each commit, for ever. In between come lines of what is still on
    /// its way, and a sign of life.
    fn stream(&self) -> Body {
        let reader = Reader {
            lines: self.lines.subscribe(),
            told: None,
            told_at: None,
            pace: tokio::time::interval(PACE),
            watermarks: self.clone(),
        };
        let lines = stream::unfold(reader, |mut reader| async move {
            let line = reader.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(line)), reader))
        });
        StreamBody::new(lines).boxed_unsync()
    }
}

/// A watermark as members of a JSON object.
struct Members(Watermark);

impl fmt::Display for Members {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marks = [("services", self.0.services), ("endpointSlices", self.0.slices)];
        for (number, (name, mark)) in marks.into_iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match mark {
                Some(revision) => write!(out, "{comma}\"{name}\":{}", revision.0)?,
                None => write!(out, "{comma}\"{name}\":null")?,
            }
        }
        Ok(())
    }
}

/// One reader of the stream.
struct Reader {
    watermarks: Watermarks,
    lines: broadcast::Receiver<Bytes>,
    told: Option<Progress>,
    told_at: Option<tokio::time::Instant>,
    pace: tokio::time::Interval,
}

impl Reader {
    /// Lines that came while an earlier one was being written leave in one write.
    fn gather(&mut self, first: Bytes) -> Bytes {
        let Ok(second) = self.lines.try_recv() else {
            return first;
        };
        let mut lines = [&first[..], &second[..]].concat();
        while lines.len() < FRAME
            && let Ok(line) = self.lines.try_recv()
        {
            lines.extend_from_slice(&line);
        }
        Bytes::from(lines)
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                biased;
                line = self.lines.recv() => match line {
                    Ok(line) => {
                        self.told = *self.watermarks.newest.borrow();
                        self.told_at = Some(tokio::time::Instant::now());
                        return Some(self.gather(line));
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                now = self.pace.tick() => {
                    let newest = *self.watermarks.newest.borrow();
                    let quiet = self.told_at.is_none_or(|at| now.duration_since(at) >= HEARTBEAT);
                    if let Some(progress) = newest.filter(|_| quiet || newest != self.told) {
                        self.told = newest;
                        self.told_at = Some(now);
                        return Some(self.watermarks.line(progress, Timestamp::now()));
                    }
                }
            }
        }
    }
}

/// Answers on the metrics listener.
pub(crate) fn metrics(
    registry: Registry,
    config: &Config,
    watermarks: Watermarks,
) -> impl Fn(&Request<Incoming>) -> Response<Body> + Clone + use<> {
    let mode = config.mode;
    let shown = json!({ "kubeproxy.config.k8s.io": config.shown }).to_string();
    move |request| match request.uri().path() {
        "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, registry.render()),
        "/healthz" | "/livez" => reply(StatusCode::OK, "text/plain", "ok".into()),
        "/proxyMode" => reply(StatusCode::OK, "text/plain", mode.as_str().into()),
        "/configz" => reply(StatusCode::OK, "application/json", shown.clone()),
        "/watermark" => {
            let mut response = Response::new(watermarks.stream());
            let json_lines = ::http::HeaderValue::from_static("application/x-ndjson");
            response.headers_mut().insert(header::CONTENT_TYPE, json_lines);
            response
        }
        // Readers compare it with their own clock, halfway between their question and our answer.
        "/clock" => {
            let clock = json!({ "time": Timestamp::now().to_string() });
            reply(StatusCode::OK, "application/json", clock.to_string())
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

    fn progress(received: u64, committed: u64) -> Progress {
        let watermark = |version: u64| Watermark {
            services: Some(Revision(version)),
            slices: None,
        };
        Progress {
            received: watermark(received),
            planned: watermark(committed),
            committed: watermark(committed),
        }
    }

    async fn next(body: &mut Body) -> serde_json::Value {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(frame.ends_with(b"\n"));
        serde_json::from_slice(&frame).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_gets_the_newest_watermark_and_then_every_commit() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(1, 1), Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(2, 2), Timestamp::UNIX_EPOCH);
        let mut body = watermarks.stream();
        let line = next(&mut body).await;
        assert_eq!(line["services"], 2);
        assert_eq!(line["node"], "n1");
        assert_eq!(line["generation"], 0);
        assert_eq!(line["endpointSlices"], serde_json::Value::Null);
        watermarks.publish(progress(3, 3), Timestamp::UNIX_EPOCH);
        assert_eq!(next(&mut body).await["services"], 3);
    }

    #[tokio::test(start_paused = true)]
    async fn commits_that_a_reader_was_too_slow_for_come_in_one_write() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        let mut body = watermarks.stream();
        for version in 1..=4 {
            watermarks.publish(progress(version, version), Timestamp::UNIX_EPOCH);
        }
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let versions: Vec<u64> = std::str::from_utf8(&frame)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["services"].as_u64().unwrap())
            .collect();
        assert_eq!(versions, [1, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_hears_what_is_stuck_and_signs_of_life() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(1, 1), Timestamp::UNIX_EPOCH);
        let mut body = watermarks.stream();
        assert_eq!(next(&mut body).await["received"]["services"], 1);
        let began = tokio::time::Instant::now();
        watermarks.advance(progress(5, 1));
        let line = next(&mut body).await;
        assert_eq!(
            (&line["services"], &line["received"]["services"]),
            (&1.into(), &5.into())
        );
        assert!(began.elapsed() <= PACE);
        let began = tokio::time::Instant::now();
        assert_eq!(next(&mut body).await["received"], line["received"]);
        assert!(began.elapsed() >= HEARTBEAT);
    }
}
