//! How do the parts of a proxy start and end?

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::http::{Request, Response};
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Client, ConnectError, Event, Resource, Scope, Watcher, connect};
use pointsman_dataplane::{Restores, convert};
use pointsman_guard::{Guard, TlsError};
use pointsman_http::{Body, Connections, Incoming, Limits, Wildcard, bind};
use pointsman_kernel::Mode;
use pointsman_kernel::features::{Unsupported, probe_nftables};
use pointsman_model::{Feature, Interner};
use pointsman_objects::{Node, compact, names};
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use pointsman_watermarks::Watermarks;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::http::{Door, listen_and_serve, serve};
use crate::metrics::Metrics;
use crate::owner::{INBOX, Input, Owner};
use crate::read;
use crate::serve::{healthz, metrics};
use crate::worker::Chain;

/// Why a proxy gave up.
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
    /// The system does not let us start.
    #[error("starting the threads that write rules")]
    Start(#[source] io::Error),
    /// The kernel cannot do what the mode needs.
    #[error(
        "nftables mode cannot work here; --proxy-mode=iptables can, or allow it with --nftables-fallback=iptables"
    )]
    Unsupported(#[source] Unsupported),
    /// A part ended by a fault of ours.
    #[error("a part of the proxy ended unexpectedly")]
    Ended,
}

/// Runs until `stop` turns true. The rules stay in the kernel. Metrics go to `registry`, which is also
/// served.
pub async fn run(
    mut config: Config,
    registry: Registry,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RunError> {
    config.mode = possible_mode(&config).await?;
    let client = connect::connect(&config.source, "pointsman-proxy").await?;
    register_process(
        &registry,
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: "",
            role: "proxy",
        },
    );
    client.rights().register(&registry);
    let measured = Metrics::new(&registry, config.mode);
    let client = client.measured_by(measured.requests.clone());
    let peers = measured.peers.clone();
    for (gate, stage, on) in [
        (
            Feature::MinimizeIPTablesRestore,
            "",
            config.restores == Restores::Minimal,
        ),
        (
            Feature::KubeProxyNFTablesLocalhostNodePorts,
            "ALPHA",
            config.nftables_localhost_node_ports,
        ),
    ] {
        measured
            .features
            .with(&[gate.name(), stage])
            .set(f64::from(u8::from(on)));
    }
    let watermarks = Watermarks::new(&config.node, jiff::Timestamp::now());
    let (sender, reports) = mpsc::unbounded_channel();
    let component = match config.observe {
        true => "pointsman-observer",
        false => "pointsman-proxy",
    };
    let (events, writing_events) = Recorder::new(client.clone(), component);
    let owner = Owner::start(
        config.clone(),
        measured.clone(),
        watermarks.clone(),
        sender,
        events,
    )
    .map_err(RunError::Start)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(writing_events);
    let connections = Connections::register(&registry);
    if let Some(address) = config.metrics {
        let slots = connections.slots("metrics", Limits::default());
        let door = |address| -> Result<Door, RunError> {
            let guard = Guard::new(&config.guard, address, &config.node, &client).map_err(RunError::Guard)?;
            let (slots, guard) = (Arc::clone(&slots), Some(guard));
            Ok(Door { slots, guard })
        };
        let answer = metrics(registry, &config, watermarks);
        // Scripts and `explain` ask there, as they would ask kube-proxy.
        if let Some(local) = loopback_beside(address).filter(|_| !config.observe) {
            tasks.spawn(listen_and_serve(local, "metrics", door(local)?, answer.clone()));
        }
        listen(&mut tasks, address, &config, "metrics", door(address)?, answer)?;
    }
    if let Some(address) = config.healthz {
        let door = Door {
            slots: connections.slots("health", Limits::default()),
            guard: None,
        };
        let answer = healthz(owner.health(), client.rights(), measured);
        listen(&mut tasks, address, &config, "health", door, answer)?;
    }
    if let Some(namespace) = &config.peer_leases {
        tasks.spawn(give_opinions(&config, namespace.clone(), &client, peers).await?);
    }
    let (sender, inbox) = mpsc::channel(INBOX);
    start_watches(&mut tasks, &client, &config, &sender);
    if let Some(bound) = config.reset_dead_connections {
        tasks.spawn(find_gone(
            client.clone(),
            config.node.clone(),
            bound,
            sender.clone(),
        ));
    }
    drop(sender);
    let (mode, observe) = (config.mode.as_str(), config.observe);
    tracing::info!(node = config.node, mode, observe, "starting");
    tasks.spawn(owner.run(inbox, reports));
    let ended = tokio::select! {
        ended = tasks.join_next() => ended,
        _ = stop.wait_for(|stop| *stop) => None,
    };
    // Whoever ended, the owner ends and takes back what nobody would look after.
    let stopped = ended.is_none();
    tasks.shutdown().await;
    if stopped {
        return Ok(());
    }
    if let Some(Err(error)) = ended {
        tracing::error!(%error, "a part of the proxy ended unexpectedly");
    }
    Err(RunError::Ended)
}

