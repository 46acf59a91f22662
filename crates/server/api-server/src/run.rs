//! How does the server start and stop?

use crate::access::PolicyIndex;
use crate::auth::accounts::Accounts;
use crate::auth::flow::{FlowControl, Limits};
use crate::auth::node_graph::NodeGraph;
use crate::auth::tokens::Tokens;
use crate::auth::{Authenticator, files, pki};
use crate::background::accounts::{self, Wanting};
use crate::background::{
    aggregation, announce, bootstrap, definitions, expiry, garbage::Collector, namespaces, ranges, repair,
};
use crate::cache::collection::Window;
use crate::cache::{Cache, Observer};
use crate::config::{Config, StoreChoice};
use crate::encryption::{self, EncryptedStore};
use crate::identities::Identities;
use crate::metrics::Metrics;
use crate::node_client::NodeClient;
use crate::server::Server;
use crate::settings::Settings;
use crate::work::Lanes;
use crate::{audit, keys, listen};
use bytes::Bytes;
use pointsman_http::Wildcard;
use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::etcd::{self, EtcdStore};
use pointsman_store::{Op, Store, StoreError, Transaction};
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long a start waits for events before it makes one.
const FIRST_EVENT: Duration = Duration::from_millis(500);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}")]
    DataDir {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file that a flag names cannot be read.
    #[error("cannot read {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The store cannot be opened or read.
    #[error("cannot open the store")]
    Store(#[source] StoreError),
    /// The embedded store's file is not as it was written.
    #[error(
        "the store in {dir} is damaged: {what}\n\
         None of its objects is served, since others may be missing. Restore the last backup with `pointsman apiserver \
         restore --force`, which loses what was written since; or move store.redb away to begin with an empty store, \
         which loses everything. See \"A damaged store\" in docs/api-server.md."
    )]
    Damaged { dir: PathBuf, what: String },
    /// The key that the store was written with is not here, or somebody changed the store.
    #[error(
        "the Secrets in the store cannot be decrypted: {0}\n\
         If the key is another one, put back the pki/encryption.key that belongs to this store or backup, or copy it from a \
         server that shares the store. If a record was changed, restore the last backup. See \"Secrets at rest\" in \
         docs/api-server.md."
    )]
    Sealed(String),
    /// Keys or certificates cannot be made or read.
    #[error("cannot prepare keys and certificates")]
    Pki(#[from] pki::PkiError),
    /// Keys of tokens or Secrets cannot be made or read.
    #[error("cannot prepare keys of tokens or Secrets")]
    Keys(#[from] crate::auth::keyring::KeyError),
    /// The serving certificate cannot be used.
    #[error("cannot serve TLS")]
    Tls(#[from] crate::auth::tls::TlsError),
    /// The token file cannot be read.
    #[error("cannot read the token file")]
    Tokens(#[from] crate::auth::tokens::TokenFileError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The audit log cannot be written.
    #[error("cannot write the audit log {path}")]
    AuditLog {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The default objects cannot be written.
    #[error("cannot create the default objects: {0}")]
    Bootstrap(pointsman_rules::ApiError),
}

/// How long watches outlive the port. By then every connection has said that it takes no more requests; a watch that ended
/// before would be opened again on the same connection and end at once, after which clients of Go list everything anew.
const FAREWELL: Duration = Duration::from_millis(100);

/// A running server.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// How many objects the store held at start.
    pub objects: usize,
    server: Arc<Server>,
    accepting: Vec<JoinHandle<()>>,
    background: Vec<JoinHandle<()>>,
}

impl Running {
    /// Waits until the store has ended, which the server cannot survive, and says why.
    pub async fn ended(&self) -> StoreError {
        let mut ended = self.server.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        // The sender lives in the server.
        ended
            .ok()
            .and_then(|why| why.clone())
            .unwrap_or_else(|| StoreError::Ended("the server is gone".into()))
    }

    /// Ends watches, lets open requests finish and stops.
    pub async fn stop(self) {
        self.server.stop.send_replace(true);
        sleep(FAREWELL).await;
        self.server.farewell.send_replace(true);
        for listener in self.accepting {
            let _ = listener.await;
        }
        self.background.iter().for_each(JoinHandle::abort);
        for task in self.background {
            let _ = task.await;
        }
    }
}

/// Starts a server and returns once it is ready.
pub async fn start(config: Config) -> Result<Running, StartError> {
    let bad_dir = |source| StartError::DataDir {
        path: config.data_dir.clone(),
        source,
    };
    let bad_store = |error| match error {
        StoreError::Damaged(what) => StartError::Damaged {
            dir: store_dir(&config),
            what,
        },
        StoreError::Sealed(what) => StartError::Sealed(what),
        error => StartError::Store(error),
    };
    files::private_dir(&config.data_dir).map_err(bad_dir)?;
    let store = open_store(&config).await?.map_err(bad_store)?;
    let keeping = tokio::spawn(encryption::keep(store.clone()));
    let (server, collector) = assemble(&config, store)?;
    let following = follow(&server).await.map_err(bad_store)?;
    let objects = server.cache.stored().map(|collection| collection.count()).sum();

    let (address, listeners) = bind(&config)?;
    let identities = Identities::new(&config, address, server.root_ca.clone());
    let (tls, replaceable, kubeconfig) = identities.prepare()?;
    let (trusted, rounds) = watch::channel(0);
    // The port answers from here on; `/readyz` says no until the default objects are there.
    let slots = listen::slots(&server.metrics.registry);
    let accept = |listener| {
        let listening = listen::Listening {
            tls: tls.clone(),
            slots: slots.clone(),
            rounds: rounds.clone(),
        };
        tokio::spawn(listening.run(server.clone(), listener))
    };
    let accepting = listeners.into_iter().map(accept).collect();

    let advertised = config
        .advertise
        .map_or(address, |ip| SocketAddr::new(ip, address.port()));
    server.accounts.reached_at(advertised);
    repair::run(&server).await.map_err(StartError::Bootstrap)?;
    bootstrap::run(&server, Some(advertised))
        .await
        .map_err(StartError::Bootstrap)?;
    let forgotten = pki::forgotten_authority("front-proxy", SystemTime::now())?;
    bootstrap::publish_client_authorities(&server, &identities.client_authorities()?, &forgotten)
        .await
        .map_err(StartError::Bootstrap)?;
    accounts::equip_all(&server)
        .await
        .map_err(StartError::Bootstrap)?;
    let background = vec![
        following,
        keeping,
        tokio::spawn(collector.run(server.clone())),
        tokio::spawn(namespaces::run(server.clone())),
        tokio::spawn(ranges::run(server.clone())),
        tokio::spawn(accounts::run(server.clone())),
        tokio::spawn(definitions::run(server.clone())),
        tokio::spawn(expiry::expire_events(server.clone(), config.event_ttl)),
        tokio::spawn(expiry::compact(server.clone(), config.compaction_interval)),
        tokio::spawn(identities.keep_fresh(replaceable, trusted)),
        tokio::spawn(aggregation::run(server.clone())),
        tokio::spawn(server.accounts.clone().keep_fresh()),
        tokio::spawn(announce::run(server.clone())),
    ];
    server.bootstrapped.store(true, Ordering::Release);
    Ok(Running {
        address,
        kubeconfig,
        objects,
        server,
        accepting,
        background,
    })
}

/// The server's parts over a store, with nothing running yet.
fn assemble(config: &Config, store: EncryptedStore) -> Result<(Arc<Server>, Arc<Collector>), StartError> {
    let registry = Registry::new();
    register_process(
        &registry,
        BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: "",
            role: "apiserver",
        },
    );
    let settings = Arc::new(Settings::new(config.tolerations, &registry));
    let policy = Arc::new(PolicyIndex::default());
    let collector = Arc::new(Collector::default());
    let (graph, wanting) = (Arc::new(NodeGraph::default()), Arc::new(Wanting::default()));
    let observers: Vec<Arc<dyn Observer>> = vec![
        policy.clone(),
        settings.clone(),
        collector.clone(),
        graph.clone(),
        wanting.clone(),
    ];
    let cache = Arc::new(Cache::new(Window::default(), observers));
    let metrics = Metrics::new(registry);
    metrics.watch_cache(cache.clone());
    let flow = FlowControl::new(Limits {
        reads: config.max_requests_inflight,
        writes: config.max_mutating_requests_inflight,
        ..Limits::default()
    });
    flow.register(&metrics.registry);
    let tokens = match &config.token_file {
        Some(path) => Tokens::read(path)?,
        None => Tokens::default(),
    };
    let accounts = Accounts::new(
        config.accounts.clone(),
        &config.data_dir.join("pki"),
        cache.clone(),
    )?;
    let accounts = Arc::new(accounts);
    let audit_metrics = audit::log::Metrics::new(&metrics.registry);
    let audit = match config.audit.clone() {
        Some(settings) => {
            let path = settings.path.clone();
            let failed = |source| StartError::AuditLog { path, source };
            let log = audit::Log::open(settings, audit_metrics).map_err(failed)?;
            Some(Arc::new(log))
        }
        None => None,
    };
    let server = Server {
        raw_store: store.raw.clone(),
        store: Arc::new(store),
        cache,
        cluster: config.cluster.clone(),
        gates: config.gates.clone(),
        plugins: config.plugins,
        settings,
        authenticator: Authenticator::new(tokens, config.anonymous, accounts.clone()),
        accounts,
        policy,
        graph,
        wanting,
        root_ca: watch::Sender::default(),
        flow,
        work: Lanes::default(),
        compacted: AtomicU64::default(),
        metrics,
        audit,
        nodes: NodeClient::new(
            &config.data_dir.join("pki"),
            config.kubelet_certificate_authority.as_deref(),
        ),
        bootstrapped: AtomicBool::new(false),
        stop: watch::Sender::new(false),
        farewell: watch::Sender::new(false),
        ended: watch::Sender::new(None),
    };
    Ok((Arc::new(server), collector))
}

/// Listens everywhere, and says where first.
fn bind(config: &Config) -> Result<(SocketAddr, Vec<TcpListener>), StartError> {
    let failed = |address| move |source| StartError::Listen { address, source };
    let listen = |address| pointsman_http::bind(address, Wildcard::BothFamilies);
    let first = listen(config.listen).map_err(failed(config.listen))?;
    let port = first.local_addr().map_err(failed(config.listen))?.port();
    let address = SocketAddr::new(config.listen.ip(), port);
    let mut listeners = vec![first];
    for also in &config.also_listen {
        let port = if also.port() == 0 { port } else { also.port() };
        let also = SocketAddr::new(also.ip(), port);
        listeners.push(listen(also).map_err(failed(also))?);
    }
    Ok((address, listeners))
}

fn store_dir(config: &Config) -> PathBuf {
    config.data_dir.join("store")
}

/// Opens the store; the inner error is the store's own.
async fn open_store(config: &Config) -> Result<Result<EncryptedStore, StoreError>, StartError> {
    let keys = encryption::Keys::open(&config.data_dir.join("pki"))?;
    Ok(match open_engine(config).await? {
        Ok(raw) => EncryptedStore::new(raw, keys).await,
        Err(error) => Err(error),
    })
}

async fn open_engine(config: &Config) -> Result<Result<Arc<dyn Store>, StoreError>, StartError> {
    Ok(match &config.store {
        StoreChoice::Embedded => {
            let dir = store_dir(config);
            let open = move || EmbeddedStore::open(&dir, Options::default());
            let opened = tokio::task::spawn_blocking(open).await;
            opened
                .expect("opening does not panic")
                .map(|store| Arc::new(store) as Arc<dyn Store>)
        }
        StoreChoice::Etcd {
            endpoints,
            prefix,
            ca_file,
            cert_file,
            key_file,
        } => {
            let read = |path: &PathBuf| {
                std::fs::read(path).map_err(|source| StartError::File {
                    path: path.clone(),
                    source,
                })
            };
            let identity = match cert_file.as_ref().zip(key_file.as_ref()) {
                Some((cert, key)) => Some((read(cert)?, read(key)?)),
                None => None,
            };
            let options = etcd::Options {
                endpoints: endpoints.clone(),
                prefix: prefix.clone(),
                ca: ca_file.as_ref().map(read).transpose()?,
                identity,
                ask_progress: None,
            };
            EtcdStore::connect(options)
                .await
                .map(|store| Arc::new(store) as Arc<dyn Store>)
        }
    })
}

/// Fills the cache and keeps it up.
async fn follow(server: &Arc<Server>) -> Result<JoinHandle<()>, StoreError> {
    let newest = server.store.revision().await?;
    let following = server.cache.start(Arc::clone(&server.store)).await?;
    let follower = server.clone();
    let task = tokio::spawn(async move {
        let error = following.await;
        follower.ended.send_replace(Some(error));
    });
    let caught_up = tokio::time::timeout(FIRST_EVENT, server.cache.wait_for(newest)).await;
    if caught_up.is_err() {
        // The last revisions hold nothing of ours, as in an etcd that is new or shared, and etcd may take
        // ten minutes to say so. The event of a write of our own comes at once.
        let write = Op::Put(
            keys::STARTED.into(),
            Bytes::from_static(env!("CARGO_PKG_VERSION").as_bytes()),
        );
        let transaction = Transaction {
            expect: Vec::new(),
            ops: vec![write],
        };
        if let Err(error) = server.store.commit(transaction).await {
            tracing::warn!(%error, "cannot write to the store; waiting for its next event");
        }
        server.cache.wait_for(newest).await;
    }
    Ok(task)
}

#[cfg(test)]
mod tests;
