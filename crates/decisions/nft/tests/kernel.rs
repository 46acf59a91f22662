//! Does a real kernel take the table, hold what we think it holds, and send packets where it should?

mod support;

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Settings};
use pointsman_model::{Cidr, Moment, NodeName};
use pointsman_nft::{Planner, TableSettings};
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::history::{self, Random};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

use self::support::network::{Network, ask, pods, programmed, service};
use self::support::{Proxy, read_inventory};

fn settings<A: Family>() -> TableSettings<A> {
    let (pods, services) = if A::BITS == 32 {
        ("10.1.0.0/16", "10.96.0.0/12")
    } else {
        ("fd00:1::/32", "fd00:96::/108")
    };
    let mut settings = TableSettings::new(Settings {
        local: LocalDetector::from_ranges([pods]),
        ..Settings::default()
    });
    settings.shared.service_cidrs = Cidr::parse(services).unwrap().into_iter().collect();
    settings
}

fn live_through<A: Family>(changes: u64, seed: u64) {
    let mut index = Index::<A>::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0));
    let mut proxy = Proxy::<A>::new(settings());
    let mut random = Random(seed);
    for revision in 1..=changes {
        history::fold(&mut index, &history::event(random.draw(), A::FAMILY), revision);
        if random.one_in(3) {
            continue;
        }
        proxy.sync(&mut index);
        proxy.check_elements();
        if random.one_in(30) {
            proxy.check();
            // A new process finds a correct table and writes nothing.
            let states: Vec<_> = index.programmed().map(|(_, state)| Arc::clone(state)).collect();
            proxy.planner = Planner::new(settings());
            let services = states.iter().map(|state| (&state.service.name, state.as_ref()));
            let kernel = read_inventory::<A>(&mut proxy.client);
            let adoption = proxy.planner.adopt(services, &kernel);
            assert!(adoption.repair.is_empty(), "{}", adoption.repair);
            proxy.planner = adoption.planner;
        }
    }
}

