//! What does a probe check, and when?

use super::PortRef;
use crate::probe::{EffectiveProbe, Given};
use crate::read::nullable;
use serde::Deserialize;

/// A probe of a container. Numbers are as given: 0 is absent, and sums may be nonsense.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    pub exec: Option<Exec>,
    pub http_get: Option<HttpGet>,
    pub tcp_socket: Option<TcpSocket>,
    pub grpc: Option<Grpc>,
    #[serde(deserialize_with = "nullable")]
    pub initial_delay_seconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub initial_delay_milliseconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub period_seconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub period_milliseconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub timeout_seconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub timeout_milliseconds: i64,
    #[serde(deserialize_with = "nullable")]
    pub success_threshold: i64,
    #[serde(deserialize_with = "nullable")]
    pub failure_threshold: i64,
    /// Grace for a container that this probe has killed.
    pub termination_grace_period_seconds: Option<i64>,
}

/// What a probe does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    Exec(&'a Exec),
    HttpGet(&'a HttpGet),
    TcpSocket(&'a TcpSocket),
    Grpc(&'a Grpc),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Exec {
    #[serde(deserialize_with = "nullable")]
    pub command: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGet {
    /// The pod's own address if empty.
    #[serde(deserialize_with = "nullable")]
    pub host: String,
    #[serde(deserialize_with = "nullable")]
    pub port: PortRef,
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    #[serde(deserialize_with = "nullable")]
    pub scheme: String,
    #[serde(deserialize_with = "nullable")]
    pub http_headers: Vec<Header>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Header {
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TcpSocket {
    /// The pod's own address if empty.
    #[serde(deserialize_with = "nullable")]
    pub host: String,
    #[serde(deserialize_with = "nullable")]
    pub port: PortRef,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Grpc {
    #[serde(deserialize_with = "nullable")]
    pub port: PortRef,
    /// The service whose health is asked for; the server as a whole if empty.
    #[serde(deserialize_with = "nullable")]
    pub service: String,
}

impl Probe {
    /// What the probe does, if it says.
    pub fn action(&self) -> Option<Action<'_>> {
        let exec = self.exec.as_ref().map(Action::Exec);
        exec.or(self.http_get.as_ref().map(Action::HttpGet))
            .or(self.tcp_socket.as_ref().map(Action::TcpSocket))
            .or(self.grpc.as_ref().map(Action::Grpc))
    }

    /// The probe's times with defaults applied and offsets added.
    pub fn effective(&self) -> EffectiveProbe {
        EffectiveProbe::sum(Given {
            initial_delay: (self.initial_delay_seconds, self.initial_delay_milliseconds),
            period: (self.period_seconds, self.period_milliseconds),
            timeout: (self.timeout_seconds, self.timeout_milliseconds),
        })
    }

    /// The same probe without offsets in milliseconds.
    #[must_use]
    pub fn in_whole_seconds(&self) -> Self {
        Self {
            initial_delay_milliseconds: 0,
            period_milliseconds: 0,
            timeout_milliseconds: 0,
            ..self.clone()
        }
    }
}
