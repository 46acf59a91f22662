//! What does the collector keep of the objects that it watches?
//!
//! It sees all pods, Services and slices of the cluster, so it keeps little of each.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use pointsman_model::Moment;
use pointsman_objects::node::AddressKind;
use pointsman_objects::{ConfigNode, EndpointSlice, Node, Pod, Service, WriteTimes, config_node};
use pointsman_sli::endpoints::{EndpointFacts, SliceFacts};
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

/// What gates need of a slice. `None` if it belongs to no Service.
pub(crate) fn slice(slice: &EndpointSlice, revision: u64) -> Option<SliceFacts> {
    let service = format!("{}/{}", slice.metadata.namespace, slice.service_name()?);
    let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
        let pod = endpoint.target.as_ref().filter(|pod| !pod.name.is_empty())?;
        Some(EndpointFacts {
            pod: format!("{}/{}", pod.namespace, pod.name).into(),
            uid: Box::from(&*pod.uid),
            node: endpoint.node_name.clone().unwrap_or_default(),
            ready: endpoint.conditions.is_ready(),
            serving: endpoint.conditions.is_serving(),
            terminating: endpoint.conditions.is_terminating(),
        })
    });
    Some(SliceFacts {
        service: service.into(),
        revision,
        endpoints: endpoints.collect(),
    })
}

/// A Service, and whether what programmers read of it is the same as before, whatever is in it: its specification and
/// the addresses of its load balancer.
#[derive(Debug)]
pub(crate) struct Described {
    service: Service,
    times: WriteTimes,
    spec_hash: u64,
}

impl<'de> Deserialize<'de> for Described {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Spec<'a> {
            #[serde(borrow, default)]
            spec: Option<&'a RawValue>,
            #[serde(borrow, default)]
            status: Option<Status<'a>>,
            #[serde(default)]
            metadata: WriteTimes,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status<'a> {
            #[serde(borrow, default)]
            load_balancer: Option<&'a RawValue>,
        }
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let described: Spec<'_> = serde_json::from_str(raw.get()).map_err(de::Error::custom)?;
        let mut hasher = DefaultHasher::new();
        let balancer = described.status.and_then(|status| status.load_balancer);
        [described.spec, balancer]
            .map(|it| it.map(RawValue::get))
            .hash(&mut hasher);
        Ok(Self {
            service: serde_json::from_str(raw.get()).map_err(de::Error::custom)?,
            times: described.metadata,
            spec_hash: hasher.finish(),
        })
    }
}

/// A Service as the page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceInfo {
    pub kind: Arc<str>,
    pub cluster_ip: Box<str>,
    /// When this version was written, as far as the API server wrote that down.
    pub written: Option<Moment>,
    /// Which pods it is for, as a label selector; none if it says nothing about that.
    pub selector: Option<Box<str>>,
    pub spec_hash: u64,
    /// Whether programmers do anything for it.
    pub programmed: bool,
}

impl From<Described> for ServiceInfo {
    fn from(described: Described) -> Self {
        let Described {
            service,
            times,
            spec_hash,
        } = described;
        let equals = |(key, value): (&str, &str)| format!("{key}={value}");
        let selector = service.selector.as_ref();
        let selector = selector.map(|it| it.iter().map(equals).collect::<Vec<_>>().join(","));
        Self {
            selector: selector.map(Into::into),
            programmed: service.is_programmed(),
            written: times.written(),
            kind: service.kind.unwrap_or_else(|| "ClusterIP".into()),
            cluster_ip: service.cluster_ip,
            spec_hash,
        }
    }
}

/// A Node as far as programmers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub address: Option<IpAddr>,
    /// Whether its agent reports. A node that is merely not ready still forwards packets.
    pub reachable: bool,
    /// Whether a programmer is to be expected on it.
    pub programmed: bool,
}

impl From<&Node> for NodeInfo {
    fn from(node: &Node) -> Self {
        let mut addresses = node.addresses.iter();
        let internal = addresses.find(|(kind, _)| *kind == AddressKind::Internal);
        Self {
            address: internal.map(|(_, address)| *address),
            reachable: !node.is_unreachable(),
            programmed: node.is_programmed(),
        }
    }
}

