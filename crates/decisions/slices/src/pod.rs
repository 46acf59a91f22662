//! What does the slice controller need to know about a pod?

use std::net::IpAddr;

use serde::Deserialize;

use crate::service::Protocol;
use crate::text::{Interner, Labels, Text, non_empty, nullable};
use crate::time::Moment;

/// Pod annotation with the microsecond time of the last readiness change, set by Pointsman's node
/// agent in the same write as the Ready condition (whose own time has whole seconds).
pub const CHANGE_TIME_ANNOTATION: &str = "pointsman.io/last-change-time";

/// A named container port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Name that a Service's target port may use.
    pub name: Text,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Container port number.
    pub port: i32,
}

/// The fields of a pod that decide its endpoints, well below 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawPod")]
pub struct Pod {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Unique id; a pod recreated under the same name has another.
    pub uid: Text,
    /// Resource version, 0 when it is not a number.
    pub revision: u64,
    /// Labels, shared between pods of a template when interned.
    pub labels: Labels,
    /// Node, once scheduled.
    pub node_name: Option<Text>,
    /// `spec.hostname`.
    pub hostname: Option<Text>,
    /// `spec.subdomain`.
    pub subdomain: Option<Text>,
    /// Addresses from `status.podIPs`, re-rendered from lenient text.
    pub ips: Box<[IpAddr]>,
    /// Ports by name: containers in order, then restartable init containers.
    pub named_ports: Box<[NamedPort]>,
    /// The Ready condition is True.
    pub ready: bool,
    /// The pod ran to its end (phase Failed or Succeeded).
    pub finished: bool,
    /// When the Ready condition last changed.
    pub ready_changed: Option<Moment>,
    /// When deletion was asked for: the deletion timestamp less the grace period. Whole seconds.
    pub deletion_requested: Option<Moment>,
}

impl Pod {
    /// Whether the pod is being deleted.
    pub fn terminating(&self) -> bool {
        self.deletion_requested.is_some()
    }

    /// Whether the pod can be an endpoint of any Service that selects it.
    pub fn has_endpoint(&self) -> bool {
        !self.finished && !self.ips.is_empty()
    }

    /// When the pod itself last changed as far as endpoints go, by its own account.
    pub fn last_change(&self) -> Option<Moment> {
        self.ready_changed.max(self.deletion_requested)
    }

    /// Shares the texts that repeat from pod to pod.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.share(&mut self.namespace);
        interner.share_labels(&mut self.labels);
        interner.share_option(&mut self.node_name);
        interner.share_option(&mut self.subdomain);
        for port in &mut self.named_ports {
            interner.share(&mut port.name);
        }
    }

    /// Bytes on the heap that are this pod's own, texts that interning shares not counted.
    pub fn own_heap_bytes(&self) -> usize {
        self.name.len()
            + self.uid.len()
            + 2 * 16
            + self.hostname.as_ref().map_or(0, |text| text.len() + 16)
            + size_of_val(&*self.ips)
            + size_of_val(&*self.named_ports)
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPod {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    labels: Labels,
    #[serde(deserialize_with = "nullable")]
    annotations: RawAnnotations,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAnnotations {
    #[serde(rename = "pointsman.io/last-change-time")]
    change_time: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<RawContainer>,
    #[serde(deserialize_with = "nullable")]
    init_containers: Vec<RawContainer>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    restart_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    ports: Vec<RawPort>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    name: Option<String>,
    protocol: Protocol,
    container_port: i32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pod_ips: Vec<RawIp>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<RawCondition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawIp {
    ip: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawCondition {
    r#type: String,
    status: String,
    last_transition_time: Option<String>,
}

impl From<RawPod> for Pod {
    fn from(raw: RawPod) -> Self {
        let RawPod {
            metadata,
            spec,
            status,
        } = raw;
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.r#type == "Ready");
        let transition = ready
            .and_then(|c| c.last_transition_time.as_deref())
            .and_then(Moment::parse);
        let stamped = metadata
            .annotations
            .change_time
            .as_deref()
            .and_then(Moment::parse);
        let sidecars = spec
            .init_containers
            .into_iter()
            .filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let named_ports = spec
            .containers
            .into_iter()
            .chain(sidecars)
            .flat_map(|container| container.ports);
        Self {
            namespace: metadata.namespace.into(),
            name: metadata.name.into(),
            uid: metadata.uid.into(),
            revision: metadata.resource_version.parse().unwrap_or(0),
            labels: metadata.labels,
            node_name: non_empty(spec.node_name),
            hostname: non_empty(spec.hostname),
            subdomain: non_empty(spec.subdomain),
            ips: status
                .pod_ips
                .iter()
                .filter_map(|raw| parse_ip(&raw.ip))
                .collect(),
            named_ports: named_ports
                .filter_map(|raw| {
                    Some(NamedPort {
                        name: non_empty(raw.name)?,
                        protocol: raw.protocol,
                        port: raw.container_port,
                    })
                })
                .collect(),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
            ready_changed: transition.map(|transition| refine(transition, stamped)),
            deletion_requested: metadata.deletion_timestamp.as_deref().map(|text| {
                // An unreadable timestamp still means that the pod is going away.
                Moment::parse(text)
                    .unwrap_or(Moment::from_micros(0))
                    .minus_seconds(metadata.deletion_grace_period_seconds.unwrap_or(0).max(0))
            }),
        }
    }
}

/// Takes the stamped time when it tells the same second as the condition, only finer. A stamp of
/// another second belongs to another change: somebody else wrote the condition since.
fn refine(transition: Moment, stamped: Option<Moment>) -> Moment {
    stamped
        .filter(|stamp| stamp.start_of_second() == transition)
        .unwrap_or(transition)
}

/// Parses as Kubernetes always has: leading zeros in IPv4 are decimal and dropped.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let mut octets = [0u8; 4];
    let mut words = text.split('.');
    for octet in &mut octets {
        let word = words.next()?;
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = word.trim_start_matches('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
    }
    words.next().is_none().then(|| octets.into())
}
