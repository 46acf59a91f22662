//! What is checked in a pod, and how?
//!
//! Pods as the API carries them are turned into targets once. A probe that cannot be made, such as
//! one that names a port that the container does not have, stays a target: each round reports why.

use crate::grpc;
use crate::http;
use crate::url::{Scheme, Url, request_target};
use pointsman_objects::pod_manifest::{
    Action, Container, Exec, Grpc, HttpGet, PodManifest, Probe, TcpSocket, expand,
};
use pointsman_probe::{Floors, Kind, Timing};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The probes of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTarget {
    /// The pod's UID, by which the prober knows it.
    pub uid: Arc<str>,
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// Containers that have probes.
    pub containers: Vec<ContainerTarget>,
}

/// The probes of one container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerTarget {
    /// The container's name.
    pub name: Arc<str>,
    /// Whether it is an init container that restarts.
    pub sidecar: bool,
    /// At most one probe of each kind.
    pub probes: Vec<ProbeTarget>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProbeTarget {
    /// What it decides.
    pub kind: Kind,
    /// When it runs.
    pub timing: Timing,
    /// What it does.
    pub check: Check,
}

/// What a check does.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// Gets a URL.
    Http(HttpCheck),
    Tcp {
        /// A host name or an address.
        host: Arc<str>,
        port: u16,
    },
    /// Asks the gRPC health service.
    Grpc {
        /// The pod's address.
        host: IpAddr,
        port: u16,
        /// The whole request.
        request: Arc<[u8]>,
    },
    /// Runs a command in the container.
    Exec {
        /// The command, with references to variables expanded.
        command: Arc<[String]>,
    },
    /// Cannot be made, for this reason.
    Impossible(Arc<str>),
}

/// A URL to get, with headers.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpCheck {
    pub url: Arc<Url>,
    /// The probe's own headers.
    pub headers: Arc<[(String, String)]>,
    /// The whole request.
    pub request: Arc<[u8]>,
    user_agent: Arc<str>,
}

/// How pods are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The gate `SubSecondProbes`: without it, millisecond fields are as good as absent.
    pub sub_second: bool,
    /// The shortest times.
    pub floors: Floors,
    /// What HTTP and gRPC servers see as `User-Agent`.
    pub user_agent: String,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            sub_second: true,
            floors: Floors::default(),
            user_agent: "kube-probe/1.33".to_owned(),
        }
    }
}

impl Reading {
    /// The probes of a pod with its address, if it has one yet.
    pub fn pod(&self, pod: &PodManifest, ip: Option<IpAddr>) -> PodTarget {
        let sidecars = pod.sidecars().map(|container| (container, true));
        let regular = pod.spec.containers.iter().map(|container| (container, false));
        let containers = sidecars
            .chain(regular)
            .map(|(container, sidecar)| ContainerTarget {
                name: container.name.as_str().into(),
                sidecar,
                probes: Kind::ALL
                    .into_iter()
                    .filter_map(|kind| Some(self.probe(kind, kind.of(container)?, container, ip)))
                    .collect(),
            })
            .filter(|container| !container.probes.is_empty())
            .collect();
        PodTarget {
            uid: pod.metadata.uid.clone(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            containers,
        }
    }

    /// One probe of a container of a pod with this address.
    pub fn probe(&self, kind: Kind, probe: &Probe, container: &Container, ip: Option<IpAddr>) -> ProbeTarget {
        let timing = self.timing(kind, probe);
        let check = self
            .check(probe, container, ip, &timing)
            .unwrap_or_else(|reason| Check::Impossible(reason.into()));
        ProbeTarget { kind, timing, check }
    }

    fn timing(&self, kind: Kind, probe: &Probe) -> Timing {
        if self.sub_second {
            Timing::of(kind, probe, self.floors)
        } else {
            Timing::of(kind, &probe.in_whole_seconds(), self.floors)
        }
    }

    fn check(
        &self,
        probe: &Probe,
        container: &Container,
        ip: Option<IpAddr>,
        timing: &Timing,
    ) -> Result<Check, String> {
        match probe.action().ok_or("the probe has no handler")? {
            Action::Exec(exec) => exec_check(exec, container),
            Action::HttpGet(get) => self.http_check(get, container, ip),
            Action::TcpSocket(TcpSocket { host, port }) => Ok(Check::Tcp {
                host: host_or(host, ip)?.into(),
                port: container.port(port)?,
            }),
            Action::Grpc(Grpc { port, service }) => {
                let (host, port) = (ip.ok_or(NO_ADDRESS)?, container.port(port)?);
                let authority = std::net::SocketAddr::new(host, port).to_string();
                let request = grpc::request(&authority, service, &self.user_agent, timing.timeout());
                Ok(Check::Grpc {
                    host,
                    port,
                    request: request.into(),
                })
            }
        }
    }

    fn http_check(&self, get: &HttpGet, container: &Container, ip: Option<IpAddr>) -> Result<Check, String> {
        let url = Url {
            scheme: if get.scheme.eq_ignore_ascii_case("https") {
                Scheme::Https
            } else {
                Scheme::Http
            },
            host: host_or(&get.host, ip)?,
            port: container.port(&get.port)?,
            target: request_target(&get.path),
        };
        let headers = get.http_headers.iter();
        let headers = headers.map(|header| (header.name.clone(), header.value.clone()));
        Ok(Check::Http(HttpCheck::new(
            url,
            headers.collect(),
            &self.user_agent,
        )))
    }
}

impl HttpCheck {
    /// A check with its request made.
    pub fn new(url: Url, headers: Arc<[(String, String)]>, user_agent: &str) -> Self {
        let request = http::request(&url, &headers, user_agent).into();
        Self {
            url: Arc::new(url),
            headers,
            request,
            user_agent: user_agent.into(),
        }
    }

