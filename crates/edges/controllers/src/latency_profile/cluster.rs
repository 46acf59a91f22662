//! How are Pointsman's own roles configured? By ConfigMaps that they follow while they run.

use super::driver::{Desk, Doing, Driver, DriverError, Part, Posted, Reading, Version};
use super::objects::{
    CONFIG_NODE, CONTROLLERS_MAP, ConfigNode, EPOCH, LEDGER_KEY, LEDGER_MAP, NAMESPACE, NODE_MAP, SERVER_MAP,
    Settings, reading,
};
use super::wire::{RawStored, read_ledger, write_ledger};
use jiff::Timestamp;
use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_api_client::{Api, ApiError, Client, Patch, Resource, Scope};
use pointsman_latency_profile::plan::Change;
use pointsman_latency_profile::rollout::{
    Condition, Ledger, NodeReading, NodesReading, Notice, Single, Spec, Stored, merge,
};
use pointsman_latency_profile::state::Component;
use pointsman_objects::{ConfigMap, Node};
use pointsman_protocol::settings;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `configmaps`.
pub const CONFIG_MAPS: Resource = Resource::core("configmaps");
/// `nodes.config.openshift.io`.
pub const CONFIG_NODES: Resource = Resource::new("config.openshift.io", "v1", "nodes");

/// A cluster whose roles are Pointsman's.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    recorder: Option<Recorder>,
}

struct Configured {
    client: Client,
    component: Component,
}

impl Cluster {
    /// Reports events through `recorder`.
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self {
            client,
            recorder: Some(recorder),
        }
    }

    pub fn reader(client: Client) -> Self {
        Self {
            client,
            recorder: None,
        }
    }

    /// The three components, in the order of their owners.
    pub fn drivers(&self) -> [Arc<dyn Driver>; 3] {
        Component::ALL.map(|component| {
            Arc::new(Configured {
                client: self.client.clone(),
                component,
            }) as Arc<dyn Driver>
        })
    }

    fn maps(&self) -> Api {
        self.client.api(CONFIG_MAPS, Some(NAMESPACE))
    }
}

impl Configured {
    fn maps(&self) -> Api {
        self.client.api(CONFIG_MAPS, Some(NAMESPACE))
    }

    fn name(&self) -> &'static str {
        match self.component {
            Component::Kubelet => NODE_MAP,
            Component::KubeControllerManager => CONTROLLERS_MAP,
            Component::KubeAPIServer => SERVER_MAP,
        }
    }

    async fn nodes(&self) -> Result<BTreeMap<String, NodeReading>, ApiError> {
        let nodes = self.client.list::<Node>(&Scope::all(Resource::NODES)).await?;
        let readings = nodes
            .iter()
            .map(|node| (node.metadata.name.to_string(), reading(node)));
        Ok(readings.collect())
    }

    async fn read_now(&self) -> Result<Reading, ApiError> {
        let (map, version) = find(&self.maps(), self.name()).await?;
        let map = Settings(&map);
        let epoch = map.epoch();
        let part = match self.component {
            Component::Kubelet => {
                let (configured, problem) = map.reports();
                Part::Nodes(NodesReading {
                    configured,
                    nodes: self.nodes().await?,
                    epoch,
                    problem,
                })
            }
            Component::KubeControllerManager => {
                let (configured, problem) = map.grace();
                Part::Grace(Single {
                    configured,
                    announced: map.announced_grace(),
                    epoch,
                    problem,
                })
            }
            Component::KubeAPIServer => {
                let (configured, problem) = map.tolerations();
                Part::Tolerations(Single {
                    configured,
                    announced: map.announced_tolerations(),
                    epoch,
                    problem,
                })
            }
        };
        Ok(Reading { part, version })
    }
}

impl Driver for Configured {
    fn read(&self) -> Doing<'_, Reading> {
        Box::pin(async { self.read_now().await.map_err(failed) })
    }

    fn prepare(&self) -> Doing<'_, ()> {
        Box::pin(async { write(&self.maps(), self.name(), &Version(None), Map::new(), None).await })
    }

    fn write<'a>(&'a self, epoch: u64, change: Option<&'a Change>, version: &'a Version) -> Doing<'a, ()> {
        let data = change.map(data).unwrap_or_default();
        Box::pin(async move { write(&self.maps(), self.name(), version, data, Some(epoch)).await })
    }
}

