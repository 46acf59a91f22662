//! What does a pod say to the node that runs it?
//!
//! The full reading, of everything that running a pod depends on. Whoever only places, counts or connects pods
//! reads the compact [`Pod`](crate::Pod); a law (`tests/pod_readings.rs`) says that both agree on every field
//! they share. `null` reads as absent everywhere, as it does in Go.

mod environment;
mod probe;
mod security;
mod status;
mod volume;

pub use environment::{EnvFrom, FieldRef, KeyRef, ObjectRef, Origin, ResourceRef, Variable, expand};
pub use probe::{Action, Exec, Grpc, Header, HttpGet, Probe, TcpSocket};
pub use security::{CapabilityNames, ContainerSecurity, PodSecurity, Profile, Profiles, Sysctl, UserIds};
pub use status::{ReportedCondition, ReportedContainer, ReportedRunning, ReportedState, ReportedStatus};
pub use volume::{
    AccountToken, EmptyDir, Files, FilesItem, PodFields, PodFieldsItem, Projection, Volume, VolumeKind,
};

use crate::metadata::{All, Metadata};
use crate::read::nullable;
use crate::value::quantity;
use jiff::Timestamp;
use pointsman_model::Quantity;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A pod as the node reads it that runs it.
///
/// A field of a wrong type costs the whole pod: what is left of it would run as nobody meant it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodManifest {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// What was reported before.
    #[serde(deserialize_with = "nullable")]
    pub status: ReportedStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers that run one after the other before all others, and sidecars.
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: RestartPolicy,
    /// Seconds between the stop signal and the kill.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that the pod may be active.
    pub active_deadline_seconds: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// Whether the pod has the node's own network.
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    #[serde(deserialize_with = "nullable")]
    pub service_account_name: String,
    #[serde(deserialize_with = "nullable")]
    pub hostname: String,
    #[serde(deserialize_with = "nullable")]
    pub subdomain: String,
    #[serde(deserialize_with = "nullable")]
    pub host_aliases: Vec<HostAlias>,
    #[serde(deserialize_with = "nullable")]
    pub dns_policy: String,
    pub dns_config: Option<DnsConfig>,
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<Volume>,
    #[serde(deserialize_with = "nullable")]
    pub security_context: PodSecurity,
    /// Whether the pod has the node's users; unset means that it has.
    pub host_users: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub runtime_class_name: String,
    /// How important it is, as its class says.
    #[serde(deserialize_with = "nullable")]
    pub priority: i64,
}

/// Whether an ended container is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// A condition that somebody else writes and that readiness depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    pub condition_type: String,
}

/// A line of `/etc/hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HostAlias {
    pub ip: String,
    #[serde(deserialize_with = "nullable")]
    pub hostnames: Vec<String>,
}

/// What `/etc/resolv.conf` says, if `dnsPolicy` is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsConfig {
    #[serde(deserialize_with = "nullable")]
    pub nameservers: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub searches: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub options: Vec<DnsOption>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsOption {
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub image: String,
    /// Always, IfNotPresent or Never.
    #[serde(deserialize_with = "nullable")]
    pub image_pull_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub command: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub args: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub working_dir: String,
    #[serde(deserialize_with = "nullable")]
    pub env: Vec<Variable>,
    #[serde(deserialize_with = "nullable")]
    pub env_from: Vec<EnvFrom>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ContainerPort>,
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
    #[serde(deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
    #[serde(deserialize_with = "nullable")]
    pub security_context: ContainerSecurity,
    /// Overrides the pod's policy; `Always` makes an init container a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    #[serde(deserialize_with = "nullable")]
    pub lifecycle: Hooks,
    /// Decides whether traffic may come.
    pub readiness_probe: Option<Probe>,
    /// Decides whether the container is killed.
    pub liveness_probe: Option<Probe>,
    /// Holds the other probes back until the container is up.
    pub startup_probe: Option<Probe>,
    /// The file that a container may explain its end in.
    #[serde(deserialize_with = "nullable")]
    pub termination_message_path: String,
    /// Whether its program reads what attached clients send.
    #[serde(deserialize_with = "nullable")]
    pub stdin: bool,
    /// Whether that ends with the first of them.
    #[serde(deserialize_with = "nullable")]
    pub stdin_once: bool,
    /// Whether its program has a terminal.
    #[serde(deserialize_with = "nullable")]
    pub tty: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub container_port: i64,
    /// The port of the node that leads there; 0 for none.
    pub host_port: i64,
    #[serde(rename = "hostIP", deserialize_with = "nullable")]
    pub host_ip: String,
    #[serde(deserialize_with = "nullable")]
    pub protocol: String,
}

