//! What do all requests share?

use crate::access::PolicyIndex;
use crate::audit;
use crate::auth::Authenticator;
use crate::auth::accounts::Accounts;
use crate::auth::flow::FlowControl;
use crate::auth::node_graph::NodeGraph;
use crate::background::accounts::Wanting;
use crate::cache::Cache;
use crate::cache::object::Object;
use crate::keys;
use crate::metrics::Metrics;
use crate::node_client::NodeClient;
use crate::read::not_found;
use crate::request::Request;
use crate::settings::Settings;
use crate::work::Lanes;
use jiff::Timestamp;
use pointsman_model::FeatureGates;
use pointsman_rules::admission::plugins::Plugins;
use pointsman_rules::decode::{self, BodyFormat};
use pointsman_rules::strategy::{ClusterSettings, Context};
use pointsman_rules::{ApiError, Kind, schema};
use pointsman_store::{Store, StoreError};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tokio::sync::watch;

/// The state behind every request.
pub struct Server {
    /// Where objects live.
    pub store: Arc<dyn Store>,
    /// The same as it is on disk, where Secrets are encrypted.
    pub raw_store: Arc<dyn Store>,
    /// What the store holds, close at hand.
    pub cache: Arc<Cache>,
    /// Ranges of Services.
    pub cluster: ClusterSettings,
    /// Which optional behaviours are on.
    pub gates: FeatureGates,
    /// Which optional admission is on.
    pub plugins: Plugins,
    /// What can change while the server runs.
    pub settings: Arc<Settings>,
    /// Who is who.
    pub authenticator: Authenticator,
    /// Issues tokens of service accounts, and knows them again.
    pub accounts: Arc<Accounts>,
    /// Who may do what.
    pub policy: Arc<PolicyIndex>,
    /// What pods name, by node.
    pub graph: Arc<NodeGraph>,
    /// Namespaces in which something may be missing.
    pub wanting: Arc<Wanting>,
    /// The authority of the server's certificate, for pods; empty before it is known.
    pub root_ca: watch::Sender<String>,
    /// How many requests may run at once.
    pub flow: FlowControl,
    /// Where the work of large requests is done.
    pub work: Lanes,
    /// Up to where history was dropped. A token of an earlier state has expired, also where the cache still knows it:
    /// how long it is good does not depend on how much is written.
    pub compacted: AtomicU64,
    /// What is counted.
    pub metrics: Metrics,
    /// Where requests are recorded, if they are.
    pub audit: Option<Arc<audit::Log>>,
    /// How nodes are asked for logs.
    pub nodes: NodeClient,
    /// Whether the default objects are there.
    pub bootstrapped: AtomicBool,
    /// Turns true when the server shuts down.
    pub stop: watch::Sender<bool>,
    /// Turns true a moment later, when watches end.
    pub farewell: watch::Sender<bool>,
    /// Why the store can be used no more.
    pub ended: watch::Sender<Option<StoreError>>,
}

impl Server {
    /// Turns true when the server shuts down.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// What rules may depend on.
    pub fn context(&self, now: Timestamp) -> Context<'_> {
        Context {
            now,
            gates: &self.gates,
            cluster: &self.cluster,
        }
    }

    /// An object from the cache.
    pub fn find(&self, kind: &'static Kind, namespace: &str, name: &str) -> Result<Arc<Object>, ApiError> {
        self.cache
            .of(kind)
            .get(&keys::local(namespace, name))
            .ok_or_else(|| not_found(kind, name))
    }

    /// The object in a request's body, with warnings about its fields.
    pub fn decode_body(&self, request: &Request) -> Result<(Value, Vec<String>), ApiError> {
        let kind = request.target.kind;
        let format = BodyFormat::from_content_type(Some(&request.content_type))?;
        let shape = schema::of(kind);
        let validation = request.field_validation()?;
        let decoded = decode::decode(&request.body, format, shape)?;
        for (field, wanted) in [("kind", kind.kind.to_owned()), ("apiVersion", kind.api_version())] {
            let stated = pointsman_rules::value::str_at(&decoded.object, &[field]);
            if !stated.is_empty() && stated != wanted {
                let why = format!(
                    "the {field} in the data ({stated}) does not match the expected {field} ({wanted})"
                );
                return Err(ApiError::BadRequest(why));
            }
        }
        let mut decoded = decoded;
        decoded.strict.extend(kind.strategy.prune(&mut decoded.object));
        validation.apply(decoded, kind)
    }

    /// A store failure as clients see it.
    pub fn store_error(&self, error: &StoreError) -> ApiError {
        match error {
            StoreError::Full => ApiError::Unavailable(
                "the store has no space left: nothing was written; free disk space on the API server's machine".into(),
            ),
            StoreError::Unavailable(why) | StoreError::Ended(why) => ApiError::Timeout {
                message: format!("the store cannot be reached, the write may or may not have happened: {why}"),
                cause: None,
                retry_after_seconds: 1,
            },
            StoreError::Compacted { .. } => {
                ApiError::Expired { message: error.to_string(), fresh_continue: None }
            }
            StoreError::Invalid(why) => ApiError::TooLarge(why.clone()),
            StoreError::Future { .. }
            | StoreError::Damaged(_)
            | StoreError::Sealed(_)
            | StoreError::UnknownFormat(_)
            | StoreError::InUse(_) => {
                tracing::error!(%error, "the store failed");
                ApiError::Internal(error.to_string())
            }
        }
    }

    /// A refusal for a moment.
    pub fn busy(&self, what: &str) -> ApiError {
        ApiError::TooManyRequests {
            message: format!("{what}; try again"),
            retry_after_seconds: 1,
            cause: None,
        }
    }

    /// A fresh object identity.
    pub fn new_uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    /// A random number below `below`.
    pub fn random_below(&self, below: u64) -> u64 {
        if below == 0 { 0 } else { fastrand::u64(..below) }
    }

    /// A random number in [0, 1).
    pub fn random_unit(&self) -> f64 {
        fastrand::f64()
    }
}
