//! What is checked in a pod, and how?
//!
//! Pods as the API carries them are turned into targets once. A probe that cannot be made, such as
//! one that names a port that the container does not have, stays a target: each round reports why.

use crate::grpc;
use crate::http;
use crate::url::{Scheme, Url, request_target};
use pointsman_objects::probe::{EffectiveProbe, Handler, MILLISECOND_FIELDS};
use pointsman_objects::value::{at, int_at, list_at, str_at};
use pointsman_probe::{Floors, Kind, Sums, Timing};
use serde_json::Value;
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

/// One probe.
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
    /// Connects.
    Tcp {
        /// A host name or an address.
        host: Arc<str>,
        /// The port.
        port: u16,
    },
    /// Asks the gRPC health service.
    Grpc {
        /// The pod's address.
        host: IpAddr,
        /// The port.
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
    /// Where to.
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
    /// The shortest periods.
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
    pub fn pod(&self, pod: &Value, ip: Option<IpAddr>) -> PodTarget {
        let regular = list_at(pod, &["spec", "containers"])
            .iter()
            .map(|container| (container, false));
        let init = list_at(pod, &["spec", "initContainers"]).iter();
        let sidecars = init
            .filter(|container| str_at(container, &["restartPolicy"]) == "Always")
            .map(|container| (container, true));
        let containers = sidecars
            .chain(regular)
            .map(|(container, sidecar)| ContainerTarget {
                name: str_at(container, &["name"]).into(),
                sidecar,
                probes: self.container(container, ip),
            })
            .filter(|container| !container.probes.is_empty())
            .collect();
        PodTarget {
            uid: str_at(pod, &["metadata", "uid"]).into(),
            namespace: str_at(pod, &["metadata", "namespace"]).into(),
            name: str_at(pod, &["metadata", "name"]).into(),
            containers,
        }
    }

    /// The probes of one container of a pod with this address.
    pub fn container(&self, container: &Value, ip: Option<IpAddr>) -> Vec<ProbeTarget> {
        Kind::ALL
            .into_iter()
            .filter_map(|kind| Some((kind, at(container, &[kind.field()])?)))
            .map(|(kind, probe)| self.probe(kind, probe, container, ip))
            .collect()
    }

    /// One probe of a container.
    pub fn probe(&self, kind: Kind, probe: &Value, container: &Value, ip: Option<IpAddr>) -> ProbeTarget {
        let timing = self.timing(probe);
        let check = self
            .check(probe, container, ip, &timing)
            .unwrap_or_else(|reason| Check::Impossible(reason.into()));
        ProbeTarget { kind, timing, check }
    }

    fn timing(&self, probe: &Value) -> Timing {
        let sums = if self.sub_second {
            EffectiveProbe::of(probe)
        } else {
            let mut plain = probe.clone();
            if let Some(fields) = plain.as_object_mut() {
                fields.retain(|field, _| !MILLISECOND_FIELDS.contains(&field.as_str()));
            }
            EffectiveProbe::of(&plain)
        };
        let floor = match Handler::of(probe) {
            Some(Handler::Exec) => self.floors.exec,
            _ => self.floors.network,
        };
        let count = |field| int_at(probe, &[field]).unwrap_or(0);
        let sums = Sums {
            initial_delay: sums.initial_delay.0,
            period: sums.period.0,
            settled_period: sums.settled_period.0,
            timeout: sums.timeout.0,
            success_threshold: count("successThreshold"),
            failure_threshold: count("failureThreshold"),
        };
        Timing::clamped(sums, floor)
    }

    fn check(
        &self,
        probe: &Value,
        container: &Value,
        ip: Option<IpAddr>,
        timing: &Timing,
    ) -> Result<Check, String> {
        let ip = || ip.ok_or_else(|| "the pod has no address yet".to_owned());
        let handler = Handler::of(probe).ok_or_else(|| "the probe has no handler".to_owned())?;
        let action = at(probe, &[handler.field()]).unwrap_or(&Value::Null);
        let host = || match str_at(action, &["host"]) {
            "" => ip().map(|ip| ip.to_string()),
            host => Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
        };
        match handler {
            Handler::Exec => {
                let words = list_at(action, &["command"]).iter();
                let words: Vec<&str> = words.map(|word| word.as_str().unwrap_or_default()).collect();
                if words.is_empty() {
                    return Err("the probe has no command".to_owned());
                }
                let variables = literal_variables(container);
                let command = words.iter().map(|word| expand(word, &variables)).collect();
                Ok(Check::Exec { command })
            }
            Handler::HttpGet => {
                let url = Url {
                    scheme: if str_at(action, &["scheme"]).eq_ignore_ascii_case("https") {
                        Scheme::Https
                    } else {
                        Scheme::Http
                    },
                    host: host()?,
                    port: port(action, container)?,
                    target: request_target(str_at(action, &["path"])),
                };
                let headers = list_at(action, &["httpHeaders"]).iter();
                let headers = headers
                    .map(|header| {
                        (
                            str_at(header, &["name"]).to_owned(),
                            str_at(header, &["value"]).to_owned(),
                        )
                    })
                    .collect();
                Ok(Check::Http(HttpCheck::new(url, headers, &self.user_agent)))
            }
            Handler::TcpSocket => Ok(Check::Tcp {
                host: host()?.into(),
                port: port(action, container)?,
            }),
            Handler::Grpc => {
                let (host, port) = (ip()?, port(action, container)?);
                let authority = std::net::SocketAddr::new(host, port).to_string();
                let service = str_at(action, &["service"]);
                let request = grpc::request(&authority, service, &self.user_agent, timing.timeout());
                Ok(Check::Grpc {
                    host,
                    port,
                    request: request.into(),
                })
            }
        }
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

/// A port number, or the number of the container's port with this name.
fn port(action: &Value, container: &Value) -> Result<u16, String> {
    let given = at(action, &["port"]).unwrap_or(&Value::Null);
    let number = match given {
        Value::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => list_at(container, &["ports"])
                .iter()
                .find(|port| str_at(port, &["name"]) == name)
                .and_then(|port| int_at(port, &["containerPort"]))
                .ok_or_else(|| format!("the container has no port named {name:?}"))?,
        },
        other => other.as_i64().unwrap_or(0),
    };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{number} is not a port")),
    }
}

