//! Which few fields of the watched objects matter here?

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use pointsman_sli::Moment;
use pointsman_sli::endpoints::{EndpointFacts, SliceFacts};
use serde::Deserialize;
use serde_json::value::RawValue;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const CHANGE_TIME: &str = "pointsman.io/last-change-time";

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
    creation_timestamp: Option<String>,
}

impl Metadata {
    fn annotation(&self, name: &str) -> Option<Moment> {
        moment(self.annotations.as_ref()?.get(name)?)
    }
}

/// Reads RFC 3339.
pub(crate) fn moment(text: &str) -> Option<Moment> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(Moment(time.as_microsecond()))
}

/// An EndpointSlice.
#[derive(Deserialize, Debug)]
pub(crate) struct Slice {
    metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    conditions: Conditions,
    target_ref: Option<TargetRef>,
    node_name: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize, Debug)]
struct TargetRef {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

impl Slice {
    /// When the change behind it happened, if it says so.
    pub fn trigger(&self) -> Option<Moment> {
        self.metadata.annotation(TRIGGER_TIME)
    }

    /// What gates need. `None` if the slice belongs to no Service.
    pub fn facts(self, revision: u64) -> Option<SliceFacts> {
        let service = self.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        let service = format!("{}/{service}", self.metadata.namespace).into();
        let endpoints = self.endpoints.unwrap_or_default();
        let endpoints = endpoints.into_iter().filter_map(|endpoint| {
            let pod = endpoint
                .target_ref
                .filter(|it| it.kind == "Pod" && !it.name.is_empty())?;
            let Conditions {
                ready,
                serving,
                terminating,
            } = endpoint.conditions;
            // Conditions that nobody wrote mean a usable endpoint, as the API says.
            let ready = ready.unwrap_or(true);
            Some(EndpointFacts {
                pod: format!("{}/{}", pod.namespace, pod.name).into(),
                uid: pod.uid.into(),
                node: endpoint.node_name.unwrap_or_default().into(),
                ready,
                serving: serving.unwrap_or(ready),
                terminating: terminating.unwrap_or(false),
            })
        });
        Some(SliceFacts {
            service,
            revision,
            endpoints: endpoints.collect(),
        })
    }
}

/// A Service.
#[derive(Deserialize, Debug)]
pub(crate) struct Service {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Box<RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    r#type: Option<String>,
}

/// A Service as the page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceInfo {
    pub kind: String,
    pub cluster_ip: String,
    pub created: Option<Moment>,
    /// Tells whether the specification changed.
    pub spec_hash: u64,
    /// Whether programmers do anything for it.
    pub programmed: bool,
}

impl Service {
    pub fn info(&self) -> ServiceInfo {
        let raw = self.spec.as_deref().map_or("{}", RawValue::get);
        let spec: ServiceSpec = serde_json::from_str(raw).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        raw.hash(&mut hasher);
        let cluster_ip = spec.cluster_ip.unwrap_or_default();
        let foreign = self
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key("service.kubernetes.io/service-proxy-name"));
        ServiceInfo {
            kind: spec.r#type.unwrap_or_else(|| "ClusterIP".to_owned()),
            programmed: !foreign && cluster_ip != "None" && !cluster_ip.is_empty(),
            cluster_ip,
            created: self.metadata.creation_timestamp.as_deref().and_then(moment),
            spec_hash: hasher.finish(),
        }
    }
}

/// A Node.
#[derive(Deserialize, Debug)]
pub(crate) struct Node {
    #[serde(default)]
    status: Option<NodeStatus>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct NodeStatus {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize, Debug)]
struct NodeAddress {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    address: String,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    status: String,
    last_transition_time: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

/// A Node as far as programmers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub address: Option<IpAddr>,
    pub ready: bool,
}

impl Node {
    pub fn info(&self) -> NodeInfo {
        let status = self.status.as_ref();
        let addresses = status
            .and_then(|status| status.addresses.as_ref())
            .into_iter()
            .flatten();
        let conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        NodeInfo {
            address: addresses
                .filter(|address| address.r#type == "InternalIP")
                .find_map(|address| address.address.parse().ok()),
            ready: ready(conditions).is_some_and(|condition| condition.status == "True"),
        }
    }
}

/// A Pod.
#[derive(Deserialize, Debug)]
pub(crate) struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<PodSpec>,
    #[serde(default)]
    status: Option<PodStatus>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct PodStatus {
    conditions: Option<Vec<Condition>>,
}

/// A pod as far as gates and waterfalls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodInfo {
    pub uid: Box<str>,
    pub node: Arc<str>,
    pub ready: bool,
    /// When readiness changed, as exactly as somebody wrote it down.
    pub changed: Option<Moment>,
    pub deleting: bool,
}

