//! When do loops start and stop?

use crate::config::{Config, Leadership};
use crate::endpoint_slices;
use crate::latency_profile;
use crate::loops::Loop;
use crate::nodes;
use crate::shared::Shared;
use crate::workloads;
use pointsman_api_client::election::{Election, Role};
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{Client, ConnectError, connect};
use pointsman_guard::{Guard, Shown, TlsError};
use pointsman_http::{Wildcard, bind};
use pointsman_model::Moment;
use pointsman_telemetry::{BuildInfo, Definition, Gauge, Registry, register_process};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long writes under way get at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a process that runs loops gave up.
#[derive(Debug, Error)]
pub enum RunError {
    /// Metrics cannot be protected.
    #[error("metrics cannot be served")]
    Guard(#[source] TlsError),
    /// There is no usable configuration of the connection.
    #[error("no connection to an API server can be set up")]
    Connect(#[from] ConnectError),
    /// Health and metrics cannot be served.
    #[error("listening for metrics on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// Times of leader election that would allow two leaders.
    #[error("leader election: {0}")]
    Terms(&'static str),
    /// A loop ended by a fault of ours.
    #[error("a loop ended unexpectedly")]
    LoopEnded,
}

/// What every loop is given.
#[derive(Clone)]
pub(crate) struct Context {
    pub client: Client,
    pub recorder: Recorder,
    pub config: Config,
    pub metrics: Metrics,
    /// Last sign of life of the former leader.
    pub former: Option<Moment>,
    pub ready: watch::Sender<bool>,
    pub stop: watch::Receiver<bool>,
}

/// The metrics of all loops; they outlive a leadership.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub slices: endpoint_slices::Metrics,
    pub reachability: endpoint_slices::ReachabilityMetrics,
    pub nodes: nodes::Metrics,
}

/// Registers the metrics of all loops without running any, for a reference of them.
pub fn describe_metrics(registry: &Registry) {
    register(registry);
}

fn register(registry: &Registry) -> (Gauge, Metrics) {
    let leads = registry.gauge(Definition::new(
        "leader_election_master_status",
        "1 if this process leads and its loops run, 0 if it waits for its turn.",
    ));
    let metrics = Metrics {
        slices: endpoint_slices::Metrics::new(registry),
        reachability: endpoint_slices::ReachabilityMetrics::new(registry),
        nodes: nodes::Metrics::new(registry),
    };
    (leads, metrics)
}

/// Runs until `stop` turns true. Metrics go to `registry`, which is also served.
pub async fn run(config: Config, registry: Registry, stop: watch::Receiver<bool>) -> Result<(), RunError> {
    let client = connect::connect(&config.source, "pointsman-controllers").await?;
    register_process(
        &registry,
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: "",
            role: "controllers",
        },
    );
    client.rights().register(&registry);
    let (leads, metrics) = register(&registry);
    let (ready, is_ready) = watch::channel(false);
    let mut side = JoinSet::new();
    if let Some(address) = config.metrics_listen {
        let listener =
            bind(address, Wildcard::BothFamilies).map_err(|source| RunError::Listen { address, source })?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "serving health and metrics");
        let guard =
            Guard::new(&config.guard, address, "pointsman-controllers", &client).map_err(RunError::Guard)?;
        let shown = Shown {
            registry: registry.clone(),
            // The first lists are complete. A replica that waits for its turn is ready.
            ready: is_ready,
            unready: "caches are not filled yet",
            rights: client.rights(),
            more: |_: &str| None,
        };
        side.spawn(shown.serve(listener, guard));
    }
    let (recorder, writing_events) = Recorder::new(client.clone(), "pointsman-controllers");
    side.spawn(writing_events);
    let context = Context {
        client,
        recorder,
        config,
        metrics,
        former: None,
        ready,
        stop,
    };
    match context.config.leadership.clone() {
        None => {
            leads.set(1.0);
            run_loops(context).await
        }
        Some(leadership) => run_elected(context, leadership, leads).await,
    }
}

async fn run_elected(mut context: Context, leadership: Leadership, leads: Gauge) -> Result<(), RunError> {
    leadership.terms.check().map_err(RunError::Terms)?;
    let Leadership {
        namespace,
        name,
        terms,
    } = leadership;
    let (tell, mut role) = watch::channel(Role::Waiting { leader: None });
    // The lease is given back only when the loops are done.
    let (end, ended) = watch::channel(false);
    let election = Election::new(context.client.clone(), &namespace, &name, terms);
    let election = tokio::spawn(election.run(tell, ended));
    let mut stop = context.stop.clone();
    // A replica that waits for its turn is healthy.
    context.ready.send_replace(true);
    let outcome = loop {
        let leading = tokio::select! {
            role = role.wait_for(Role::leads) => role.map(|role| role.clone()),
            _ = stop.wait_for(|stop| *stop) => break Ok(()),
        };
        let Ok(Role::Leading { former }) = leading else {
            break Err(RunError::LoopEnded);
        };
        leads.set(1.0);
        context.ready.send_replace(false);
        context.former = former.map(|at| Moment::from_micros(at.as_microsecond()));
        let outcome = tokio::select! {
            outcome = run_loops(context.clone()) => Some(outcome),
            // Dropping the loops ends them and their writes at once: somebody else may lead already.
            _ = role.wait_for(|role| !role.leads()) => None,
        };
        leads.set(0.0);
        context.ready.send_replace(true);
        match outcome {
            Some(outcome) => break outcome,
            None => tracing::warn!("loops stopped with the end of leadership"),
        }
    };
    end.send_replace(true);
    let _ = election.await;
    outcome
}

/// Runs the loops until they are asked to stop; ends them when dropped.
async fn run_loops(context: Context) -> Result<(), RunError> {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut shared = Shared::new(&context.client);
    let names: Vec<&str> = context.config.loops.iter().map(Loop::name).collect();
    tracing::info!(loops = names.join(","), "starting loops");
    let loops = &context.config.loops;
    let of_endpoints = [Loop::EndpointSlices, Loop::Mirroring, Loop::Endpoints];
    let endpoints = of_endpoints.into_iter().any(|which| loops.runs(which));
    if endpoints {
        tasks.spawn(endpoint_slices::run(context.clone(), &mut shared));
    } else {
        context.ready.send_replace(true);
    }
    if workloads::wanted(&context) {
        tasks.spawn(workloads::run(context.clone(), &mut shared));
    }
    if nodes::wanted(&context) {
        tasks.spawn(nodes::run(context.clone(), &mut shared));
    }
    if loops.runs(Loop::LatencyProfile) {
        tasks.spawn(latency_profile::run(context.clone(), &mut shared));
    }
    // Everybody has subscribed.
    let _watches = shared.start();
    let mut stop = context.stop.clone();
    if tasks.is_empty() {
        let _ = stop.wait_for(|stop| *stop).await;
        return Ok(());
    }
    let ended = tokio::select! {
        ended = tasks.join_next() => ended,
        _ = stop.wait_for(|stop| *stop) => None,
    };
    if let Some(ended) = ended
        && !*stop.borrow()
    {
        if let Err(error) = ended {
            tracing::error!(%error, "a loop ended unexpectedly");
        }
        return Err(RunError::LoopEnded);
    }
    let drained = tokio::time::timeout(DRAIN, async { while tasks.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!("writes were still under way at the end");
    }
    Ok(())
}
