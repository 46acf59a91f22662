//! How do the parts of the role start and end?

use std::io;
use std::net::SocketAddr;

use pointsman_api_client::{Client, ConnectError, Resource, Scope, Watcher, connect};
use pointsman_guard::{Guard, Shown, TlsError};
use pointsman_http::{Wildcard, bind};
use pointsman_objects::{EndpointSlice, Service};
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::listen::{self, Desk};
use crate::metrics::Metrics;
use crate::owner::{INBOX, Input, Owner};
use crate::upstream::{self, Forwarder};

/// Why the role gave up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Metrics cannot be protected.
    #[error("metrics cannot be served")]
    Guard(#[source] TlsError),
    /// There is no usable configuration of the connection.
    #[error("no connection to an API server can be set up")]
    Connect(#[from] ConnectError),
    /// An address cannot be listened on.
    #[error("listening on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// A part ended by a fault of ours.
    #[error("a part of the DNS server ended unexpectedly")]
    Ended,
}

/// Runs until `stop` turns true. Metrics go to `registry`, which is also served.
pub async fn run(
    config: Config,
    registry: Registry,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RunError> {
    let client = connect::connect(&config.source, "pointsman-dns").await?;
    register_process(
        &registry,
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: "",
            role: "dns",
        },
    );
    client.rights().register(&registry);
    let metrics = Metrics::new(&registry);
    let client = client.measured_by(metrics.api.clone());
    let owner = Owner::new(&config.domain, metrics.clone());
    let mut tasks = JoinSet::new();
    let servers = watch::Sender::new(upstream::first(&config.upstream, &config.listen).await);
    let desk = Desk {
        known: owner.known(),
        forwarder: Forwarder::new(servers.subscribe(), metrics.clone()),
        metrics,
    };
    tasks.spawn(upstream::keep(
        config.upstream.clone(),
        config.listen.clone(),
        servers,
    ));
    for address in &config.listen {
        listen_on(*address, &desk, &mut tasks).map_err(|source| RunError::Listen {
            address: *address,
            source,
        })?;
    }
    if let Some(address) = config.metrics_listen {
        let watermarks = owner.watermarks();
        let shown = Shown {
            registry,
            ready: owner.ready(),
            unready: "not all names are known yet",
            rights: client.rights(),
            more: move |path: &str| watermarks.answer(path),
        };
        let listener =
            bind(address, Wildcard::BothFamilies).map_err(|source| RunError::Listen { address, source })?;
        let guard = Guard::new(&config.guard, address, "pointsman-dns", &client).map_err(RunError::Guard)?;
        tracing::info!(%address, "serving health and metrics");
        tasks.spawn(shown.serve(listener, guard));
    }
    let (sender, inbox) = mpsc::channel(INBOX);
    start_watches(&mut tasks, &client, sender);
    tracing::info!(domain = config.domain, "starting");
    tasks.spawn(owner.run(inbox));
    let ended = tokio::select! {
        ended = tasks.join_next() => ended,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    if let Some(Err(error)) = ended {
        tracing::error!(%error, "a part of the DNS server ended unexpectedly");
    }
    Err(RunError::Ended)
}

fn listen_on(address: SocketAddr, desk: &Desk, tasks: &mut JoinSet<()>) -> io::Result<()> {
    let listener = bind(address, Wildcard::BothFamilies)?;
    let socket = listen::bind_udp(address)?;
    tracing::info!(%address, "answering over UDP and TCP");
    tasks.spawn(listen::udp(socket, desk.clone()));
    tasks.spawn(listen::tcp(listener, desk.clone()));
    Ok(())
}

fn start_watches(tasks: &mut JoinSet<()>, client: &Client, sender: mpsc::Sender<Vec<Input>>) {
    let services = Watcher::<Service>::new(client.clone(), Scope::all(Resource::SERVICES));
    tasks.spawn(services.forward_together(sender.clone(), |event| Some(Input::Service(event))));
    let slices = Watcher::<EndpointSlice>::new(client.clone(), Scope::all(Resource::ENDPOINT_SLICES));
    tasks.spawn(slices.forward_together(sender, |event| Some(Input::Slice(event))));
}