/// A pod as far as gates and waterfalls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodInfo {
    pub uid: Arc<str>,
    pub node: Option<Arc<str>>,
    pub ready: bool,
    /// When readiness changed, as exactly as somebody wrote it down.
    pub changed: Option<Moment>,
    pub deleting: bool,
}

impl From<Pod> for PodInfo {
    fn from(pod: Pod) -> Self {
        Self {
            ready: pod.is_ready(),
            changed: pod.ready_changed(),
            deleting: pod.is_terminating(),
            uid: pod.metadata.uid,
            node: pod.node_name,
        }
    }
}

/// How far a latency profile is rolled out, if this is the one object that counts.
pub(crate) fn profile(mut object: ConfigNode) -> Option<ConfigNode> {
    if object.profile.is_empty() {
        object.profile = "Default".into();
    }
    (&*object.metadata.name == config_node::NAME).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_says_who_may_get_traffic() {
        let text = r#"{"metadata":{"namespace":"default","name":"web-1","labels":{"kubernetes.io/service-name":"web"}},
            "endpoints":[{"conditions":{"ready":false,"serving":true,"terminating":true},"nodeName":"n1",
            "targetRef":{"kind":"Pod","namespace":"default","name":"a","uid":"u"}},
            {"conditions":{},"targetRef":{"kind":"Pod","namespace":"default","name":"b"}},{"conditions":{}}]}"#;
        let facts = slice(&serde_json::from_str(text).unwrap(), 9).unwrap();
        assert_eq!((&*facts.service, facts.endpoints.len()), ("default/web", 2));
        assert!(facts.endpoints[0].terminating && !facts.endpoints[0].ready && facts.endpoints[0].serving);
        assert!(facts.endpoints[1].ready && facts.endpoints[1].serving);
    }

    #[test]
    fn odd_objects_are_read_without_complaint() {
        let odd: EndpointSlice = serde_json::from_str(r#"{"metadata":{},"endpoints":null}"#).unwrap();
        assert!(slice(&odd, 1).is_none());
        let node: Node =
            serde_json::from_str(r#"{"status":{"addresses":[{"type":"InternalIP","address":"x"}]}}"#)
                .unwrap();
        let info = NodeInfo::from(&node);
        assert_eq!(
            (info.address, info.reachable, info.programmed),
            (None, true, true)
        );
        let pod: Pod = serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap();
        assert!(!PodInfo::from(pod).deleting);
        let service: Described =
            serde_json::from_str(r#"{"metadata":{},"spec":{"clusterIP":"None"}}"#).unwrap();
        assert!(!ServiceInfo::from(service).programmed);
    }

    #[test]
    fn any_change_of_a_specification_is_noticed_and_nothing_else() {
        let hash = |text: &str| serde_json::from_str::<Described>(text).unwrap().spec_hash;
        let first = hash(r#"{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}"#);
        assert_eq!(
            first,
            hash(r#"{"metadata":{"name":"a","labels":{"b":"c"}},"spec":{"ports":[{"port":80}]}}"#)
        );
        assert_ne!(
            first,
            hash(r#"{"metadata":{"name":"a"},"spec":{"ports":[{"port":81}]}}"#)
        );
        let status = |text: &str| {
            hash(&format!(
                r#"{{"metadata":{{"name":"a"}},"spec":{{"ports":[{{"port":80}}]}},"status":{text}}}"#
            ))
        };
        assert_eq!(first, status(r#"{"conditions":[]}"#));
        assert_ne!(
            first,
            status(r#"{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}"#)
        );
    }

    #[test]
    fn only_the_one_profile_of_the_cluster_counts() {
        let read = |name: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{}},"status":{{"workerLatencyProfileStatus":
                {{"conditions":[{{"type":"Complete","status":"True"}}]}}}}}}"#
            );
            profile(serde_json::from_str(&text).unwrap())
        };
        assert_eq!(read("other"), None);
        let found = read("cluster").unwrap();
        assert_eq!(
            (&*found.profile, found.conditions[0].r#type.as_str()),
            ("Default", "Complete")
        );
    }
}
