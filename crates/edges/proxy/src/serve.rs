//! What can be asked over HTTP? Health, metrics and the stream of watermarks.

use std::time::Instant;

use ::http::{Request, Response, StatusCode};
use jiff::Timestamp;
use pointsman_api_client::Rights;
use pointsman_http::{Body, Incoming, reply};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use pointsman_watermarks::Watermarks;
use serde_json::json;
use tokio::sync::watch;

use crate::config::Config;
use crate::health::{Health, Question};
use crate::metrics::Metrics;

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
        "/healthz" | "/livez" => reply(StatusCode::OK, "text/plain", "ok"),
        "/proxyMode" => reply(StatusCode::OK, "text/plain", mode.as_str()),
        "/configz" => reply(StatusCode::OK, "application/json", shown.clone()),
        path => watermarks
            .answer(path)
            .unwrap_or_else(|| reply(StatusCode::NOT_FOUND, "text/plain", "not found")),
    }
}

/// Answers on the health listener.
pub(crate) fn healthz(
    health: watch::Receiver<Health>,
    rights: Rights,
    metrics: Metrics,
) -> impl Fn(&Request<Incoming>) -> Response<Body> + Clone {
    move |request| {
        let (question, count) = match request.uri().path() {
            // Not for load balancers: a node whose proxy lacks a right still serves what it knows.
            "/readyz" if let Some(why) = rights.complaint() => {
                return reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why);
            }
            "/healthz" | "/readyz" => (Question::Healthz, &metrics.healthz),
            "/livez" => (Question::Livez, &metrics.livez),
            _ => return reply(StatusCode::NOT_FOUND, "text/plain", "not found"),
        };
        let answer = health.borrow().answer(question, Instant::now(), Timestamp::now());
        count.with(&[&answer.code.to_string()]).inc();
        let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        reply(code, "application/json", answer.body)
    }
}