/// Says which nodes this one does not reach. A proxy that cannot find out goes on with its rules.
async fn give_opinions(
    config: &Config,
    namespace: String,
    client: &Client,
    metrics: pointsman_peers::Metrics,
) -> Result<impl Future<Output = ()> + use<>, RunError> {
    // A connection of their own, so that no list of slices stands before them in a queue.
    let own = connect::connect(&config.source, "pointsman-proxy-peers").await?;
    let own = own.with_rights(client.rights());
    let node = config.node.clone();
    Ok(async move {
        pointsman_peers::give_opinions(own, namespace, node, metrics).await;
        std::future::pending().await
    })
}

/// Says which nodes are gone. A proxy that cannot find out ends no connections and goes on with its rules.
async fn find_gone(client: Client, own: String, bound: Duration, sender: mpsc::Sender<Vec<Input>>) {
    let (tell, mut gone) = watch::channel(pointsman_peers::GoneNodes::new());
    let pass_on = async {
        while gone.changed().await.is_ok() {
            let nodes = gone.borrow_and_update().clone();
            tracing::info!(nodes = ?nodes.keys(), "nodes are gone: connections to their pods are ended");
            if sender.send(vec![Input::Gone(nodes)]).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(
        pointsman_peers::follow_gone(client, own.as_str().into(), bound, tell),
        pass_on
    );
    std::future::pending().await
}

/// The mode that was asked for, or the one that was allowed instead where the kernel cannot do it.
async fn possible_mode(config: &Config) -> Result<Mode, RunError> {
    if config.mode == Mode::Iptables || config.observe {
        return Ok(config.mode);
    }
    let probed = tokio::task::spawn_blocking(probe_nftables::<Ipv4Addr>).await;
    match probed.map_err(|_| RunError::Ended)? {
        Ok(()) => Ok(Mode::Nftables),
        Err(error) if config.fall_back_to_iptables => {
            tracing::warn!(error = %Chain(&error), "nftables mode cannot work here, using iptables");
            Ok(Mode::Iptables)
        }
        Err(error) => Err(RunError::Unsupported(error)),
    }
}

/// Where programs on the node find what is served to others at `address`, unless that includes loopback.
fn loopback_beside(address: SocketAddr) -> Option<SocketAddr> {
    let reaches_loopback = address.ip().is_loopback() || address.ip().is_unspecified();
    (!reaches_loopback).then(|| (Ipv4Addr::LOCALHOST, address.port()).into())
}

fn listen(
    tasks: &mut JoinSet<()>,
    address: SocketAddr,
    config: &Config,
    what: &'static str,
    door: Door,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) -> Result<(), RunError> {
    if config.bind_or_fail {
        let listener =
            bind(address, Wildcard::BothFamilies).map_err(|source| RunError::Listen { address, source })?;
        tasks.spawn(serve(listener, what, door, answer));
    } else {
        tasks.spawn(listen_and_serve(address, what, door, answer));
    }
    Ok(())
}

/// Watches what upstream watches: Services that are ours, slices that are not headless, our own Node.
fn start_watches(
    tasks: &mut JoinSet<()>,
    client: &Client,
    config: &Config,
    sender: &mpsc::Sender<Vec<Input>>,
) {
    let services = Scope::all(Resource::SERVICES)
        .labels(&format!("!{}", names::PROXY_NAME_LABEL))
        .fields("spec.clusterIP!=None");
    let slices = Scope::all(Resource::ENDPOINT_SLICES).labels(&format!("!{}", names::HEADLESS_LABEL));
    let node = Scope::all(Resource::NODES).fields(&format!("metadata.name={}", config.node));
    // Objects are converted where they are read, one task for each kind; the owner only folds.
    let mut names = Interner::default();
    let convert = move |object: compact::Service| read::service(&object, &mut names);
    follow(tasks, client, services, sender, convert, Input::Service);
    let mut names = Interner::default();
    let convert = move |object: compact::EndpointSlice| read::slice(&object, &mut names);
    follow(tasks, client, slices, sender, convert, Input::Slice);
    let convert = |object: Node| Some(convert::node(&object));
    follow(tasks, client, node, sender, convert, |event| {
        Input::Node(Box::new(event))
    });
    if config.mode == Mode::Nftables && !config.observe {
        // Older servers do not have them, and older roles may not read them.
        let ranges = Watcher::new(client.clone(), Scope::all(Resource::SERVICE_CIDRS)).optional();
        tasks.spawn(ranges.forward_together(sender.clone(), |event| Some(Input::ServiceRange(event))));
    }
}

fn follow<T: DeserializeOwned + Send + 'static, U: Send + 'static>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    scope: Scope,
    sender: &mpsc::Sender<Vec<Input>>,
    mut convert: impl FnMut(T) -> Option<U> + Send + 'static,
    input: fn(Event<U>) -> Input,
) {
    let watcher = Watcher::<T>::new(client.clone(), scope);
    tasks.spawn(watcher.forward_together(sender.clone(), move |event| {
        Some(input(event.try_map(&mut convert)?))
    }));
}
