//! Is the proxy keeping up, and which Services have endpoints here?

use std::time::{Duration, Instant};

use pointsman_model::{Address, NodePort};

use crate::state::ServiceState;

/// What a Service's health check node port answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port to listen on.
    pub port: NodePort,
    /// The number of ready local endpoints, each address once; zero means "send traffic elsewhere".
    pub local_endpoints: u32,
}

impl HealthCheck {
    /// The health check of a Service, if it has one.
    pub fn of<A: Address>(state: &ServiceState<A>) -> Option<Self> {
        let port = state.service.health_check()?;
        Some(Self {
            port,
            local_endpoints: state.local_ready,
        })
    }
}

/// Whether the rules of one family follow the cluster: `/livez` and half of `/healthz`.
///
/// Unhealthy means that a change has been waiting for two sync periods. A proxy with nothing to do is
/// healthy for ever.
#[derive(Clone, Copy, Debug)]
pub struct SyncHealth {
    patience: Duration,
    waiting_since: Option<Instant>,
    newest: Option<Instant>,
    last_updated: Option<Instant>,
}

impl SyncHealth {
    /// Health for a given sync period.
    pub fn new(sync_period: Duration) -> Self {
        Self {
            patience: sync_period * 2,
            waiting_since: None,
            newest: None,
            last_updated: None,
        }
    }

    /// A change was queued; the oldest one counts.
    pub fn queued(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
        self.newest = Some(now);
    }

    /// Everything queued up to `started` is in the kernel since `now`. Later changes go on waiting.
    pub fn updated(&mut self, started: Instant, now: Instant) {
        self.last_updated = Some(now);
        let later = self.newest.filter(|newest| *newest > started);
        self.waiting_since = later.and(self.waiting_since).map(|since| since.max(started));
    }

    /// Whether no change has been waiting for too long.
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.waiting_since
            .is_none_or(|since| now.saturating_duration_since(since) < self.patience)
    }

    /// When the kernel was last brought up to date.
    pub fn last_updated(&self) -> Option<Instant> {
        self.last_updated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_proxy_stays_healthy_and_a_stuck_one_does_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = SyncHealth::new(Duration::from_secs(30));
        assert!(health.is_healthy(at(100_000)));
        health.queued(at(10));
        health.queued(at(60));
        assert!(health.is_healthy(at(69)));
        assert!(!health.is_healthy(at(70)), "the oldest change counts");
        health.updated(at(65), at(71));
        assert!(health.is_healthy(at(10_000)));
    }

    #[test]
    fn a_change_that_arrives_during_a_sync_goes_on_waiting() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = SyncHealth::new(Duration::from_secs(30));
        health.queued(at(12));
        health.updated(at(10), at(15));
        assert!(!health.is_healthy(at(72)));
    }
}
