//! Did the API server answer, so that nodes could report at all?
//!
//! While the API server is away no node can renew its lease, and once it is back all of them look silent
//! for a moment. So the server is asked for a trifle every monitor period: time in which it gave no
//! answer counts against nobody, and nothing is decided until it answers again. (Upstream relies on
//! losing its leadership in such a case.)

use super::Edge;
use super::reporting::CONFIG_MAPS;
use super::settings::{NAME, NAMESPACE};
use crate::writer::Writers;
use pointsman_api_client::{ApiError, Recovery};
use serde::de::IgnoredAny;
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the check.
pub(super) struct ServerCheck {
    edge: Edge,
    clock: Answers,
    next: Duration,
    pub writers: Writers<bool>,
}

/// When the server last answered.
#[derive(Debug, Default)]
struct Answers {
    last: Duration,
}

impl Answers {
    /// Whether no answer came for two periods.
    fn missing(&self, now: Duration, period: Duration) -> bool {
        now.saturating_sub(self.last) > period * 2
    }

    /// An answer came; returns for how long there was none, if that was too long.
    fn came(&mut self, now: Duration, period: Duration) -> Option<Duration> {
        let missing = self.missing(now, period);
        let silence = now.saturating_sub(std::mem::replace(&mut self.last, now));
        missing.then_some(silence)
    }
}

impl ServerCheck {
    pub fn new(edge: Edge) -> Self {
        Self {
            edge,
            clock: Answers::default(),
            next: Duration::ZERO,
            writers: Writers::new(1),
        }
    }

    /// All first lists are complete, so the server answers.
    pub fn begin(&mut self, now: Duration) {
        self.clock.last = now;
    }

    /// Whether nothing may be decided, because no node could report lately.
    pub fn is_away(&self, now: Duration, period: Duration) -> bool {
        self.clock.missing(now, period)
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.writers.has_room().then_some(self.next)
    }

    /// Asks, if it is time to.
    pub fn start(&mut self, now: Duration, period: Duration) {
        if self.writers.has_room() && now >= self.next {
            self.next = now + period;
            self.writers.start(ask(self.edge.clone()));
        }
    }

    /// Takes in an answer; returns for how long no node could report, if that was too long.
    pub fn finish(&mut self, answered: bool, now: Duration, period: Duration) -> Option<Duration> {
        if !answered {
            return None;
        }
        let outage = self.clock.came(now, period);
        if let Some(outage) = outage {
            tracing::warn!(
                seconds = outage.as_secs_f64(),
                "the API server answers again; silence meanwhile counts against no node"
            );
        }
        outage
    }
}

async fn ask(edge: Edge) -> bool {
    let api = edge.client.api(CONFIG_MAPS, Some(NAMESPACE));
    let answer = tokio::time::timeout(PATIENCE, api.get::<IgnoredAny>(NAME)).await;
    match answer {
        Ok(Ok(_) | Err(ApiError::NotFound(_))) => true,
        Ok(Err(error)) => !matches!(error.recovery(), Recovery::Retry(_)),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(5);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn short_pauses_are_nothing_and_long_ones_are_told_in_full() {
        let mut answers = Answers::default();
        assert_eq!(answers.came(s(5), PERIOD), None);
        assert_eq!(answers.came(s(14), PERIOD), None);
        assert!(!answers.missing(s(24), PERIOD));
        assert!(answers.missing(s(25), PERIOD));
        assert_eq!(answers.came(s(60), PERIOD), Some(s(46)));
        assert!(!answers.missing(s(60), PERIOD));
    }
}