    /// The request of the same check after a redirect.
    pub fn follow(&self, url: &Url) -> Vec<u8> {
        http::request(url, &self.headers, &self.user_agent)
    }
}

const NO_ADDRESS: &str = "the pod has no address yet";

/// The host that a probe names, or the pod's address.
fn host_or(host: &str, ip: Option<IpAddr>) -> Result<String, String> {
    match host {
        "" => Ok(ip.ok_or(NO_ADDRESS)?.to_string()),
        host => Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
    }
}

/// Only variables whose values are written down in the container are expanded; those that come from elsewhere
/// are not known here, as they are not to the kubelet's probes.
fn exec_check(exec: &Exec, container: &Container) -> Result<Check, String> {
    if exec.command.is_empty() {
        return Err("the probe has no command".to_owned());
    }
    let literal = container
        .env
        .iter()
        .filter(|variable| variable.value_from.is_none());
    let variables: BTreeMap<&str, &str> = literal
        .map(|variable| (variable.name.as_str(), variable.value.as_str()))
        .collect();
    let words = exec.command.iter();
    Ok(Check::Exec {
        command: words
            .map(|word| expand(word, |name| variables.get(name).copied()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn probe_of(json: Value) -> Probe {
        serde_json::from_value(json).unwrap()
    }

    fn check(probe: Value) -> Check {
        let container = serde_json::from_value(json!({
            "name": "a",
            "ports": [{"name": "web", "containerPort": 8080}, {"name": "web-udp", "containerPort": 53, "protocol": "UDP"}],
            "env": [{"name": "WHO", "value": "me"}, {"name": "IP", "valueFrom": {}}],
        }));
        Reading::default()
            .probe(Kind::Readiness, &probe_of(probe), &container.unwrap(), Some(IP))
            .check
    }

    #[test]
    fn http_checks_know_their_url() {
        let url = |probe: Value| match check(probe) {
            Check::Http(http) => http.url.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(url(json!({"httpGet": {"port": "web"}})), "http://10.0.0.9:8080/");
        assert_eq!(
            url(json!({"httpGet": {"port": 443, "scheme": "HTTPS", "path": "x", "host": "web.local"}})),
            "https://web.local:443/x"
        );
        assert_eq!(
            url(json!({"httpGet": {"port": "web-udp", "host": "fd00::1"}})),
            "http://[fd00::1]:53/"
        );
    }

    #[test]
    fn checks_that_cannot_be_made_say_why() {
        let reason = |probe: Value| match check(probe) {
            Check::Impossible(reason) => reason.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(
            reason(json!({"httpGet": {"port": "none"}})),
            "the container has no port named \"none\""
        );
        assert_eq!(
            reason(json!({"tcpSocket": {"port": 70000}})),
            "70000 is not a port"
        );
        assert_eq!(reason(json!({})), "the probe has no handler");
        assert_eq!(
            reason(json!({"exec": {"command": []}})),
            "the probe has no command"
        );
    }

    #[test]
    fn commands_expand_literal_variables_only() {
        let command =
            check(json!({"exec": {"command": ["echo", "$(WHO) $(IP) $$(WHO) $(NONE) $x $(", "5$"]}}));
        let words = ["echo", "me $(IP) $(WHO) $(NONE) $x $(", "5$"].map(str::to_owned);
        assert_eq!(
            command,
            Check::Exec {
                command: Arc::new(words)
            }
        );
    }

    #[test]
    fn without_the_gate_millisecond_fields_are_as_good_as_absent() {
        let fast = probe_of(
            json!({"httpGet": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -800,
            "initialDelayMilliseconds": 10, "timeoutMilliseconds": 5}),
        );
        let plain = probe_of(json!({"httpGet": {"port": 80}, "periodSeconds": 1}));
        let on = Reading::default();
        let off = Reading {
            sub_second: false,
            ..Reading::default()
        };
        let timing = |reading: &Reading, probe| reading.timing(Kind::Readiness, probe);
        assert_eq!(timing(&off, &fast), timing(&on, &plain));
        assert_eq!(timing(&off, &plain), timing(&on, &plain));
        assert_ne!(timing(&on, &fast), timing(&on, &plain));
    }

    #[test]
    fn pods_have_the_probes_of_regular_containers_and_sidecars() {
        let probe = json!({"tcpSocket": {"port": 1}});
        let pod = serde_json::from_value(
            json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": {
                "initContainers": [{"name": "once", "readinessProbe": probe}, {"name": "side", "restartPolicy": "Always", "startupProbe": probe}],
                "containers": [{"name": "a", "readinessProbe": probe, "livenessProbe": probe}, {"name": "b"}],
            }}),
        );
        let target = Reading::default().pod(&pod.unwrap(), Some(IP));
        let names: Vec<_> = target
            .containers
            .iter()
            .map(|container| (&*container.name, container.sidecar, container.probes.len()))
            .collect();
        assert_eq!(names, [("side", true, 1), ("a", false, 2)]);
    }
}
