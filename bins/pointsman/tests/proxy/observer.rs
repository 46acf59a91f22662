//! Does an observer say how far rules are that another program writes, and never too much?
//!
//! Rules are loaded by `nft` in the shape that kube-proxy gives them; [`observer_truth`](crate::observer_truth) has a
//! real one.

use std::fmt::Write;

use pointsman_api_client::Resource;
use serde_json::{Value, json};

use crate::eventually;
use crate::features::endpoint;
use crate::node::{Cluster, Network};

/// What kube-proxy's table has for any Services, and for that of the API server, which has no endpoints here.
const GROUND: &str = "
table ip kube-proxy {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    map service-nodeports { type inet_proto . inet_service : verdict; }
    map no-endpoint-services {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.0.1 . tcp . 443 : goto reject-chain }
    }
    map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
    map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    chain reject-chain { reject; }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        fib daddr type local meta l4proto . th dport vmap @service-nodeports
    }
    chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
    chain masquerading { mark and 0x4000 != 0 masquerade fully-random; }
    chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
    chain filter-forward { type filter hook forward priority filter; ct state new jump service-endpoints-check; }
    chain filter-output { type filter hook output priority filter; ct state new jump service-endpoints-check; }
}
";

/// A Service with an observer in place of a proxy, and rules that a test writes.
struct Lab<'a> {
    network: &'a Network,
    cluster: Cluster<'a>,
    /// Cluster addresses by name.
    services: Vec<(&'static str, String)>,
}

/// The chain of the only, nameless port of a Service.
fn chain(network: &Network, name: &str) -> String {
    let hash = hash(network, &format!("default/{name}/tcp/"));
    format!("service-{}-default/{name}/tcp/", &hash[..8])
}

/// The same in iptables mode.
fn chain_of_iptables(network: &Network, name: &str) -> String {
    format!("KUBE-SVC-{}", &hash(network, &format!("default/{name}tcp"))[..16])
}

/// The chain of one of its endpoints there.
fn chain_of_endpoint(network: &Network, name: &str, address: &str) -> String {
    let hash = hash(network, &format!("default/{name}tcp{address}:8080"));
    format!("KUBE-SEP-{}", &hash[..16])
}

fn hash(network: &Network, text: &str) -> String {
    let digest = format!("printf {text} | sha256sum | cut -c1-64 | tr a-f A-F");
    network
        .node
        .sh(&format!("{digest} | basenc --base16 -d | base32"))
}

impl<'a> Lab<'a> {
    fn new(network: &'a Network, mode: &str) -> Self {
        let mut cluster = network.start_server();
        cluster.node_object();
        cluster.start_observer(mode);
        Self {
            network,
            cluster,
            services: Vec::new(),
        }
    }

    fn service(&mut self, name: &'static str) {
        let address = self
            .cluster
            .service(name, &json!({"ports": [{"port": 80, "targetPort": 8080}]}));
        self.services.push((name, address));
    }

    /// The API says that a Service has these endpoints; returns the version.
    fn endpoints(&self, name: &str, addresses: &[&str]) -> u64 {
        let endpoints: Vec<Value> = addresses.iter().map(|address| endpoint(address)).collect();
        self.cluster
            .endpoints(name, &json!([{"name": "", "port": 8080}]), &endpoints)
    }

    /// Rules say so, in one commit.
    fn load(&self, rules: &str) {
        let file = self.cluster.directory().join("kube-proxy.nft");
        std::fs::write(&file, rules).unwrap();
        self.network.node.sh(&format!("nft -f {}", file.display()));
    }

    /// The commands that make the rules of a Service say that it has these endpoints, one at least.
    fn rules(&self, name: &str, addresses: &[&str]) -> String {
        let (_, address) = self.services.iter().find(|(known, _)| *known == name).unwrap();
        let chain = self.chain(name);
        let to = match addresses {
            [only] => format!("dnat to {only}:8080"),
            several => {
                let mut map = String::new();
                for (slot, address) in several.iter().enumerate() {
                    write!(map, "{slot} : {address} . 8080, ").unwrap();
                }
                let count = several.len();
                format!("dnat ip addr . port to numgen random mod {count} map {{ {map} }}")
            }
        };
        format!(
            "add chain ip kube-proxy {chain}
             flush chain ip kube-proxy {chain}
             add rule ip kube-proxy {chain} meta l4proto tcp {to}
             add element ip kube-proxy service-ips {{ {address} . tcp . 80 : goto {chain} }}\n"
        )
    }

