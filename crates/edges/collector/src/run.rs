//! How do the parts of a collector start and end?

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Client, ConnectError, Event, Resource, Rights, Scope, Watcher, connect};
use pointsman_http::{BadUrl, Connections, Limits, Server, Target, Wildcard, bind};
use pointsman_objects::{ConfigNode, EndpointSlice, Lease, Node, Pod};
use pointsman_protocol::peers::{LIST_LEASE, LIST_NAMESPACE};
use pointsman_sli::sample::Sampling;
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::auth::Login;
use crate::config::Config;
use crate::durable::{Found, Store};
use crate::facts::Described;
use crate::follow;
use crate::gates::deletions::Reader;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::owner::{Input, Lines, Owner, Parts};
use crate::serve::Site;
use crate::traces::Traces;

const INBOX: usize = 4096;
/// Connections to the gate's own listener at once: as many as gates may wait, and of one node more than it has pods.
const GATES: Limits = Limits {
    total: 10_000,
    kept: 0,
    source: 1_000,
};
/// How often a cluster is asked whether it has latency profiles.
const PROFILE_AGAIN: Duration = Duration::from_secs(30);
/// How long the end waits for the last traces.
const LAST_TRACES: Duration = Duration::from_secs(2);
const CONFIG_NODES: Resource = Resource::new("config.openshift.io", "v1", "nodes");

