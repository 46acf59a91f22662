//! How does a programmer tell collectors how far it is?
//!
//! A proxy is a programmer, and so is whoever else acts on Services and slices: [`Watermarks`] streams what it has done,
//! line by line, to everybody who reads.

use std::time::Duration;

use futures::{Stream, stream};
use jiff::Timestamp;
use pointsman_http::{Body, Bytes, Response, StatusCode, reply};
use pointsman_protocol::clock;
use pointsman_protocol::watermark::{self, HEARTBEAT, Progress};
use tokio::sync::{broadcast, watch};

/// Commits that a slow reader of the stream may be behind; older ones are skipped, as a later watermark
/// says all that an earlier one said.
const BEHIND: usize = 1024;
/// The most bytes of lines in one write.
const FRAME: usize = 16 << 10;
/// How often a reader gets lines about changes that are still on their way.
const PACE: Duration = Duration::from_millis(100);

/// Shows readers of the stream how far a programmer is.
#[derive(Clone, Debug)]
pub struct Watermarks {
    encoder: watch::Sender<watermark::Encoder>,
    newest: watch::Sender<Option<Progress>>,
    lines: broadcast::Sender<Bytes>,
}

impl Watermarks {
    /// A stream without lines yet.
    pub fn new(node: &str, started: Timestamp) -> Self {
        Self {
            encoder: watch::Sender::new(encoder(node, started)),
            newest: watch::Sender::new(None),
            lines: broadcast::Sender::new(BEHIND),
        }
    }

    /// Versions begin anew: the API server was restored to an older one, and earlier lines say nothing about it.
    pub fn begin_again(&self, node: &str, started: Timestamp) {
        self.encoder.send_replace(encoder(node, started));
    }

    /// Everything up to the watermark is where it is to be.
    pub fn publish(&self, progress: Progress, clock: Timestamp) {
        self.newest.send_replace(Some(progress));
        // Without readers there is nobody to miss it.
        if self.lines.receiver_count() > 0 {
            let _ = self.lines.send(self.line(progress, clock));
        }
    }

    /// Changes are on their way.
    pub fn advance(&self, progress: Progress) {
        self.newest.send_if_modified(|newest| {
            let known = newest.is_some_and(|newest| newest == progress);
            *newest = Some(progress);
            !known
        });
    }

    fn line(&self, progress: Progress, clock: Timestamp) -> Bytes {
        let mut line = String::with_capacity(256);
        self.encoder.borrow().encode(progress, clock.into(), &mut line);
        line.into()
    }

    /// The answer to a request of a collector; none if the path is for somebody else.
    pub fn answer(&self, path: &str) -> Option<Response<Body>> {
        match path {
            watermark::PATH => Some(pointsman_http::stream(watermark::CONTENT_TYPE, self.stream())),
            clock::PATH => {
                let time = clock::encode(Timestamp::now().into());
                Some(reply(StatusCode::OK, "application/json", time))
            }
            _ => None,
        }
    }

    /// The newest line, then one for each commit, for ever. In between come lines of what is still on
    /// its way, and a sign of life.
    fn stream(&self) -> impl Stream<Item = Bytes> + Send + use<> {
        let reader = Reader {
            lines: self.lines.subscribe(),
            sent: None,
            sent_at: None,
            pace: tokio::time::interval(PACE),
            watermarks: self.clone(),
        };
        stream::unfold(reader, |mut reader| async move {
            let line = reader.next().await?;
            Some((line, reader))
        })
    }
}

/// One reader of the stream.
struct Reader {
    watermarks: Watermarks,
    lines: broadcast::Receiver<Bytes>,
    sent: Option<Progress>,
    sent_at: Option<tokio::time::Instant>,
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
                        self.sent = *self.watermarks.newest.borrow();
                        self.sent_at = Some(tokio::time::Instant::now());
                        return Some(self.gather(line));
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                now = self.pace.tick() => {
                    let newest = *self.watermarks.newest.borrow();
                    let quiet = self.sent_at.is_none_or(|at| now.duration_since(at) >= HEARTBEAT);
                    if let Some(progress) = newest.filter(|_| quiet || newest != self.sent) {
                        self.sent = newest;
                        self.sent_at = Some(now);
                        return Some(self.watermarks.line(progress, Timestamp::now()));
                    }
                }
            }
        }
    }
}

fn encoder(node: &str, started: Timestamp) -> watermark::Encoder {
    watermark::Encoder::new(node, started.as_microsecond())
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use pointsman_model::Revision;
    use pointsman_protocol::watermark::Watermark;

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

    async fn next(lines: &mut (impl Stream<Item = Bytes> + Unpin)) -> serde_json::Value {
        let line = lines.next().await.unwrap();
        assert!(line.ends_with(b"\n"));
        serde_json::from_slice(&line).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_gets_the_newest_watermark_and_then_every_commit() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(1, 1), Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(2, 2), Timestamp::UNIX_EPOCH);
        let mut body = Box::pin(watermarks.stream());
        let line = next(&mut body).await;
        assert_eq!(line["services"], 2);
        assert_eq!(line["node"], "n1");
        assert_eq!(line["generation"], 0);
        assert_eq!(line["endpointSlices"], serde_json::Value::Null);
        watermarks.publish(progress(3, 3), Timestamp::UNIX_EPOCH);
        assert_eq!(next(&mut body).await["services"], 3);
        watermarks.begin_again("n1", Timestamp::from_microsecond(7).unwrap());
        watermarks.publish(progress(1, 1), Timestamp::UNIX_EPOCH);
        let line = next(&mut body).await;
        assert_eq!((&line["services"], &line["generation"]), (&1.into(), &7.into()));
    }

    #[tokio::test(start_paused = true)]
    async fn commits_that_a_reader_was_too_slow_for_come_in_one_write() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        let mut body = Box::pin(watermarks.stream());
        for version in 1..=4 {
            watermarks.publish(progress(version, version), Timestamp::UNIX_EPOCH);
        }
        let frame = body.next().await.unwrap();
        let versions: Vec<u64> = std::str::from_utf8(&frame)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["services"].as_u64().unwrap())
            .collect();
        assert_eq!(versions, [1, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_sees_what_is_stuck_and_heartbeats() {
        let watermarks = Watermarks::new("n1", Timestamp::UNIX_EPOCH);
        watermarks.publish(progress(1, 1), Timestamp::UNIX_EPOCH);
        let mut body = Box::pin(watermarks.stream());
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
