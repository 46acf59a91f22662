//! How does the agent start and stop?

use crate::agent::{Agent, Input};
use crate::config::Config;
use crate::heartbeat::Heart;
use crate::host::Host;
use crate::metrics::Metrics;
use crate::neighbours::{Neighbours, pod_ranges};
use crate::node::Frequency;
use crate::probing::{Commands, Probing, Runs};
use crate::room::Room;
use crate::serve::{self, Access, Server};
use crate::stats::Stats;
use crate::streams::Streams;
use crate::work::Tools;
use pointsman_api_client::connect::connect;
use pointsman_api_client::events::Recorder;
use pointsman_api_client::{ApiError, Client, ConnectError, Event, Resource, Scope, Watcher};
use pointsman_fabric::Prefix;
use pointsman_http::{Wildcard, bind};
use pointsman_model::Text;
use pointsman_node_health::peers::Thresholds;
use pointsman_objects::pod_manifest::{PodManifest, Verbatim};
use pointsman_objects::{ConfigMap, Node};
use pointsman_pod_lifecycle::Settings;
use pointsman_probe_io::Prober;
use pointsman_protocol::settings;
use pointsman_runtime::{AddressRange, Runtime, RuntimeError};
use pointsman_telemetry::Registry;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Why the agent could not start.
#[derive(Debug, Error)]
pub enum AgentError {
    /// There is no way to the API server.
    #[error("cannot set up the connection to the API server")]
    Connect(#[from] ConnectError),
    /// The runtime does not say what it has.
    #[error("cannot ask the runtime what runs")]
    Runtime(#[from] RuntimeError),
    /// The prober cannot run.
    #[error("cannot start the prober")]
    Prober(#[from] pointsman_probe_io::StartError),
    /// The server's certificates cannot be used.
    #[error("cannot serve TLS")]
    Tls(#[from] serve::TlsError),
    /// The port cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Runs the agent until `stopping` turns true. Pods go on.
pub async fn run(
    config: Config,
    runtime: Arc<dyn Runtime>,
    registry: Registry,
    stopping: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let client = connect(&config.source, "pointsman-node").await?;
    // Heartbeats have a connection of their own, so that nothing stands before them in a queue.
    let heart_client = connect(&config.source, "pointsman-node-heartbeat").await?;
    let heart_client = heart_client.with_rights(client.rights());
    client.rights().register(&registry);
    let metrics = Metrics::new(&registry);
    let (inputs, received) = mpsc::unbounded_channel();
    // Events are subscribed to before the list, so that nothing falls between.
    let events = runtime.subscribe();
    let found = runtime.list().await?;
    let runs = Runs::default();
    let commands = Arc::new(Commands {
        runtime: runtime.clone(),
        runs: runs.clone(),
    });
    let (prober, reports) = Prober::start(config.probes, commands, &registry)?;
    let (recorder, recording) = Recorder::new(client.clone(), "kubelet");
    let tools = Tools {
        client: client.clone(),
        runtime: runtime.clone(),
        gate: config.gate.clone(),
        lenient: config.lenient,
        host_ips: config.host_ips().into(),
        dns: Arc::new(config.dns.clone()),
        metrics: metrics.clone(),
        api_server: Arc::default(),
        inputs: inputs.clone(),
    };
    let settings = Settings {
        gate: config.gate.as_ref().map(|gate| gate.bound),
    };
    let probing = Probing {
        prober,
        reading: config.reading.clone(),
        runs,
    };
    let room = Room::of_host(&Host::read(&config.root_dir));
    let agent = Agent::new(
        tools,
        settings,
        probing,
        recorder.clone(),
        found,
        config.refresh,
        room,
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(recording);
    if let Some(address) = config.listen {
        let listener =
            bind(address, Wildcard::BothFamilies).map_err(|source| AgentError::Listen { address, source })?;
        let name = &config.identity.name;
        let tls = serve::server_config(
            name,
            config.host_ips(),
            &config.client_ca,
            config.serving.as_ref(),
        )?;
        let server = Arc::new(Server {
            inputs: inputs.clone(),
            access: Access::new(client.clone(), name),
            streams: Streams::new(runtime.clone(), inputs.clone()),
            stats: Stats::new(runtime.clone(), inputs.clone(), name, config.root_dir.clone()),
            metrics: metrics.clone(),
            configuration: config.shown.clone(),
        });
        tasks.spawn(server.run(listener, tls));
    }
    start_heartbeats(
        &mut tasks,
        &config,
        [heart_client, client.clone()],
        &runtime,
        metrics,
        pointsman_peers::Metrics::new(&registry),
        recorder,
    );
    watch_pods(&mut tasks, &config, &client, inputs);
    agent.run(received, events, reports, stopping).await;
    Ok(())
}

fn watch_pods(
    tasks: &mut JoinSet<()>,
    config: &Config,
    client: &Client,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mine = format!("spec.nodeName={}", config.identity.name);
    let mut pods =
        Watcher::<Verbatim<PodManifest>>::new(client.clone(), Scope::all(Resource::PODS).fields(&mine));
    tasks.spawn(async move {
        loop {
            let event = Box::new(pods.next().await);
            if inputs.send(Input::Pod(event)).is_err() {
                return;
            }
        }
    });
}

fn start_heartbeats(
    tasks: &mut JoinSet<()>,
    config: &Config,
    [heart_client, client]: [Client; 2],
    runtime: &Arc<dyn Runtime>,
    metrics: Metrics,
    peer_metrics: pointsman_peers::Metrics,
    events: Recorder,
) {
    let waiting = "no pod addresses yet: the Node has no spec.podCIDR";
    let trouble = config.pod_ranges.is_empty().then(|| waiting.to_owned());
    let (trouble, of_ranges) = watch::channel(trouble);
    let of_runtime = runtime.trouble();
    let first = of_ranges.borrow().clone().or_else(|| of_runtime.borrow().clone());
    let (any, troubled) = watch::channel(first);
    tasks.spawn(either([of_ranges, of_runtime], any));
    let (frequency, often) = watch::channel(config.frequency);
    let (pool, pooled) = watch::channel(String::new());
    let (opinions, said) = watch::channel(None);
    let (others, known) = watch::channel(pointsman_peers::Places::new());
    if config.asks_peers {
        let own = config.identity.name.as_str().into();
        tasks.spawn(ask_peers(own, known, often.clone(), opinions, peer_metrics));
    }
    let heart = Heart {
        client: heart_client,
        identity: Arc::new(config.identity.clone()),
        root: config.root_dir.clone(),
        metrics,
        trouble: troubled,
        frequency: often,
        opinions: said,
        uid: watch::Sender::new(None),
    };
    if !config.pod_ranges.is_empty() {
        runtime.set_pod_ranges(&config.pod_ranges);
    }
    tasks.spawn(heart.clone().keep_status());
    tasks.spawn(heart.keep_lease(config.lease_duration));
    let places = Places {
        own: config.identity.name.clone(),
        fixed: !config.pod_ranges.is_empty(),
        routes: config.routes,
        cluster: config.cluster_ranges.clone(),
        runtime: runtime.clone(),
        trouble,
        pool,
        others,
        events,
    };
    tasks.spawn(places.follow(client.clone()));
    let flags = (config.frequency, config.own_report_period);
    tasks.spawn(follow_settings(client.clone(), flags, frequency, pooled));
}

/// Says the first trouble of several, now and later.
async fn either(mut troubles: [watch::Receiver<Option<String>>; 2], any: watch::Sender<Option<String>>) {
    loop {
        let first = troubles
            .iter_mut()
            .find_map(|trouble| trouble.borrow_and_update().clone());
        any.send_if_modified(|before| std::mem::replace(before, first.clone()) != first);
        let changes = troubles.iter_mut().map(|trouble| {
            Box::pin(async {
                // What cannot change any more has said its last.
                if trouble.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        futures::future::select_all(changes).await;
    }
}

/// Follows all Nodes: ours for the addresses of our pods, others for routes to theirs.
struct Places {
    own: String,
    /// Somebody gave us ranges at start.
    fixed: bool,
    routes: bool,
    /// Where all pods are.
    cluster: Vec<Prefix>,
    runtime: Arc<dyn Runtime>,
    trouble: watch::Sender<Option<String>>,
    pool: watch::Sender<String>,
    /// Where nodes can be asked whether they are there.
    others: watch::Sender<pointsman_peers::Places>,
    events: Recorder,
}

impl Places {
    async fn follow(self, client: Client) {
        let mut nodes = Watcher::<Node>::new(client, Scope::all(Resource::NODES));
        let mut neighbours = Neighbours::new(&self.own, &self.cluster);
        let keeps_routes = self.routes && !self.cluster.is_empty();
        if self.routes && !keeps_routes {
            tracing::warn!("without --cluster-cidr there are no routes to the pods of other nodes");
        }
        let mut ranges = Vec::new();
        let mut synced = false;
        loop {
            match nodes.next().await {
                Event::Init => synced = false,
                Event::Synced(_) => {
                    synced = true;
                    self.others.send_modify(|_| {});
                }
                Event::Applied { key, object, .. } => {
                    let place = pointsman_peers::place(&object);
                    pointsman_peers::placed(&self.others, key.name(), place, synced);
                    if key.name() == self.own {
                        self.see_own(&object, &mut ranges);
                    }
                    neighbours.see(key.name(), Some(&object));
                }
                Event::Deleted { key, .. } => {
                    pointsman_peers::placed(&self.others, key.name(), None, synced);
                    neighbours.see(key.name(), None);
                }
            }
            if synced && keeps_routes {
                neighbours.apply(&self.events);
            }
        }
    }

    fn see_own(&self, node: &Node, ranges: &mut Vec<AddressRange>) {
        self.pool.send_if_modified(|pool| {
            let now = node.pool();
            std::mem::replace(pool, now.to_owned()) != now
        });
        let now = pod_ranges(node);
        if self.fixed || now.is_empty() || now == *ranges {
            return;
        }
        self.runtime.set_pod_ranges(&now);
        *ranges = now;
        self.trouble.send_replace(None);
    }
}

/// Asks this node's peers, as patiently as it reports.
async fn ask_peers(
    own: Text,
    places: watch::Receiver<pointsman_peers::Places>,
    mut frequency: watch::Receiver<Frequency>,
    opinions: watch::Sender<Option<String>>,
    metrics: pointsman_peers::Metrics,
) {
    let of = |frequency: &Frequency| Thresholds::of_report_period(frequency.update);
    let (thresholds, patience) = watch::channel(of(&frequency.borrow_and_update()));
    let asking = pointsman_peers::ask(own, places, patience, opinions, metrics);
    let following = async {
        while frequency.changed().await.is_ok() {
            thresholds.send_replace(of(&frequency.borrow_and_update()));
        }
    };
    tokio::join!(asking, following);
}

/// Follows the settings that all nodes share.
async fn follow_settings(
    client: Client,
    (flag, report): (Frequency, Option<Duration>),
    frequency: watch::Sender<Frequency>,
    mut pool: watch::Receiver<String>,
) {
    let mut scope =
        Scope::all(Resource::core("configmaps")).fields(&format!("metadata.name={}", settings::NODE));
    scope.namespace = Some(settings::NAMESPACE.to_owned());
    let mut watcher = Watcher::<ConfigMap>::new(client.clone(), scope);
    let mut data = BTreeMap::new();
    loop {
        tokio::select! {
            event = watcher.next() => match event {
                Event::Applied { object, .. } => data = object.data,
                Event::Deleted { .. } => data.clear(),
                Event::Init | Event::Synced(_) => continue,
            },
            changed = pool.changed() => if changed.is_err() { return },
        }
        let pool = pool.borrow_and_update().clone();
        let read = |data: &settings::Data| match settings::REPORT_PERIOD.read_for(&pool, data) {
            Ok(Some(update)) if update.is_zero() => {
                tracing::warn!(config_map = settings::NODE, "ignoring a report period of zero");
                flag
            }
            Ok(Some(update)) => Frequency::of(Some(update), report),
            Ok(None) => flag,
            Err(error) => {
                tracing::warn!(config_map = settings::NODE, %error, "ignoring a setting that cannot be read");
                flag
            }
        };
        let mut now = read(&data);
        if now.update > frequency.borrow().update {
            // What the watch shows may be long past, after a pause of this process for instance, and the
            // cluster less patient by now.
            data = fresh_settings(&client).await;
            now = read(&data);
        }
        frequency.send_if_modified(|before| std::mem::replace(before, now) != now);
    }
}

/// The settings as they are now; asks until somebody answers.
async fn fresh_settings(client: &Client) -> settings::Data {
    let name = settings::NODE;
    let api = client.api(Resource::core("configmaps"), Some(settings::NAMESPACE));
    loop {
        match api.get::<ConfigMap>(name).await {
            Ok(map) => return map.data,
            Err(ApiError::NotFound(_)) => return BTreeMap::new(),
            Err(error) => {
                tracing::warn!(config_map = name, %error, "cannot read the settings of nodes, trying again")
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
