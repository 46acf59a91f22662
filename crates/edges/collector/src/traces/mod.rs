//! Where do traces of changes go?
//!
//! To an OTLP receiver over HTTP, in batches. A bounded queue lies between: whoever counts changes never waits for the
//! receiver, and what does not fit is dropped and counted.

mod messages;
mod spans;

use std::time::Duration;

use pointsman_http::{StatusCode, Target};
use pointsman_sli::fold::{Change, Fold};
use pointsman_sli::sample::Sampling;
use pointsman_telemetry::{Counter, Family};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use messages::{ExportRequest, Resource, ResourceSpans, Scope, ScopeSpans};
use spans::{Traced, text};

pub(crate) use spans::TraceId;

/// Changes that may wait for the receiver.
const QUEUE: usize = 1024;
/// Changes in one request, and how long the first of them waits for others.
const BATCH: usize = 64;
const GATHER: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(5);
/// A receiver that is away or overloaded is asked again after these pauses.
const AGAIN: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// Where receivers take traces, by the specification.
const PATH: &str = "/v1/traces";

/// The way of traces into the queue.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: mpsc::Sender<Traced>,
    sampling: Sampling,
    seed: u64,
    results: Family<Counter>,
}

impl Traces {
    /// The queue, and what empties it towards a receiver until the queue is closed.
    pub fn new(
        target: Target,
        sampling: Sampling,
        results: Family<Counter>,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        for result in ["sent", "dropped", "failed"] {
            results.with(&[result]);
        }
        let (queue, waiting) = mpsc::channel(QUEUE);
        let export = export(target, waiting, results.clone());
        let traces = Self {
            queue,
            sampling,
            seed: fastrand::u64(..),
            results,
        };
        (traces, export)
    }

    /// A change is everywhere; says its trace if it gets one.
    pub fn offer(&self, change: &Change, fold: &Fold, objective: Duration) -> Option<TraceId> {
        if !self.sampling.keeps(change, objective) {
            return None;
        }
        let name = |id| fold.programmer(id).map(|programmer| programmer.name.clone());
        let id = TraceId::new(self.seed, change);
        let traced = Traced {
            id,
            nodes: change
                .commits
                .iter()
                .filter_map(|(node, at)| Some((name(*node)?, *at)))
                .collect(),
            last: change.last.and_then(name),
            slow: change.all?.since(change.began()) > objective,
            change: change.clone(),
        };
        match self.queue.try_send(traced) {
            Ok(()) => Some(id),
            Err(_) => {
                self.results.with(&["dropped"]).inc();
                None
            }
        }
    }
}

async fn export(target: Target, mut waiting: mpsc::Receiver<Traced>, results: Family<Counter>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut complained = false;
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        // Those that come soon go along.
        let _ = timeout(GATHER, async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if waiting.recv_many(&mut batch, room).await == 0 {
                    break;
                }
            }
        })
        .await;
        let count = batch.len() as u64;
        let sent = send(&target, request(&batch).encode_to_vec()).await;
        batch.clear();
        let result = if sent.is_ok() { "sent" } else { "failed" };
        results.with(&[result]).add(count);
        match sent {
            Err(why) if !complained => tracing::warn!(receiver = ?target, why, "cannot send traces"),
            Ok(()) if complained => tracing::info!(receiver = ?target, "traces are sent again"),
            _ => {}
        }
        complained = result == "failed";
    }
}

/// Sends one request, again where the receiver may take it later.
async fn send(target: &Target, body: Vec<u8>) -> Result<(), String> {
    let mut pauses = AGAIN.iter();
    loop {
        let answer = target
            .post(PATH, "application/x-protobuf", body.clone(), WITHIN)
            .await;
        let why = match answer {
            Ok(status) if status.is_success() => return Ok(()),
            Ok(status) if !is_temporary(status) => return Err(format!("the receiver answers {status}")),
            Ok(status) => format!("the receiver answers {status}"),
            Err(error) => error.to_string(),
        };
        match pauses.next() {
            Some(pause) => sleep(*pause).await,
            None => return Err(why),
        }
    }
}

/// As the specification says.
fn is_temporary(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn request(batch: &[Traced]) -> ExportRequest {
    let version = env!("CARGO_PKG_VERSION");
    let resource = Resource {
        attributes: vec![
            text("service.name", "pointsman-sli"),
            text("service.version", version),
        ],
    };
    let scope = Scope {
        name: "pointsman.sli".into(),
        version: version.into(),
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: batch.iter().flat_map(spans::spans).collect(),
    };
    ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![scope_spans],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sli::fold::Limits;
    use pointsman_telemetry::{Definition, Registry};

    #[test]
    fn a_receiver_that_takes_nothing_holds_nobody_up() {
        let results = Registry::new().counters(Definition::new("traces_total", "h").labels(&["result"]));
        let target = Target::parse("http://127.0.0.1:9").unwrap();
        let (traces, _never_polled) = Traces::new(target, Sampling { share: 1.0 }, results.clone());
        let fold = Fold::new(Limits::default());
        let change = spans::tests::traced([1, 2, 3, 4], true, &[]).change;
        let offer = |_| traces.offer(&change, &fold, Duration::from_secs(1));
        let taken = (0..QUEUE + 500).filter_map(offer).count();
        assert_eq!(taken, QUEUE);
        assert_eq!(results.with(&["dropped"]).get(), 500);
    }
}
