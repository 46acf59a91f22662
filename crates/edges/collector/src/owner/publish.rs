//! What do people and Prometheus see?

use pointsman_api_client::events::{self, News, Severity};
use pointsman_model::Moment;
use pointsman_protocol::gate::{Outcome, Subject};
use pointsman_protocol::watermark::Resource;
use pointsman_sli::fold::State;
use pointsman_sli::judgement::{self, Circumstances, Judgement};
use pointsman_sli::measure::Sli;
use pointsman_sli::slo::Verdict;
use tokio::time::Instant;

use super::Owner;
use crate::follow::Observation;
use crate::gates::Past;
use crate::now;

impl Owner {
    pub(super) fn open_gates(&mut self) {
        for past in self.gates.open(&mut self.world, Instant::now(), now()) {
            self.metrics.gate(&past);
            let waited_seconds = past.opened.waited.as_secs_f64();
            let outcome = past.opened.outcome.as_str();
            tracing::debug!(
                about = past.gate.about(),
                outcome,
                waited_seconds,
                "a gate opened"
            );
            self.record(&past);
        }
        for (gate, scope) in self.gates.take_reads() {
            let (reader, observed) = (self.reader.clone(), self.observed.clone());
            tokio::spawn(async move {
                let said = reader.read(&scope).await;
                // The owner ends before its helpers.
                let _ = observed.send(Observation::Deletions { gate, said }).await;
            });
        }
        self.metrics.gates.waiting.set(self.gates.waiting().len() as f64);
    }

    /// Writes an event about the object itself. The node agent does so for its own gates that opened well.
    fn record(&self, past: &Past) {
        let opened = &past.opened;
        let severity = match (opened.outcome, &past.gate) {
            (Outcome::Bound, _) => Severity::Warning,
            (Outcome::Everywhere, Subject::Service { .. }) => Severity::Normal,
            _ => return,
        };
        let (kind, uid) = match &past.gate {
            Subject::Pod { pod, uid } => {
                let known = self.world.uid_of(pod).unwrap_or_default();
                ("Pod", if uid.is_empty() { known } else { uid })
            }
            Subject::Service { .. } => ("Service", ""),
        };
        let about = past.gate.about();
        let (namespace, name) = about.split_once('/').unwrap_or(("", about));
        let waited = opened.waited.as_millis();
        let message = match opened.outcome {
            Outcome::Bound if opened.unmarked => {
                format!("stopping after {waited} ms although no slice takes the pod out of use")
            }
            Outcome::Bound => format!(
                "stopping after {waited} ms although these nodes may still send connections: {}",
                opened.behind.join(", ")
            ),
            _ => format!(
                "after {waited} ms every node knows which of its pods are going away; these get new connections \
                 only where no endpoint is ready"
            ),
        };
        let reason = match severity {
            Severity::Warning => "ShutdownGateTimedOut",
            Severity::Normal => "ShutdownGateOpened",
        };
        self.recorder.record(News {
            subject: events::Subject {
                api_version: "v1".into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
                uid: uid.into(),
            },
            severity,
            reason: reason.into(),
            message,
        });
    }

    /// What is true now: whatever is shown is part of it.
    pub fn judge(&self, now: Moment) -> Judgement<'_> {
        judgement::judge(&self.world.fold, self.circumstances(), now)
    }

    pub(super) fn circumstances(&self) -> Circumstances {
        Circumstances {
            listed: self.world.knows_enough(),
            waiting: self.gates.waiting().len(),
        }
    }

    /// Both forms of the SLI, pooled and exact.
    pub fn forms(&self, judgement: &Judgement<'_>, now: Moment) -> [Sli; 2] {
        let telling = self.world.fold.in_state(State::Live, now);
        let unfinished = &judgement.unfinished;
        [
            self.measure.pooled(now, unfinished),
            self.measure.exact(now, telling, unfinished),
        ]
    }

    pub(super) fn remember(&mut self, wall: Moment) {
        let [pooled, _] = self.forms(&self.judge(wall), wall);
        self.history.step(wall, pooled.p99);
        self.publish_sli(wall);
    }

    /// Brings the gauges up to date.
    pub(super) fn publish(&self, wall: Moment) {
        let (fold, metrics) = (&self.world.fold, &self.metrics);
        for resource in Resource::ALL {
            let name = [resource.as_str()];
            metrics
                .streams
                .lowest
                .with(&name)
                .set(fold.lowest(resource).unwrap_or(0) as f64);
            let most = fold.reached_by(resource, 0.99).unwrap_or(0);
            metrics.streams.most.with(&name).set(most as f64);
        }
        let programmers = &metrics.streams.programmers;
        for state in State::ALL {
            let count = fold.in_state(state, wall);
            programmers.with(&[state.as_str()]).set(count as f64);
        }
        let plain = self.followed.values().filter(|followed| followed.plain).count();
        programmers.with(&["plain"]).set(plain as f64);
        metrics.sli.evicted.set(fold.evicted() as f64);
        let judgement = self.judge(wall);
        metrics.sli.open.set(judgement.open.len() as f64);
        metrics.streams.lagging.set(judgement.behind.len() as f64);
    }

    fn publish_sli(&self, wall: Moment) {
        let metrics = &self.metrics;
        let forms = self.forms(&self.judge(wall), wall);
        for (form, sli) in ["pooled", "exact"].into_iter().zip(forms) {
            for (quantile, value) in [("0.5", sli.p50), ("0.9", sli.p90), ("0.99", sli.p99)] {
                let seconds = value.map_or(f64::NAN, |value| {
                    value.high.map_or(f64::INFINITY, |high| high.as_secs_f64())
                });
                metrics.sli.latency.with(&[form, quantile]).set(seconds);
            }
            metrics.sli.coverage.with(&[form]).set(sli.coverage);
            metrics.sli.window_samples.with(&[form]).set(sli.samples as f64);
        }
        let day = self.measure.day();
        let figure = day.figure().and_then(|figure| figure.high);
        metrics
            .sli
            .day_figure
            .set(figure.map_or(f64::NAN, |figure| figure.as_secs_f64()));
        metrics.sli.day_coverage.set(day.coverage());
        metrics.sli.objective.set(day.objective().as_secs_f64());
        for verdict in [Verdict::Met, Verdict::Missed, Verdict::Quiet, Verdict::Unknown] {
            let is = f64::from(u8::from(day.verdict() == verdict));
            metrics.sli.day_verdict.with(&[verdict.as_str()]).set(is);
        }
        let offsets = self
            .followed
            .values()
            .filter_map(|followed| followed.clock.offset());
        let (mut ahead, mut error) = (0.0f64, 0.0f64);
        for offset in offsets {
            ahead = ahead.max(offset.ahead.unsigned_abs() as f64 / 1e6);
            error = error.max(offset.error.as_secs_f64());
        }
        metrics.streams.clock_ahead.set(ahead);
        metrics.streams.clock_error.set(error);
    }
}