impl Desk for Cluster {
    fn ledger(&self) -> Doing<'_, (Ledger, Version)> {
        Box::pin(async {
            let (map, version) = find(&self.maps(), LEDGER_MAP).await.map_err(failed)?;
            let text = map.data.get(LEDGER_KEY).map_or("{}", String::as_str);
            let ledger = read_ledger(text).unwrap_or_else(|error| {
                tracing::warn!(%error, "the ledger of the latency profile cannot be read and starts anew");
                Ledger::default()
            });
            Ok((ledger, version))
        })
    }

    fn record<'a>(&'a self, ledger: &'a Ledger, version: &'a Version) -> Doing<'a, ()> {
        Box::pin(async {
            let text = write_ledger(ledger);
            let data = Map::from_iter([(LEDGER_KEY.to_owned(), Value::from(text))]);
            write(&self.maps(), LEDGER_MAP, version, data, None).await
        })
    }

    fn spec(&self) -> Doing<'_, (Option<Spec>, Posted)> {
        Box::pin(async {
            let api = self.client.api(CONFIG_NODES, None);
            match api.get::<ConfigNode>(CONFIG_NODE).await {
                Ok(object) => {
                    let posted = Posted {
                        conditions: object.conditions(),
                        version: Some(object.metadata.resource_version.to_string()),
                        uid: object.metadata.uid.to_string(),
                    };
                    Ok((Some(object.wanted()), posted))
                }
                Err(ApiError::NotFound(_)) => Ok((None, Posted::default())),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn post<'a>(&'a self, posted: &'a Posted, conditions: &'a [Condition]) -> Doing<'a, Option<Vec<Stored>>> {
        Box::pin(async {
            let Some(version) = &posted.version else {
                return Ok(None);
            };
            let Some(merged) = merge(&posted.conditions, conditions, Timestamp::now()) else {
                return Ok(Some(posted.conditions.clone()));
            };
            let conditions: Vec<RawStored> = merged.iter().cloned().map(RawStored).collect();
            let status = json!({ "conditions": conditions, "relatedObjects": related() });
            let patch = json!({
                "metadata": { "resourceVersion": version },
                "status": { "workerLatencyProfileStatus": status },
            });
            let patch = Patch::Merge(patch.to_string().into_bytes());
            let api = self.client.api(CONFIG_NODES, None);
            api.patch_status::<IgnoredAny>(CONFIG_NODE, patch)
                .await
                .map_err(failed)?;
            Ok(Some(merged))
        })
    }

    fn tell(&self, posted: &Posted, notice: &Notice) {
        let Some(recorder) = &self.recorder else { return };
        let subject = if posted.version.is_some() {
            Subject {
                api_version: "config.openshift.io/v1".into(),
                kind: "Node".into(),
                namespace: String::new(),
                name: CONFIG_NODE.into(),
                uid: posted.uid.clone(),
            }
        } else {
            // The request itself is gone: people look next where owners write.
            Subject {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: NAMESPACE.into(),
                name: LEDGER_MAP.into(),
                uid: String::new(),
            }
        };
        recorder.record(News {
            subject,
            severity: if notice.warning {
                Severity::Warning
            } else {
                Severity::Normal
            },
            reason: notice.reason.to_owned(),
            message: notice.message.clone(),
        });
    }
}

async fn find(maps: &Api, name: &str) -> Result<(ConfigMap, Version), ApiError> {
    match maps.get::<ConfigMap>(name).await {
        Ok(map) => {
            let version = Version(Some(map.metadata.resource_version.to_string()));
            Ok((map, version))
        }
        Err(ApiError::NotFound(_)) => Ok((ConfigMap::default(), Version(None))),
        Err(error) => Err(error),
    }
}

/// Creates or changes a ConfigMap, on condition of its version.
async fn write(
    maps: &Api,
    name: &str,
    version: &Version,
    data: Map<String, Value>,
    epoch: Option<u64>,
) -> Result<(), DriverError> {
    let mut metadata = json!({ "name": name });
    if let Some(epoch) = epoch {
        metadata["annotations"] = json!({ EPOCH: epoch.to_string() });
    }
    let done = match &version.0 {
        None => {
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
            maps.create::<IgnoredAny>(map.to_string().into_bytes()).await
        }
        Some(version) => {
            metadata["resourceVersion"] = json!(version);
            let patch = json!({ "metadata": metadata, "data": data });
            maps.patch::<IgnoredAny>(name, Patch::Merge(patch.to_string().into_bytes()))
                .await
        }
    };
    done.map(drop).map_err(failed)
}

/// The entries that carry a change.
fn data(change: &Change) -> Map<String, Value> {
    let entries = match change {
        Change::Reports(periods) => periods
            .iter()
            .map(|(pool, period)| (settings::REPORT_PERIOD.pool_key(pool.name()), period.to_string()))
            .collect(),
        Change::Grace(grace) => vec![settings::GRACE_PERIOD.entry(grace.0)],
        Change::Tolerations(seconds) => vec![
            settings::NOT_READY_TOLERATION.entry(seconds.not_ready),
            settings::UNREACHABLE_TOLERATION.entry(seconds.unreachable),
        ],
    };
    entries
        .into_iter()
        .map(|(key, text)| (key, text.into()))
        .collect()
}

fn related() -> Value {
    let related = settings::ALL
        .map(|name| json!({ "group": "", "resource": "configmaps", "namespace": NAMESPACE, "name": name }));
    json!(related)
}

fn failed(error: ApiError) -> DriverError {
    match error {
        ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::NotFound(_) => DriverError::Changed,
        ApiError::Refused(_) | ApiError::NamespaceTerminating(_) => DriverError::Refused(error.to_string()),
        ApiError::Busy(_) | ApiError::Unreachable(_) | ApiError::Unreadable(_) | ApiError::Expired(_) => {
            DriverError::Unknown(error.to_string())
        }
    }
}