/// Variables whose values are written down in the container; those that come from elsewhere are
/// not known here, as they are not to the kubelet's probes.
fn literal_variables(container: &Value) -> BTreeMap<&str, &str> {
    list_at(container, &["env"])
        .iter()
        .filter(|variable| at(variable, &["valueFrom"]).is_none())
        .map(|variable| (str_at(variable, &["name"]), str_at(variable, &["value"])))
        .collect()
}

/// Replaces `$(NAME)` by the variable's value; `$$` stands for `$`, and unknown names stay.
fn expand(text: &str, variables: &BTreeMap<&str, &str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(tail) = rest.strip_prefix('$') {
            out.push('$');
            rest = tail;
            continue;
        }
        match rest.strip_prefix('(').and_then(|tail| tail.split_once(')')) {
            Some((name, tail)) => {
                match variables.get(name) {
                    Some(value) => out.push_str(value),
                    None => out.push_str(&format!("$({name})")),
                }
                rest = tail;
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn check(probe: Value) -> Check {
        let container = json!({
            "name": "a",
            "ports": [{"name": "web", "containerPort": 8080}, {"name": "web-udp", "containerPort": 53, "protocol": "UDP"}],
            "env": [{"name": "WHO", "value": "me"}, {"name": "IP", "valueFrom": {}}],
        });
        Reading::default()
            .probe(Kind::Readiness, &probe, &container, Some(IP))
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
        let fast = json!({"httpGet": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -800,
            "initialDelayMilliseconds": 10, "timeoutMilliseconds": 5});
        let plain = json!({"httpGet": {"port": 80}, "periodSeconds": 1});
        let on = Reading::default();
        let off = Reading {
            sub_second: false,
            ..Reading::default()
        };
        assert_eq!(off.timing(&fast), on.timing(&plain));
        assert_eq!(off.timing(&plain), on.timing(&plain));
        assert_ne!(on.timing(&fast), on.timing(&plain));
    }

    #[test]
    fn pods_have_the_probes_of_regular_containers_and_sidecars() {
        let probe = json!({"tcpSocket": {"port": 1}});
        let pod = json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": {
            "initContainers": [{"name": "once", "readinessProbe": probe}, {"name": "side", "restartPolicy": "Always", "startupProbe": probe}],
            "containers": [{"name": "a", "readinessProbe": probe, "livenessProbe": probe}, {"name": "b"}],
        }});
        let target = Reading::default().pod(&pod, Some(IP));
        let names: Vec<_> = target
            .containers
            .iter()
            .map(|container| (&*container.name, container.sidecar, container.probes.len()))
            .collect();
        assert_eq!(names, [("side", true, 1), ("a", false, 2)]);
    }
}
