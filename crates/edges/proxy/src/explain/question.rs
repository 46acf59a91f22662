//! What is asked?

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use pointsman_model::{Protocol, ServiceName};

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// An address that a client would use.
    Address {
        ip: IpAddr,
        /// The port; all of the Service's if missing.
        port: Option<u16>,
        /// The protocol; all if missing.
        protocol: Option<Protocol>,
    },
    Service {
        name: ServiceName,
        /// The name or number of a port; all if missing.
        port: Option<String>,
    },
}

/// A text that asks nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither IP:PORT[/PROTOCOL] nor NAMESPACE/SERVICE[:PORT]")]
pub struct BadQuestion(pub String);

impl FromStr for Question {
    type Err = BadQuestion;

    fn from_str(text: &str) -> Result<Self, BadQuestion> {
        address(text)
            .or_else(|| service(text))
            .ok_or_else(|| BadQuestion(text.to_owned()))
    }
}

fn address(text: &str) -> Option<Question> {
    let (at, protocol) = match text.rsplit_once('/') {
        Some((at, protocol)) => (at, Some(Protocol::from_wire(&protocol.to_uppercase())?)),
        None => (text, None),
    };
    let (ip, port) = match at.parse::<SocketAddr>() {
        Ok(at) => (at.ip(), Some(at.port())),
        Err(_) => (at.parse().ok()?, None),
    };
    Some(Question::Address { ip, port, protocol })
}

fn service(text: &str) -> Option<Question> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.to_owned())),
        None => (text, None),
    };
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let valid = |text: &str| !text.is_empty() && !text.contains(['/', ':', ' ']);
    if !valid(namespace) || !valid(name) || port.as_deref().is_some_and(|port| !valid(port)) {
        return None;
    }
    let name = ServiceName::new(namespace, name).ok()?;
    Some(Question::Service { name, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_services_are_told_apart() {
        let address = |text: &str| match text.parse() {
            Ok(Question::Address { ip, port, protocol }) => (ip.to_string(), port, protocol),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(address("10.96.0.1:80"), ("10.96.0.1".into(), Some(80), None));
        let udp = Some(Protocol::Udp);
        assert_eq!(address("10.96.0.1:53/udp"), ("10.96.0.1".into(), Some(53), udp));
        assert_eq!(address("[fd00::1]:80"), ("fd00::1".into(), Some(80), None));
        assert_eq!(address("fd00::1"), ("fd00::1".into(), None, None));
        let service = |text: &str| match text.parse() {
            Ok(Question::Service { name, port }) => (name.to_string(), port),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(
            service("kube-system/dns:53"),
            ("kube-system/dns".into(), Some("53".into()))
        );
        assert_eq!(service("web"), ("default/web".into(), None));
        for nonsense in ["", "a/b/c", "a/:80", "10.96.0.1:80/icmp", "web:"] {
            assert!(nonsense.parse::<Question>().is_err(), "{nonsense:?}");
        }
    }
}