    /// As kube-proxy names it; the hash is made by other programs than the one under test.
    fn chain(&self, name: &str) -> String {
        chain(self.network, name)
    }

    fn watermark(&self) -> u64 {
        self.line()["endpointSlices"].as_u64().unwrap_or(0)
    }

    fn line(&self) -> Value {
        serde_json::from_str(&self.cluster.first_line(10249, "/watermark")).unwrap()
    }

    fn is_said(&self, version: u64) {
        eventually("it is said", || self.watermark() >= version);
    }

    /// The observer names the Service whose rules differ, and says nothing more.
    fn is_behind(&self, service: &str, differs: &str, version: u64) {
        eventually("somebody is named", || self.behind()["service"] == service);
        let behind = self.behind();
        assert!(behind["differs"].as_str().unwrap().contains(differs), "{behind}");
        let line = self.line();
        assert!(
            line["received"]["endpointSlices"].as_u64() >= Some(version),
            "{line}"
        );
        assert!(self.watermark() < version, "{line}");
        let gauge = "pointsman_proxy_observed_behind_services{ip_family=\"IPv4\"}";
        assert!(self.cluster.metric(gauge) >= 1.0);
    }

    fn behind(&self) -> Value {
        let health: Value = serde_json::from_str(&self.cluster.get(10256, "/healthz")).unwrap();
        health["behind"].clone()
    }

    fn all_is_well(&self) {
        eventually("nobody is behind", || self.behind().is_null());
    }

    /// How much later than they were written rules may be known.
    fn error_seconds(&self) -> f64 {
        let gauge = "pointsman_proxy_observed_error_seconds{ip_family=\"IPv4\"}";
        self.cluster.metric(gauge)
    }

    /// What the events with this reason say.
    fn events(&self, reason: &str) -> String {
        let reason = format!("--field-selector=reason={reason}");
        let columns = "-o=custom-columns=:.involvedObject.name,:.type,:.message";
        self.cluster.kubectl(&["get", "events", &reason, columns])
    }
}

