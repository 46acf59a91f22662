//! `pointsman node --probe-only`: sub-second readiness beside a kubelet.

use crate::shutdown::run_until_signal;
use anyhow::Context;
use pointsman_api_client::connect::connect;
use pointsman_api_client::{Rights, Source};
use pointsman_http::{
    Connections, Incoming, Limits, Request, Server, StatusCode, Wildcard, bind, reply, text,
};
use pointsman_probe_only::{Config, run as run_prober};
use pointsman_telemetry::{BuildInfo, CONTENT_TYPE, Registry, register_process};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Probes the pods that ask for it until a signal stops it.
pub async fn run(config: Config, source: &Source, listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let client = connect(source, "pointsman-probe-only").await?;
    let registry = Registry::new();
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        revision: "",
        role: "probe-only",
    };
    register_process(&registry, build);
    client.rights().register(&registry);
    if let Some(address) = listen {
        let listener =
            bind(address, Wildcard::BothFamilies).with_context(|| format!("listening on {address}"))?;
        tokio::spawn(serve(listener, registry.clone(), client.rights()));
    }
    run_until_signal(|stopping| run_prober(config, client, &registry, stopping)).await
}

/// Answers `/metrics`, `/healthz` and `/readyz`.
async fn serve(listener: TcpListener, registry: Registry, rights: Rights) {
    let slots = Connections::register(&registry).slots("metrics", Limits::default());
    let connected = move |_: &_| {
        let (registry, rights) = (registry.clone(), rights.clone());
        move |request: Request<Incoming>| {
            std::future::ready(match request.uri().path() {
                "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, registry.render()),
                "/readyz" if let Some(why) = rights.complaint() => text(StatusCode::SERVICE_UNAVAILABLE, why),
                "/healthz" | "/livez" | "/readyz" => text(StatusCode::OK, "ok"),
                _ => text(StatusCode::NOT_FOUND, "not found"),
            })
        }
    };
    let server = Server {
        slots,
        ..Server::default()
    };
    server.serve_forever(listener, connected).await;
}
