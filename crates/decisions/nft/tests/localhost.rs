//! What does the table do about node ports of localhost, and which listeners go with it?

use std::net::Ipv4Addr;

use pointsman_dataplane::Localhost;
use pointsman_dataplane::localhost::Listening;
use pointsman_model::{NodePort, Port, Protocol};
use pointsman_netlink::nft::{Expr, Op, Rule};
use pointsman_nft::{Inventory, KernelTable, Planner, TableSettings, refused_on_localhost};
use pointsman_testkit::cluster::Cluster;

fn planner(localhost: Localhost) -> Planner<Ipv4Addr> {
    let cluster = Cluster::parse("node n1 ip=192.168.0.2 nodeports=localhost");
    let mut settings = TableSettings::new(cluster.settings());
    settings.shared.localhost = localhost;
    Planner::new(settings)
}

/// The table's rules after some packets were refused.
fn counted(table: &KernelTable) -> Vec<Rule> {
    let rules = table.chains.iter().flat_map(|(name, content)| {
        let rules = content.rules.iter().cloned();
        rules.map(|exprs| Rule::new(name.clone(), exprs))
    });
    let mut rules: Vec<Rule> = rules.collect();
    let exprs = rules.iter_mut().flat_map(|rule| &mut rule.exprs);
    let counters = exprs.filter(|expr| matches!(expr, Expr::Counter { .. }));
    for (place, counter) in counters.enumerate() {
        *counter = Expr::Counter {
            packets: 7 + place as u64,
            bytes: 99,
        };
    }
    rules
}

#[test]
fn counted_packets_are_read_and_do_not_make_the_table_differ() {
    for (localhost, refused) in [
        (Localhost::Ignored, vec![]),
        (Localhost::Served, vec![(Protocol::Udp, 7), (Protocol::Sctp, 8)]),
        (
            Localhost::Refused,
            vec![(Protocol::Tcp, 7), (Protocol::Udp, 8), (Protocol::Sctp, 9)],
        ),
    ] {
        let mut table = KernelTable::default();
        table.apply(&planner(localhost).ruleset().create()).unwrap();
        let rules = counted(&table);
        assert_eq!(refused_on_localhost(&rules), refused);
        let sets = table.sets.values().map(|content| {
            let elements = content.elements.values().cloned();
            (content.set.clone(), elements.collect::<Vec<_>>())
        });
        let chains = table.chains.values().map(|content| content.chain.clone());
        let found = KernelTable::from_dump(sets, chains, rules);
        let adoption = planner(localhost).adopt(std::iter::empty(), &Inventory::from(&found));
        assert_eq!(adoption.repair.ops, Vec::<Op>::new(), "{localhost:?}");
    }
}

#[test]
fn a_table_follows_when_the_feature_is_switched() {
    let all = [Localhost::Ignored, Localhost::Served, Localhost::Refused];
    for (from, to) in all.iter().flat_map(|from| all.map(|to| (*from, to))) {
        let mut table = KernelTable::default();
        table.apply(&planner(from).ruleset().create()).unwrap();
        let adoption = planner(to).adopt(std::iter::empty(), &Inventory::from(&table));
        table.apply(&adoption.repair).unwrap();
        let mut fresh = KernelTable::default();
        fresh.apply(&planner(to).ruleset().create()).unwrap();
        assert_eq!(table, fresh, "{from:?} to {to:?}");
    }
}

#[test]
fn tcp_node_ports_get_listeners_with_the_endpoints_that_their_policy_allows() {
    let cluster = Cluster::parse(
        "node n1 ip=192.168.0.2
         service default/web 172.30.0.1:80 nodeport=30080 affinity=60
         endpoint default/web 10.0.1.5:8080 node=n1
         endpoint default/web 10.0.2.5:8080 node=n2
         service default/near 172.30.0.2:80 nodeport=30081 policy=Local
         endpoint default/near 10.0.1.6:8080 node=n1
         endpoint default/near 10.0.2.6:8080 node=n2
         service default/far 172.30.0.3:80 nodeport=30082 policy=Local
         endpoint default/far 10.0.2.7:8080 node=n2
         service default/dns 172.30.0.4:53/udp nodeport=30053
         endpoint default/dns 10.0.1.5:53 node=n1 udp
         service default/inner 172.30.0.5:80
         endpoint default/inner 10.0.1.5:80 node=n1",
    );
    let mut index = cluster.index::<Ipv4Addr>();
    let batch = index.checkout();
    let listening = Listening::of(&batch.changes);
    assert_eq!(listening.changed.len(), 5);
    let found = listening.wanted.iter().map(|(port, listener)| {
        let endpoints = listener.endpoints.iter().map(ToString::to_string);
        let endpoints = endpoints.collect::<Vec<_>>().join(" ");
        format!(
            "{port} {} {} {endpoints}",
            listener.service,
            listener.affinity.is_some()
        )
    });
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            "30080 default/web true 10.0.1.5:8080 10.0.2.5:8080",
            "30081 default/near false 10.0.1.6:8080",
        ]
    );
    let _ = index.commit(batch);
    // A Service that goes takes its listener along.
    let gone = &listening.wanted[&NodePort(Port::new(30080).unwrap())].service;
    index.fold_service(gone, None, None);
    let listening = Listening::of(&index.checkout().changes);
    assert_eq!(listening.changed, [gone.clone()].into());
    assert!(listening.wanted.is_empty());
}