#[test]
fn rules_that_differ_are_behind_with_the_service_named_and_said_once_they_are_right() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut lab = Lab::new(&network, "nftables");
    lab.service("web");
    lab.service("other");
    let listed = lab.endpoints("web", &["10.0.1.5"]);
    let listed = lab.endpoints("other", &["10.0.1.5", "10.0.1.6"]).max(listed);
    eventually("the observer has received all", || {
        lab.line()["received"]["endpointSlices"].as_u64() >= Some(listed)
    });
    assert_eq!(lab.watermark(), 0, "nobody has written rules");
    assert_eq!(
        network.node.sh("nft list ruleset"),
        "",
        "an observer writes nothing"
    );
    let all = |lab: &Lab<'_>| {
        [
            GROUND,
            &lab.rules("web", &["10.0.1.5"]),
            &lab.rules("other", &["10.0.1.5", "10.0.1.6"]),
        ]
        .concat()
    };
    lab.load(&all(&lab));
    lab.is_said(listed);

    // An endpoint missing, then one too many.
    let more = lab.endpoints("web", &["10.0.1.5", "10.0.1.6"]);
    lab.is_behind("default/web", "does not send to 10.0.1.6:8080", more);
    eventually("an event names it", || {
        lab.events("ServiceProxyBehind").contains("default/web")
    });
    let said = lab.events("ServiceProxyBehind");
    assert!(
        said.contains("n1") && said.contains("Warning") && said.contains("does not send to 10.0.1.6:8080"),
        "{said}"
    );
    assert!(!lab.events("ServiceProxyCaughtUp").contains("n1"));
    lab.load(&lab.rules("web", &["10.0.1.5", "10.0.1.6"]));
    lab.is_said(more);
    eventually("an event says that it is over", || {
        lab.events("ServiceProxyCaughtUp").contains("Normal")
    });
    let fewer = lab.endpoints("web", &["10.0.1.6"]);
    lab.is_behind("default/web", "still sends to 10.0.1.5:8080", fewer);
    lab.load(&lab.rules("web", &["10.0.1.6"]));
    lab.is_said(fewer);
    lab.all_is_well();

    // Somebody edits the chain of a Service while another one changes as it should.
    lab.load(&format!("flush chain ip kube-proxy {}", lab.chain("web")));
    let others = lab.endpoints("other", &["10.0.1.6"]);
    lab.load(&lab.rules("other", &["10.0.1.6"]));
    lab.is_behind("default/web", "is missing", others);
    lab.load(&lab.rules("web", &["10.0.1.6"]));
    lab.is_said(others);

    // A Service that rules do not know.
    lab.service("new");
    let new = lab.endpoints("new", &["10.0.1.5"]);
    lab.is_behind("default/new", "service-ips is missing", new);
    lab.load(&lab.rules("new", &["10.0.1.5"]));
    lab.is_said(new);

    // The rules of all Services go, and come back in one commit.
    lab.load("flush chain ip kube-proxy services");
    let last = lab.endpoints("new", &["10.0.1.6"]);
    lab.load(&lab.rules("new", &["10.0.1.6"]));
    eventually("what all share is missed", || !lab.behind().is_null());
    assert!(
        lab.behind()["differs"]
            .as_str()
            .unwrap()
            .contains("chain services"),
        "{}",
        lab.behind()
    );
    assert!(lab.watermark() < last);
    lab.load("delete table ip kube-proxy");
    eventually("the table is missed", || {
        lab.behind()["differs"]
            .as_str()
            .is_some_and(|differs| differs.contains("nat-prerouting"))
    });
    let again = [
        GROUND,
        &lab.rules("web", &["10.0.1.6"]),
        &lab.rules("other", &["10.0.1.6"]),
        &lab.rules("new", &["10.0.1.6"]),
    ];
    lab.load(&again.concat());
    lab.is_said(last);
    lab.all_is_well();

    // A Service goes: its chain is emptied, and its element goes.
    let chain = lab.chain("web");
    lab.cluster.delete(Resource::SERVICES, Some("default"), "web");
    lab.services.retain(|(name, _)| *name != "web");
    let late = lab.endpoints("other", &["10.0.1.5"]);
    lab.load(&lab.rules("other", &["10.0.1.5"]));
    lab.is_behind("default/web", "is still there", late);
    let gone = format!("flush map ip kube-proxy service-ips\nflush chain ip kube-proxy {chain}\n");
    lab.load(
        &[
            gone,
            lab.rules("other", &["10.0.1.5"]),
            lab.rules("new", &["10.0.1.6"]),
        ]
        .concat(),
    );
    lab.is_said(late);
    lab.all_is_well();
}

/// kube-proxy's rules of iptables mode for one Service, in the tables that packets go through.
fn chains(lab: &Lab<'_>, endpoints: &[&str]) -> String {
    let (address, chain) = (
        &lab.services[0].1,
        chain_of_iptables(lab.network, lab.services[0].0),
    );
    let endpoint = |slot: usize| chain_of_endpoint(lab.network, lab.services[0].0, endpoints[slot]);
    let (mut names, mut rules) = (String::new(), String::new());
    for (slot, to) in endpoints.iter().enumerate() {
        let (name, left) = (endpoint(slot), endpoints.len() - slot);
        writeln!(names, ":{name} - [0:0]").unwrap();
        let share = match left {
            1 => String::new(),
            _ => format!(
                "-m statistic --mode random --probability {:.10}",
                1.0 / left as f64
            ),
        };
        writeln!(
            rules,
            "-A {chain} -m comment --comment \"default/web -> {to}:8080\" {share} -j {name}"
        )
        .unwrap();
        writeln!(rules, "-A {name} -s {to} -j KUBE-MARK-MASQ").unwrap();
        writeln!(
            rules,
            "-A {name} -m tcp -p tcp -j DNAT --to-destination {to}:8080"
        )
        .unwrap();
    }
    let enter =
        "-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n";
    let refuse = "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES\n\
        -A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES\n";
    format!(
        "*filter\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n{refuse}\
         -A KUBE-SERVICES -m tcp -p tcp -d 10.96.0.1 --dport 443 -j REJECT\nCOMMIT\n\
         *nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         :{chain} - [0:0]\n{names}{enter}-A KUBE-SERVICES -m tcp -p tcp -d {address} --dport 80 -j {chain}\n\
         -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
         -A {chain} -m tcp -p tcp -d {address} --dport 80 ! -s 10.0.0.0/16 -j KUBE-MARK-MASQ\n{rules}COMMIT\n"
    )
}