impl Pod {
    pub fn info(self) -> PodInfo {
        let conditions = self.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = ready(conditions.into_iter().flatten());
        let exact = self.metadata.annotation(CHANGE_TIME);
        let told = ready.and_then(|condition| moment(condition.last_transition_time.as_deref()?));
        PodInfo {
            ready: ready.is_some_and(|condition| condition.status == "True"),
            changed: exact.max(told),
            uid: self.metadata.uid.into(),
            node: self
                .spec
                .and_then(|spec| spec.node_name)
                .unwrap_or_default()
                .into(),
            deleting: self.metadata.deletion_timestamp.is_some(),
        }
    }
}

fn ready<'a>(conditions: impl Iterator<Item = &'a Condition>) -> Option<&'a Condition> {
    let mut conditions = conditions;
    conditions.find(|condition| condition.r#type == "Ready")
}

/// The cluster's Node configuration, which names the latency profile.
#[derive(Deserialize, Debug)]
pub(crate) struct NodeConfig {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<NodeConfigSpec>,
    #[serde(default)]
    status: Option<NodeConfigStatus>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default)]
struct NodeConfigSpec {
    worker_latency_profile: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct NodeConfigStatus {
    conditions: Option<Vec<Condition>>,
}

/// How far a latency profile is rolled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileInfo {
    pub profile: String,
    /// Type, status, reason and message of each condition.
    pub conditions: Vec<[String; 4]>,
}

impl NodeConfig {
    /// The profile, if this is the one object that counts.
    pub fn info(self) -> Option<ProfileInfo> {
        if self.metadata.name != "cluster" {
            return None;
        }
        let profile = self.spec.and_then(|spec| spec.worker_latency_profile);
        let conditions = self.status.and_then(|status| status.conditions);
        let conditions = conditions.into_iter().flatten().map(|condition| {
            [
                condition.r#type,
                condition.status,
                condition.reason.unwrap_or_default(),
                condition.message.unwrap_or_default(),
            ]
        });
        Some(ProfileInfo {
            profile: profile
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| "Default".to_owned()),
            conditions: conditions.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_tells_who_may_get_traffic() {
        let text = r#"{"metadata":{"namespace":"default","name":"web-1","labels":{"kubernetes.io/service-name":"web"},
            "annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"1970-01-01T00:00:01.5Z"}},
            "endpoints":[{"conditions":{"ready":false,"serving":true,"terminating":true},"nodeName":"n1",
            "targetRef":{"kind":"Pod","namespace":"default","name":"a","uid":"u"}},
            {"conditions":{},"targetRef":{"kind":"Pod","namespace":"default","name":"b"}},{"conditions":{}}]}"#;
        let slice: Slice = serde_json::from_str(text).unwrap();
        assert_eq!(slice.trigger(), Some(Moment(1_500_000)));
        let facts = slice.facts(9).unwrap();
        assert_eq!((&*facts.service, facts.endpoints.len()), ("default/web", 2));
        assert!(facts.endpoints[0].terminating && !facts.endpoints[0].ready && facts.endpoints[0].serving);
        assert!(facts.endpoints[1].ready && facts.endpoints[1].serving);
    }

    #[test]
    fn odd_objects_are_read_without_complaint() {
        let slice: Slice = serde_json::from_str(r#"{"metadata":{},"endpoints":null}"#).unwrap();
        assert!(slice.facts(1).is_none());
        let node: Node =
            serde_json::from_str(r#"{"status":{"addresses":[{"type":"InternalIP","address":"x"}]}}"#)
                .unwrap();
        assert_eq!(
            node.info(),
            NodeInfo {
                address: None,
                ready: false
            }
        );
        let pod: Pod = serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap();
        assert!(!pod.info().deleting);
        let service: Service =
            serde_json::from_str(r#"{"metadata":{},"spec":{"clusterIP":"None"}}"#).unwrap();
        assert!(!service.info().programmed);
    }
}