/// Why a collector does not start.
#[derive(Debug, Error)]
pub enum StartError {
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
    /// The page would be open to everybody.
    #[error("{0} is not a loopback address: name a file of logins")]
    NoLogin(SocketAddr),
    /// The file of logins is of no use.
    #[error("the file of logins: {0}")]
    Login(String),
    /// What was written down before cannot be read, or nothing can be written.
    #[error("the data directory")]
    Data(#[source] io::Error),
    /// A receiver of traces has no usable URL.
    #[error("--otlp: the base URL of an OTLP receiver such as http://otel-collector:4318 is needed")]
    Receiver(#[source] BadUrl),
    /// A relay has no usable URL.
    #[error("the URL of a relay")]
    Relay(#[source] BadUrl),
}

/// A collector that runs; dropping it ends it.
#[derive(Debug)]
pub struct Running {
    /// Where people look.
    pub address: SocketAddr,
    /// Where nodes ask.
    pub gate_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    owner: tokio::task::JoinHandle<()>,
    tasks: JoinSet<()>,
    /// Sends traces until the owner is gone and all are sent.
    traces: Option<tokio::task::JoinHandle<()>>,
}

impl Running {
    /// Waits for a part to end, which happens only by a fault of ours.
    pub async fn ended(&mut self) {
        let ended = tokio::select! {
            ended = self.tasks.join_next() => ended,
            ended = &mut self.owner => Some(ended),
        };
        if let Some(Err(error)) = ended {
            tracing::error!(%error, "a part of the collector ended unexpectedly");
        }
    }

    /// Ends it, with everything written down.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = self.owner.await;
        if let Some(traces) = self.traces.take() {
            // What is on its way gets a moment to arrive.
            let _ = tokio::time::timeout(LAST_TRACES, traces).await;
        }
        self.tasks.shutdown().await;
    }
}

/// Starts a collector; returns once it listens.
pub async fn start(config: Config) -> Result<Running, StartError> {
    let login = login(&config)?;
    let client = connect::connect(&config.source, "pointsman-sli").await?;
    let registry = Registry::new();
    register_process(
        &registry,
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: "",
            role: "sli",
        },
    );
    client.rights().register(&registry);
    let metrics = Metrics::new(&registry);
    let (store, found) = data(&config)?;
    let listener = listen(config.listen)?;
    let address = listener.local_addr().unwrap_or(config.listen);
    let gate_listener = match config.gate_listen {
        Some(address) => Some(listen(address)?),
        None => None,
    };
    let gate_address = gate_listener.as_ref().and_then(|it| it.local_addr().ok());
    let mut tasks = JoinSet::new();
    let (observed, observations) = mpsc::channel(INBOX);
    for url in &config.relays {
        let target = Target::parse(url).map_err(StartError::Relay)?;
        tasks.spawn(follow::relay(target, observed.clone()));
    }
    let (recorder, writing) = Recorder::new(client.clone(), "pointsman-sli");
    tasks.spawn(writing);
    let (inputs, inbox) = mpsc::channel(INBOX);
    start_watches(&mut tasks, &client, &inputs);
    let (requests, asked) = mpsc::channel(INBOX);
    let page = watch::Sender::new("{}".into());
    let connections = Connections::register(&registry);
    let site = Site {
        page: page.clone(),
        registry,
        hosts: match config.login_file {
            Some(_) => Hosts::Any,
            None => Hosts::Loopback(config.hosts.clone().into()),
        },
        login,
        rights: client.rights(),
        requests,
        gate_bound: config.gate_bound,
        asked: Arc::default(),
    };
    let gates = site.clone();
    let page_server = Server {
        slots: connections.slots("page", Limits::default()),
        ..Server::default()
    };
    tasks.spawn(page_server.serve_forever(listener, move |peer| {
        let (site, source) = (site.clone(), peer.address.ip());
        move |request| site.clone().everything(request, source)
    }));
    if let Some(listener) = gate_listener {
        let server = Server {
            slots: connections.slots("gate", GATES),
            ..Server::default()
        };
        tasks.spawn(server.serve_forever(listener, move |peer| {
            let (gates, source) = (gates.clone(), peer.address.ip());
            move |request| gates.clone().gate_only(request, source)
        }));
    }
    let (traces, sending) = traces(&config, &metrics)?.unzip();
    let owner = Owner::new(Parts {
        config,
        traces,
        metrics,
        recorder,
        observed,
        reader: Reader::new(client),
        store,
        found,
        page,
    });
    let (stop, stopping) = watch::channel(false);
    let lines = Lines {
        inputs: inbox,
        observed: observations,
        requests: asked,
        stop: stopping,
    };
    let owner = tokio::spawn(owner.run(lines));
    tracing::info!(%address, ?gate_address, "collecting");
    Ok(Running {
        address,
        gate_address,
        stop,
        owner,
        tasks,
        traces: sending.map(tokio::spawn),
    })
}

fn traces(
    config: &Config,
    metrics: &Metrics,
) -> Result<Option<(Traces, impl Future<Output = ()> + use<>)>, StartError> {
    let Some(url) = &config.otlp else { return Ok(None) };
    let target = Target::parse(url).map_err(StartError::Receiver)?;
    let sampling = Sampling {
        share: config.trace_share,
    };
    Ok(Some(Traces::new(target, sampling, metrics.sli.traces.clone())))
}

fn data(config: &Config) -> Result<(Option<Store>, Found), StartError> {
    let Some(directory) = &config.data_dir else {
        return Ok((None, Found::default()));
    };
    let store = Store::open(directory).map_err(StartError::Data)?;
    let found = store.load().map_err(StartError::Data)?;
    if found.damaged > 0 {
        tracing::warn!(
            damaged = found.damaged,
            "parts of what was written down are damaged and left out"
        );
    }
    Ok((Some(store), found))
}

fn login(config: &Config) -> Result<Login, StartError> {
    match &config.login_file {
        Some(path) => Login::read(path).map_err(StartError::Login),
        None if config.listen.ip().is_loopback() => Ok(Login::Open),
        None => Err(StartError::NoLogin(config.listen)),
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    bind(address, Wildcard::BothFamilies).map_err(|source| StartError::Listen { address, source })
}

/// Watches what programmers watch, and what explains it.
fn start_watches(tasks: &mut JoinSet<()>, client: &Client, sender: &mpsc::Sender<Input>) {
    let slices = Scope::all(Resource::ENDPOINT_SLICES).labels("!service.kubernetes.io/headless");
    follow_all::<EndpointSlice>(tasks, client, slices, sender, Input::Slice);
    let services = Scope::all(Resource::SERVICES);
    follow_all::<Described>(tasks, client, services, sender, Input::Service);
    follow_all::<Pod>(tasks, client, Scope::all(Resource::PODS), sender, Input::Pod);
    follow_all::<Node>(tasks, client, Scope::all(Resource::NODES), sender, Input::Node);
    let withdrawn = Scope {
        namespace: Some(LIST_NAMESPACE.into()),
        ..Scope::all(Resource::LEASES).fields(&format!("metadata.name={LIST_LEASE}"))
    };
    // Everything else works without the right to read it, so that it is missed by the log alone.
    let spared = client.clone().with_rights(Rights::default());
    follow_all::<Lease>(tasks, &spared, withdrawn, sender, Input::Withdrawn);
    tasks.spawn(follow_profile(client.clone(), sender.clone()));
}

fn follow_all<T: DeserializeOwned + Send + 'static>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    scope: Scope,
    sender: &mpsc::Sender<Input>,
    input: fn(Box<Event<T>>) -> Input,
) {
    let watcher = Watcher::<T>::new(client.clone(), scope);
    tasks.spawn(watcher.forward(sender.clone(), move |event| Some(input(Box::new(event)))));
}

/// Most clusters have no such kind; those that have are watched once they show it.
async fn follow_profile(client: Client, sender: mpsc::Sender<Input>) {
    let path = format!("{}?limit=1", CONFIG_NODES.path(None));
    while client.get_path::<serde::de::IgnoredAny>(&path).await.is_err() {
        tokio::time::sleep(PROFILE_AGAIN).await;
    }
    let watcher = Watcher::<ConfigNode>::new(client, Scope::all(CONFIG_NODES));
    let input = |event| Some(Input::ConfigNode(Box::new(event)));
    watcher.forward(sender, input).await;
}
