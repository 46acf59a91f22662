//! Under which names is the page served?
//!
//! A page on a loopback address has no login: whoever can connect may read it. A browser connects for any
//! site that it shows, also for one whose name was made to point at 127.0.0.1 a moment ago (DNS rebinding).
//! Such a request still carries the site's name, so only names that are this machine's are answered.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use http::header::HOST;

/// The names that requests may carry.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    /// Any: a login keeps strangers out.
    Any,
    /// Those of the loopback, and these.
    Loopback(Arc<[String]>),
}

impl Hosts {
    /// Whether a request carries such a name. Requests without one do not come from browsers.
    pub fn admit<B>(&self, request: &Request<B>) -> bool {
        let Self::Loopback(named) = self else { return true };
        let header = request
            .headers()
            .get_all(HOST)
            .iter()
            .map(|host| host.to_str().ok());
        let authority = request
            .uri()
            .authority()
            .map(|authority| Some(authority.as_str()));
        header
            .chain(authority)
            .all(|host| host.is_some_and(|host| is_loopback(name_of(host)) || is_named(named, name_of(host))))
    }
}

/// A host without its port, and an IPv6 address without its brackets.
fn name_of(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

/// Browsers take `localhost` and everything below it for this machine, whatever DNS says (RFC 6761).
fn is_loopback(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let address = name.parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn is_named(named: &[String], name: &str) -> bool {
    let name = name.trim_end_matches('.');
    named.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(hosts: &Hosts, host: &str) -> bool {
        hosts.admit(&Request::builder().header(HOST, host).body(()).unwrap())
    }

    #[test]
    fn only_names_of_this_machine_and_configured_ones_are_answered() {
        let hosts = Hosts::Loopback(["sli.example.org".to_owned()].into());
        for own in [
            "localhost",
            "localhost:10270",
            "LOCALHOST.",
            "page.localhost:80",
            "127.0.0.1:10270",
            "127.8.9.1",
            "[::1]:10270",
            "::1",
            "sli.example.org",
            "SLI.example.org:443",
        ] {
            assert!(admits(&hosts, own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:10270",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:10270",
            "[fd00::1]:80",
            "",
            "sli.example.org.evil",
        ] {
            assert!(!admits(&hosts, foreign), "{foreign}");
        }
        assert!(admits(&Hosts::Any, "evil.example"));
        assert!(hosts.admit(&Request::new(())), "no browser leaves it out");
        let absolute = Request::builder()
            .uri("http://evil.example/")
            .header(HOST, "localhost")
            .body(())
            .unwrap();
        assert!(!hosts.admit(&absolute));
    }
}