fn changes() -> u64 {
    // POINTSMAN_KERNEL_CHANGES=5000 is the long version.
    std::env::var("POINTSMAN_KERNEL_CHANGES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150)
}

#[test]
fn the_kernel_holds_the_desired_elements_after_every_change_ipv4() {
    require_netns!();
    Namespace::new()
        .unwrap()
        .run(|| live_through::<Ipv4Addr>(changes(), 1));
}

#[test]
fn the_kernel_holds_the_desired_elements_after_every_change_ipv6() {
    require_netns!();
    Namespace::new()
        .unwrap()
        .run(|| live_through::<Ipv6Addr>(changes(), 2));
}

#[test]
fn a_table_that_others_changed_or_flushed_is_healed() {
    require_netns!();
    let namespace = Namespace::new().unwrap();
    namespace.run(|| {
        let cluster = Cluster::parse(EVERYTHING_V4);
        let mut index = cluster.index::<Ipv4Addr>();
        let mut proxy = Proxy::<Ipv4Addr>::new(settings());
        proxy.sync(&mut index);
        let nft = |command: &str| {
            let status = std::process::Command::new("nft")
                .args(command.split(' '))
                .status();
            assert!(status.expect("nft is installed").success(), "nft {command}");
        };
        for damage in [
            "flush set ip pointsman cluster-ips",
            "flush map ip pointsman backends",
            "flush chain ip pointsman pick",
            "add rule ip pointsman services drop",
            "add chain ip pointsman stranger",
            "flush ruleset",
        ] {
            nft(damage);
            index.force_full();
            assert!(proxy.sync(&mut index) < 80, "{damage}");
            proxy.check();
            index.force_full();
            assert_eq!(proxy.sync(&mut index), 0, "{damage}");
        }
    });
}

const EVERYTHING_V4: &str = "node n1 ip=192.168.0.2 pods=10.0.0.0/8
    service default/web:http 10.96.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8 policy=Local ranges=198.51.100.0/24,10.0.0.0/8 healthcheck=31000
    service default/web:s 10.96.0.1:443 nodeport=30443
    endpoint default/web:http 10.0.1.5:8080 node=n1
    endpoint default/web:http 10.0.2.5:8080 node=n2
    endpoint default/web:http 10.0.2.6:8080 node=n2
    service default/sticky 10.96.0.2:80 affinity=300
    endpoint default/sticky 10.0.1.5:8080 node=n1
    endpoint default/sticky 10.0.2.5:8080 node=n2
    service default/signals 10.96.0.3:7/sctp nodeport=30007 affinity=60
    endpoint default/signals 10.0.2.5:7/sctp node=n2
    service default/dns 10.96.0.10:53/udp internal=Local
    endpoint default/dns 10.0.2.5:53/udp node=n2";

const EVERYTHING_V6: &str = "node n1 ip=fd00:a::2 pods=fd00:1::/32
    service default/web:http [fd00:96::1]:80 nodeport=30080 external=2001:db8::7 lb=2001:db8::8 policy=Local ranges=2001:db8:1::/48 healthcheck=31000
    endpoint default/web:http [fd00:1::5]:8080 node=n1
    endpoint default/web:http [fd00:1::6]:8080 node=n2
    service default/sticky [fd00:96::2]:80 affinity=300
    endpoint default/sticky [fd00:1::5]:8080 node=n1";

/// What `nft` says about the table of a cluster, in the namespace it was made in.
fn printed<A: Family>(cluster: &'static str, family: &str) -> String {
    let namespace = Namespace::new().unwrap();
    namespace.run(move || {
        let cluster = Cluster::parse(cluster);
        let mut settings = settings::<A>();
        settings.shared = Settings {
            service_cidrs: settings.shared.service_cidrs,
            ..cluster.settings()
        };
        Proxy::<A>::new(settings).sync(&mut cluster.index());
    });
    namespace.sh(&format!("nft list table {family} pointsman"))
}

/// Elements of hash sets are printed in any order.
fn sorted(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = text
        .split([',', '\n', '{', '}'])
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect();
    parts.sort();
    parts
}

#[test]
fn nft_prints_the_ipv4_table_and_reads_it_again() {
    require_netns!();
    let printed = printed::<Ipv4Addr>(EVERYTHING_V4, "ip");
    for part in [
        "typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport",
        "10.96.0.1 . tcp . 80 . 0 : 10.0.1.5 . 8080",
        "203.0.113.8 . tcp . 80 . 198.51.100.0/24",
        "10.96.0.3 . sctp . 7 . b9eb:1 : 10.0.2.5 . 7",
        "10.96.0.10 . udp . 53",
        "10.96.0.0/12",
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @backends",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
    let again = Namespace::new().unwrap();
    let file = std::env::temp_dir().join(format!("pointsman-nft-{}.nft", std::process::id()));
    std::fs::write(&file, &printed).unwrap();
    again.sh(&format!("nft -c -f {0} && nft -f {0}", file.display()));
    let reprinted = again.sh("nft list table ip pointsman");
    let _ = std::fs::remove_file(&file);
    assert_eq!(sorted(&reprinted), sorted(&printed));
}

#[test]
fn a_table_that_remembers_clients_for_each_destination_is_made_anew() {
    require_netns!();
    let namespace = Namespace::new().unwrap();
    namespace.sh(
        "nft 'add table ip pointsman; \
         add set ip pointsman sticky { typeof ip daddr . meta l4proto . th dport; }; \
         add element ip pointsman sticky { 10.96.0.2 . tcp . 80 }; \
         add map ip pointsman affinity { typeof ip saddr . ip daddr . meta l4proto . th dport : meta priority; \
           size 65535; flags dynamic,timeout; timeout 1d; }; \
         add chain ip pointsman touch; \
         add rule ip pointsman touch update @affinity \
           { ip saddr . ip daddr . meta l4proto . th dport timeout 5m : meta priority }'",
    );
    namespace.run(|| {
        let cluster = Cluster::parse(EVERYTHING_V4);
        let mut proxy = Proxy::<Ipv4Addr>::new(TableSettings::new(cluster.settings()));
        proxy.sync(&mut cluster.index());
        proxy.check();
    });
}

#[test]
fn nft_prints_the_ipv6_table() {
    // nft 1.0.6 prints it but cannot read it: it refuses maps to `ip6 daddr . th dport` in dnat rules and
    // fails an assertion on updates of maps whose keys are longer than 16 bytes.
    require_netns!();
    let printed = printed::<Ipv6Addr>(EVERYTHING_V6, "ip6");
    for part in [
        "fd00:96::1 . tcp . 80 . 0 : fd00:1::5 . 8080",
        "2001:db8::8 . tcp . 80 . 2001:db8:1::/48",
        "update @affinity { ip6 saddr . meta priority & ffff:0 timeout 5m : meta priority }",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
}

#[test]
fn connections_are_shared_fairly_and_keep_the_clients_address() {
    require_netns!();
    // Five of eight slots are filled, so some draws miss.
    let all = pods(5);
    let network = Network::new(&all);
    let _program = programmed::<Ipv4Addr>(&network, service("172.30.0.1", &all, ""));
    let count = 2_000;
    let seen = network.connect("172.30.0.1:80".parse().unwrap(), count);
    let client: IpAddr = "192.168.0.9".parse().unwrap();
    assert!(seen.keys().all(|(_, from)| *from == client), "{seen:?}");
    assert_eq!(seen.len(), all.len());
    let expected = count as f64 / all.len() as f64;
    let chi_square: f64 = seen
        .values()
        .map(|found| (*found as f64 - expected).powi(2) / expected)
        .sum();
    // Four degrees of freedom: a fair balancer exceeds 27.9 once in a hundred thousand runs.
    assert!(chi_square < 27.9, "chi-square {chi_square}: {seen:?}");
}

#[test]
fn ipv6_node_ports_and_cluster_addresses_reach_their_endpoints() {
    require_netns!();
    let all: Vec<IpAddr> = (1..=2)
        .map(|number| format!("fd00:1::10{number}").parse().unwrap())
        .collect();
    let network = Network::new(&all);
    let _program = programmed::<Ipv6Addr>(&network, service("[fd00:96::1]", &all, "nodeport=30080"));
    let seen = network.connect("[fd00:96::1]:80".parse().unwrap(), 60);
    assert_eq!(seen.keys().map(|(to, _)| *to).collect::<Vec<_>>(), all);
    // Traffic to a node port is masqueraded.
    let seen = network.connect("[fd00:a::2]:30080".parse().unwrap(), 60);
    assert_eq!(seen.keys().map(|(to, _)| *to).collect::<Vec<_>>(), all);
    assert!(
        seen.keys()
            .all(|(_, from)| *from == "fd00:1::1".parse::<IpAddr>().unwrap()),
        "{seen:?}"
    );
}

#[test]
fn nobody_is_sent_to_an_endpoint_that_left_and_open_connections_stay() {
    require_netns!();
    let all = pods(6);
    let network = Network::new(&all);
    let program = programmed::<Ipv4Addr>(&network, service("172.30.0.1", &all, ""));
    let to: SocketAddr = "172.30.0.1:80".parse().unwrap();
    let open = network
        .client
        .run(move || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap());
    // Others connect all the time, and always succeed.
    let stop = Arc::clone(&network.stop);
    let background = network.client.run(move || {
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                ask(to).unwrap();
            }
        })
    });
    let mut random = Random(3);
    for _ in 0..40 {
        let mut staying = all.clone();
        for _ in 0..1 + random.below(4) {
            staying.remove(random.below(staying.len() as u64) as usize);
        }
        program(service("172.30.0.1", &staying, ""));
        let seen = network.connect(to, 15);
        assert!(
            seen.keys().all(|(endpoint, _)| staying.contains(endpoint)),
            "{staying:?}: {seen:?}"
        );
        program(service("172.30.0.1", &all, ""));
    }
    network.stop.store(true, Ordering::Relaxed);
    background.join().unwrap();
    let mut open = open;
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert!(text.contains("10.0.1."), "{text:?}");
}