/// Amounts by name, such as `cpu` and `memory`. What is not an amount is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(deserialize_with = "amounts")]
    pub limits: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "amounts")]
    pub requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    #[serde(deserialize_with = "nullable")]
    pub sub_path: String,
    /// The same with references to variables.
    #[serde(deserialize_with = "nullable")]
    pub sub_path_expr: String,
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
}

/// What runs beside a container's start and end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hooks {
    /// Runs right after the start; the container counts as started when it is done.
    pub post_start: Option<Hook>,
    /// Runs before the stop signal.
    pub pre_stop: Option<Hook>,
    #[serde(deserialize_with = "nullable")]
    pub stop_signal: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hook {
    pub sleep: Option<Sleep>,
    pub http_get: Option<HttpGet>,
    pub exec: Option<Exec>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sleep {
    pub seconds: i64,
}

/// A port by its number or by the name that a container gives it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    Number(i64),
    Name(String),
}

impl Default for PortRef {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// An object and the text it was read from, for whoever has to show it unchanged, or must not take an object
/// that cannot be read for one that is gone.
#[derive(Clone, Debug)]
pub struct Verbatim<T> {
    pub text: Box<RawValue>,
    /// The object, or what is wrong with it.
    pub object: Result<T, String>,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Verbatim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object = serde_json::from_str(text.get()).map_err(|error| error.to_string());
        Ok(Self { text, object })
    }
}

impl PodManifest {
    /// All containers, those of the beginning first.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().chain(&self.spec.containers)
    }

    pub fn container(&self, name: &str) -> Option<&Container> {
        self.all_containers().find(|container| container.name == name)
    }

    /// Init containers that run beside the others; they start first and end last.
    pub fn sidecars(&self) -> impl Iterator<Item = &Container> {
        let init = self.spec.init_containers.iter();
        init.filter(|container| container.restart_policy == Some(RestartPolicy::Always))
    }

    /// What the pod calls itself inside.
    pub fn hostname(&self) -> &str {
        match self.spec.hostname.as_str() {
            "" => &self.metadata.name,
            hostname => hostname,
        }
    }
}

impl RestartPolicy {
    /// Whether a container that ended with `code` runs again.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

impl Container {
    /// The number of a port; the error is a sentence.
    pub fn port(&self, port: &PortRef) -> Result<u16, String> {
        let number = match port {
            PortRef::Number(number) => *number,
            PortRef::Name(name) => match name.parse() {
                Ok(number) => number,
                Err(_) => {
                    let named = self.ports.iter().find(|port| port.name == *name);
                    named
                        .map(|port| port.container_port)
                        .ok_or_else(|| format!("the container has no port named {name:?}"))?
                }
            },
        };
        match u16::try_from(number) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{number} is not a port")),
        }
    }

    /// The value of `limits.cpu` and the like in cores or bytes, rounded up.
    pub fn resource(&self, path: &str) -> Option<u64> {
        let (kind, name) = path.split_once('.')?;
        let amounts = match kind {
            "limits" => &self.resources.limits,
            "requests" => &self.resources.requests,
            _ => return None,
        };
        amounts.get(name)?.to_units()
    }
}

fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    let all: BTreeMap<String, Value> = nullable(deserializer)?;
    let amount = |(name, value): (String, Value)| Some((name, quantity(&value)?));
    Ok(all.into_iter().filter_map(amount).collect())
}

fn optional_amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    Ok(quantity(&Value::deserialize(deserializer)?))
}

/// Reads a time; one that cannot be read is absent.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
