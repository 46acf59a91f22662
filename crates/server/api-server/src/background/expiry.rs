//! Forgets what is old: events after their time, and history that nobody can still need.

use super::internal;
use crate::server::Server;
use crate::write::delete::{DeleteOptions, delete_object};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::kinds;
use pointsman_rules::value::str_at;
use pointsman_store::Revision;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often events are looked over.
const EVENT_SWEEP: Duration = Duration::from_secs(60);

/// Deletes events that nobody has added to for `ttl`. Works for ever.
pub async fn expire_events(server: Arc<Server>, ttl: Duration) {
    let kind = &kinds::EVENT;
    loop {
        tokio::time::sleep(EVENT_SWEEP.min(ttl)).await;
        let now = Timestamp::now();
        let events = server
            .cache
            .of(kind)
            .list("", None, server.cache.applied())
            .objects;
        for event in events
            .into_iter()
            .filter(|event| expired(&event.value(), now, ttl))
        {
            let request = internal(Method::DELETE, kind, event.namespace(), Some(event.name()));
            if let Err(error) = delete_object(&server, &request, event, &DeleteOptions::default()).await {
                tracing::debug!(%error, "cannot delete an expired event yet");
            }
        }
    }
}

/// Whether the event's last sign of life is older than `ttl`.
///
/// All times but the first are the client's. One further ahead than `ttl` is no clock's and does not count, so that
/// no event stays for longer than three times that after it was last written.
fn expired(event: &Value, now: Timestamp, ttl: Duration) -> bool {
    let paths: [&[&str]; 4] = [
        &["metadata", "creationTimestamp"],
        &["lastTimestamp"],
        &["eventTime"],
        &["series", "lastObservedTime"],
    ];
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    let ages = paths
        .iter()
        .filter_map(|path| str_at(event, path).parse::<Timestamp>().ok())
        .map(|time| now.duration_since(time))
        .filter(|age| *age >= -ttl);
    ages.min().is_some_and(|age| age > ttl)
}

/// Compacts the store so that `keep` of history stays. Works for ever.
pub async fn compact(server: Arc<Server>, keep: Duration) {
    // Where the store was at past moments, oldest first.
    let mut marks: VecDeque<(Instant, Revision)> = VecDeque::new();
    let step = (keep / 10).max(Duration::from_millis(100));
    loop {
        let applied = server.cache.applied();
        // A restored store is at an older revision than before.
        marks.retain(|(_, revision)| *revision <= applied);
        marks.push_back((Instant::now(), applied));
        tokio::time::sleep(step).await;
        let mut target = None;
        while let Some((_, revision)) = marks.front().filter(|(at, _)| at.elapsed() >= keep) {
            target = Some(*revision);
            marks.pop_front();
        }
        let Some(revision) = target.filter(|revision| revision.0 > 0) else {
            continue;
        };
        let started = Instant::now();
        match server.store.compact(revision).await {
            Ok(()) => server.metrics.store_took("compact", started.elapsed()),
            // Another server that shares the store was here before.
            Err(pointsman_store::StoreError::Compacted { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, revision = revision.0, "cannot compact the store");
                continue;
            }
        }
        server.compacted.store(revision.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_expires_after_its_last_sign_of_life() {
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        let old = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(expired(&old, now, hour));
        let mut seen_again = old.clone();
        seen_again["series"] = json!({"lastObservedTime": "2026-01-01T01:30:00.000001Z"});
        assert!(!expired(&seen_again, now, hour));
        assert!(!expired(&json!({}), now, hour));
    }

    #[test]
    fn an_event_with_a_future_time_expires() {
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        let event = |created: &str, field: &str, time: &str| json!({"metadata": {"creationTimestamp": created}, field: time});
        for field in ["lastTimestamp", "eventTime"] {
            // No clock is a year ahead: only the server's own time counts.
            let far = "2027-01-01T00:00:00Z";
            assert!(expired(&event("2026-01-01T00:00:00Z", field, far), now, hour));
            assert!(!expired(&event("2026-01-01T01:30:00Z", field, far), now, hour));
            // A clock that is somewhat ahead still tells that the event is in use.
            let near = event("2026-01-01T00:00:00Z", field, "2026-01-01T02:10:00Z");
            assert!(!expired(&near, now, hour));
            assert!(expired(&near, now + SignedDuration::from_mins(71), hour));
        }
    }
}