#[test]
fn a_sticky_client_stays_until_its_endpoint_leaves() {
    require_netns!();
    let all = pods(6);
    let network = Network::new(&all);
    let program = programmed::<Ipv4Addr>(&network, service("172.30.0.1", &all, "affinity=600"));
    let to: SocketAddr = "172.30.0.1:80".parse().unwrap();
    let mut left = all.clone();
    while left.len() > 1 {
        let seen = network.connect(to, 20);
        assert_eq!(seen.len(), 1, "{seen:?}");
        let (endpoint, _) = seen.keys().next().unwrap();
        assert!(left.contains(endpoint), "{left:?}: {seen:?}");
        left.retain(|other| other != endpoint);
        program(service("172.30.0.1", &left, "affinity=600"));
    }
}

#[test]
fn without_endpoints_and_on_other_ports_connections_are_refused() {
    require_netns!();
    let network = Network::new(&pods(1));
    let _program = programmed::<Ipv4Addr>(&network, service("172.30.0.1", &[], "nodeport=30080"));
    for to in ["172.30.0.1:80", "172.30.0.1:81", "192.168.0.2:30080"] {
        let to: SocketAddr = to.parse().unwrap();
        let refused = network
            .client
            .run(move || TcpStream::connect_timeout(&to, Duration::from_secs(5)));
        assert_eq!(
            refused.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionRefused,
            "{to}"
        );
    }
}

#[test]
fn the_node_itself_is_a_client_and_a_pod_may_reach_itself() {
    require_netns!();
    let all = pods(1);
    let network = Network::new(&all);
    let to: SocketAddr = "172.30.0.1:80".parse().unwrap();
    network.node.ip("route add default via 192.168.0.9");
    let program = programmed::<Ipv4Addr>(&network, service("172.30.0.1", &all, ""));
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    // The route was looked up for the cluster address, so the source is that of another interface.
    let (endpoint, _) = network.node.run(move || ask(to)).unwrap();
    assert_eq!(endpoint, all[0]);
    // The pod's packet comes back to it, so it must not see its own address as the client's.
    network
        .endpoints
        .ip("route replace default via 10.0.0.1 src 10.0.1.1");
    assert_eq!(network.endpoints.run(move || ask(to)).unwrap(), (all[0], gateway));
    program("node n1 ip=192.168.0.2\nservice default/none 172.30.0.2:80\n".to_owned());
    let nobody: SocketAddr = "172.30.0.2:80".parse().unwrap();
    let refused = network
        .node
        .run(move || TcpStream::connect_timeout(&nobody, Duration::from_secs(5)));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
