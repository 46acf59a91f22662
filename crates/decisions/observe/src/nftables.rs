//! What do kube-proxy's rules say about a Service in nftables mode?
//!
//! Names are computed as it computes them, which is the same from Kubernetes 1.31 to 1.37.

use std::fmt::Write;

use pointsman_dataplane::ServiceState;
use pointsman_iptables::name::Role;
use pointsman_model::{Address, ServiceName, ServicePortName};
use sha2::{Digest, Sha256};

use crate::place::Statement;
use crate::said::said;
use crate::tracker::Language;

/// The table of each family.
pub const TABLE: &str = "kube-proxy";
/// Where packets to Services without endpoints go.
pub const REJECT_CHAIN: &str = "reject-chain";
/// Marks packets for masquerading, before Kubernetes 1.36; where they go says another rule.
pub const MARK_CHAIN: &str = "mark-for-masquerade";
/// What the names of chains that send to one endpoint begin with.
pub const ENDPOINT_PREFIX: &str = "endpoint-";

/// What has to be there for any Service: chains, and what one of their rules each must mention.
pub const GROUND: &[(&str, &str)] = &[
    ("nat-prerouting", "services"),
    ("nat-output", "services"),
    ("nat-postrouting", "masquerading"),
    ("services", "service-ips"),
    ("services", "service-nodeports"),
    ("filter-forward", "service-endpoints-check"),
    ("filter-output", "service-endpoints-check"),
    ("service-endpoints-check", "no-endpoint-services"),
];

/// The longest name that kube-proxy makes after a prefix.
const LONGEST: usize = 240;

/// What a chain of a Service port is called, whose prefix says what it is for.
fn name(role: Role, port: &ServicePortName) -> String {
    let prefix = match role {
        Role::Cluster => "service-",
        Role::Local => "local-",
        Role::External => "external-",
        Role::Firewall => "firewall-",
        Role::Endpoint => ENDPOINT_PREFIX,
    };
    let mut text = port.service.as_str().to_owned();
    let protocol = port.protocol;
    write!(text, "/{protocol}/{}", port.port).expect("writing to a string cannot fail");
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest[..5]
        .iter()
        .fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    let hash = (0..8).map(|digit| BASE32[(bits >> (35 - 5 * digit)) as usize & 31] as char);
    let mut base: String = hash.chain("-".chars()).chain(text.chars()).collect();
    if base.len() > LONGEST {
        base.truncate(LONGEST - 3);
        base.push_str("...");
    }
    [prefix, &base].concat()
}

/// RFC 4648.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The Service that a chain belongs to.
pub fn service_of(chain: &str) -> Option<ServiceName> {
    // `service-ULMVA6XW-ns1/svc1/tcp/p80`
    let (_, named) = chain.split_once('-')?;
    let (hash, named) = named.split_at_checked(9)?;
    let mut parts = named.split('/');
    let (namespace, name) = (parts.next()?, parts.next()?);
    parts.next()?;
    hash.ends_with('-')
        .then(|| ServiceName::new(namespace, name).ok())?
}

/// What kube-proxy's rules are written in. All chains of a Service have its name.
pub const fn language<A: Address>() -> Language<A> {
    Language {
        statement,
        parts: |_| Vec::new(),
    }
}

/// What the rules say about a Service in this state; nothing if there is none.
fn statement<A: Address>(state: Option<&ServiceState<A>>) -> Statement<A> {
    said(state, name)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pointsman_model::{PortName, Protocol};
    use pointsman_testkit::cluster::Cluster;

    use super::*;
    use crate::place::Content;

    /// What is said about `ns1/svc1`, line by line, with hashes left out.
    fn said(text: &str) -> Vec<String> {
        let cluster = Cluster::parse(text);
        let index = cluster.index::<Ipv4Addr>();
        let service = ServiceName::new("ns1", "svc1").unwrap();
        let state = index.desired_service(&service);
        let lines = statement(state.as_deref())
            .into_iter()
            .map(|(place, content)| match content {
                Content::Chain(chain) => format!("{place}: {:?} {:?}", chain.endpoints, chain.chains),
                other => format!("{place}: {other:?}"),
            });
        lines.map(|line| line.replace("ULMVA6XW-", "")).collect()
    }

    #[test]
    fn chains_have_the_names_that_kube_proxy_gives_them() {
        let port = ServicePortName {
            service: ServiceName::new("ns1", "svc1").unwrap(),
            port: PortName::from("p80"),
            protocol: Protocol::Tcp,
        };
        assert_eq!(name(Role::Cluster, &port), "service-ULMVA6XW-ns1/svc1/tcp/p80");
        assert_eq!(
            service_of("service-ULMVA6XW-ns1/svc1/tcp/p80"),
            Some(port.service.clone())
        );
        assert_eq!(
            service_of("endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"),
            Some(port.service)
        );
        for other in [
            "services",
            "filter-output-pre-dnat",
            "nodeport-endpoints-check",
            "-é/",
            "",
        ] {
            assert_eq!(service_of(other), None, "{other}");
        }
    }

    #[test]
    fn policies_decide_over_chains_and_over_packets_that_are_turned_away() {
        let service = "node n1
             service ns1/svc1:p80 172.30.0.1:80/tcp nodeport=30080 external=203.0.113.7 policy=Local
             endpoint ns1/svc1:p80 10.0.2.5:8080 node=n2 ready\n";
        let remote_only = said(service);
        assert_eq!(
            remote_only,
            [
                "172.30.0.1 tcp 80 of service-ips: Leads(\"service-ns1/svc1/tcp/p80\")",
                "203.0.113.7 tcp 80 of service-ips: Leads(\"external-ns1/svc1/tcp/p80\")",
                "node port tcp 30080 of service-nodeports: Leads(\"external-ns1/svc1/tcp/p80\")",
                "203.0.113.7 tcp 80 of no-endpoint-services: Drops",
                "node port tcp 30080 of no-endpoint-nodeports: Drops",
                "chain external-ns1/svc1/tcp/p80: {} {\"service-ns1/svc1/tcp/p80\"}",
                "chain service-ns1/svc1/tcp/p80: {10.0.2.5:8080} {}",
            ]
        );
        let with_local = said(&format!(
            "{service} endpoint ns1/svc1:p80 10.0.1.5:8080 node=n1 ready"
        ));
        assert!(
            !with_local.iter().any(|line| line.contains("no-endpoint")),
            "{with_local:?}"
        );
        assert!(with_local.contains(&"chain local-ns1/svc1/tcp/p80: {10.0.1.5:8080} {}".to_owned()));
    }

    #[test]
    fn a_service_without_endpoints_refuses_and_one_that_is_gone_says_nothing() {
        let refused = said("node n1\nservice ns1/svc1:p80 172.30.0.1:80/tcp");
        assert_eq!(refused, ["172.30.0.1 tcp 80 of no-endpoint-services: Rejects"]);
        assert!(said("node n1").is_empty());
    }
}