#[test]
fn rules_of_iptables_mode_are_followed_too() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let lab = rules_of_iptables_mode(&network, "nft");
    assert_eq!(lab.error_seconds(), 0.0, "commits are announced");
}

#[test]
fn rules_of_the_older_iptables_interface_are_polled_and_the_error_of_that_is_said() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let lab = rules_of_iptables_mode(&network, "legacy");
    // It follows from what a reading took, which on a busy machine may be long.
    let error = lab.error_seconds();
    assert!(error >= 0.01, "{error}");
}

fn rules_of_iptables_mode<'a>(network: &'a Network, interface: &str) -> Lab<'a> {
    let mut lab = Lab::new(network, "iptables");
    lab.service("web");
    let restore = |lab: &Lab<'_>, endpoints: &[&str]| {
        let file = lab.cluster.directory().join("kube-proxy.rules");
        std::fs::write(&file, chains(lab, endpoints)).unwrap();
        let file = file.display();
        network.node.sh(&format!("iptables-{interface}-restore {file}"));
    };
    let one = lab.endpoints("web", &["10.0.1.5"]);
    restore(&lab, &["10.0.1.5"]);
    lab.is_said(one);
    let two = lab.endpoints("web", &["10.0.1.5", "10.0.1.6"]);
    lab.is_behind("default/web", "does not send to 10.0.1.6:8080", two);
    restore(&lab, &["10.0.1.5", "10.0.1.6"]);
    lab.is_said(two);
    let six = lab.endpoints("web", &["10.0.1.6"]);
    lab.is_behind("default/web", "still sends to 10.0.1.5:8080", six);
    restore(&lab, &["10.0.1.6"]);
    lab.is_said(six);
    lab.all_is_well();
    let address = &lab.services[0].1;
    network.node.sh(&format!(
        "iptables-{interface} -t nat -R KUBE-SERVICES 1 -p tcp -d {address} --dport 81 -j KUBE-NODEPORTS"
    ));
    eventually("the lost rule is missed", || {
        lab.behind()["service"] == "default/web"
    });
    assert!(
        lab.behind()["differs"]
            .as_str()
            .unwrap()
            .contains("service-ips is missing"),
        "{}",
        lab.behind()
    );
    restore(&lab, &["10.0.1.6"]);
    lab.all_is_well();
    let endpoint = chain_of_endpoint(network, "web", "10.0.1.6");
    network.node.sh(&format!(
        "iptables-{interface} -t nat -R {endpoint} 2 -p tcp -j DNAT --to-destination 10.0.9.9:8080"
    ));
    eventually("the lost endpoint is missed", || {
        let behind = lab.behind();
        let differs = behind["differs"].as_str();
        behind["service"] == "default/web"
            && differs.is_some_and(|it| it.contains("does not send to 10.0.1.6:8080"))
    });
    restore(&lab, &["10.0.1.6"]);
    lab.all_is_well();
    network
        .node
        .sh(&format!("iptables-{interface} -t nat -F PREROUTING"));
    eventually("what all share is missed", || {
        lab.behind()["differs"]
            .as_str()
            .is_some_and(|differs| differs.contains("PREROUTING"))
    });
    lab
}
