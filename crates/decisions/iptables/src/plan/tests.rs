//! What plans cost and how they recover.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use pointsman_dataplane::{Fate, Host, Index, Packet, Recovery};
use pointsman_model::{Port, Protocol};
use pointsman_testkit::cluster::{Cluster, service_name};

use super::*;
use crate::fake::FakeKernel;
use crate::name::Builtin;
use crate::render;
use crate::walk::walk;

mod jumps;

struct Proxy {
    index: Index<Ipv4Addr>,
    planner: Planner<Ipv4Addr>,
    kernel: FakeKernel<Ipv4Addr>,
}

impl Proxy {
    fn new(cluster: &str) -> Self {
        let cluster = Cluster::parse(cluster);
        let mut proxy = Self {
            index: cluster.index(),
            planner: Planner::new(cluster.settings()),
            kernel: FakeKernel::default(),
        };
        proxy.sync();
        proxy
    }

    /// Folds more objects, or changed ones, and syncs.
    fn add(&mut self, cluster: &str) -> String {
        Cluster::parse(cluster).fold_into(&mut self.index);
        self.sync()
    }

    /// Syncs and returns the restore input.
    fn sync(&mut self) -> String {
        self.try_sync().expect("the kernel accepts sound plans")
    }

    fn try_sync(&mut self) -> Result<String, String> {
        let batch = self.index.checkout();
        let plan = self
            .planner
            .plan(&batch, || Ok::<_, Infallible>(self.kernel.inventory()))
            .unwrap();
        let mut input = String::new();
        for transaction in plan {
            if let Err(error) = self.kernel.apply(&transaction) {
                self.index.abort(batch, error.recovery());
                return Err(error.to_string());
            }
            self.planner.applied(&transaction);
            input.push_str(&render::transaction(&transaction));
        }
        let _ = self.index.commit(batch);
        Ok(input)
    }
}

/// A cluster of plain Services, each with some endpoints.
fn plain(services: usize, endpoints: usize) -> String {
    let mut text = String::from("node n1 ip=192.168.0.2 pods=10.0.0.0/8\n");
    for service in 0..services {
        text.push_str(&plain_service(service, endpoints));
    }
    text
}

fn plain_service(service: usize, endpoints: usize) -> String {
    let (high, low) = (service / 250, 1 + service % 250);
    let mut text = format!("service ns/s{service}:http 172.30.{high}.{low}:80\n");
    for endpoint in 0..endpoints {
        text.push_str(&format!(
            "endpoint ns/s{service}:http 10.{endpoint}.{high}.{low}:8080 node=n2\n"
        ));
    }
    text
}

#[test]
fn an_endpoint_change_among_a_thousand_services_touches_its_own_chains_only() {
    let mut proxy = Proxy::new(&plain(1000, 5));
    let input = proxy.add(&plain_service(500, 4));
    assert!(input.len() <= 4096, "{} bytes", input.len());
    assert!(
        !input.contains("KUBE-SERVICES") && !input.contains("*filter"),
        "{input}"
    );
    assert_eq!(input.matches(":KUBE-SVC-").count(), 1);
    assert_eq!(
        input.matches(":KUBE-SEP-").count(),
        1,
        "only the chain that goes is named"
    );
}

#[test]
fn adding_and_removing_a_service_costs_the_same_at_any_size() {
    let mut costs = Vec::new();
    for size in [300, 900] {
        let mut proxy = Proxy::new(&plain(size, 1));
        let added = proxy.add(&plain_service(2000, 1));
        assert!(
            !added.contains(":KUBE-SERVICES - "),
            "shared chains are not rewritten"
        );
        proxy.index.fold_service(&service_name("ns/s2000"), None, None);
        let removed = proxy.sync();
        assert!(!removed.contains(":KUBE-SERVICES - "));
        costs.push((added.len(), removed.len()));
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].0 < 1500 && costs[0].1 < 700, "{costs:?}");
}

#[test]
fn ten_thousand_endpoints_of_one_service_are_planned_and_one_change_names_two_chains() {
    let endpoints = |count: usize| {
        let mut text = String::from("node n1\nservice ns/big 172.30.0.1:80\n");
        for number in 0..count {
            text.push_str(&format!(
                "endpoint ns/big 10.0.{}.{}:8080\n",
                number / 250,
                number % 250
            ));
        }
        text
    };
    let mut proxy = Proxy::new(&endpoints(10_000));
    assert_eq!(
        proxy.planner.ledger().total(Table::Nat),
        6 + 1 + 1 + 10_000 * 3 + 1
    );
    let input = proxy.add(&endpoints(9_999));
    assert_eq!(
        input.matches("\n:").count(),
        2,
        "the choice among endpoints and the one that goes"
    );
}

#[test]
fn nothing_new_is_an_empty_plan() {
    let mut proxy = Proxy::new(&plain(3, 2));
    assert_eq!(proxy.sync(), "");
    assert_eq!(proxy.add(&plain(3, 2)), "");
}

#[test]
fn a_second_full_sync_finds_its_jumps_and_changes_nothing() {
    let mut proxy = Proxy::new(&plain(3, 2));
    let before = proxy.kernel.clone();
    proxy.index.force_full();
    assert_eq!(proxy.sync(), "");
    assert_eq!(proxy.kernel, before);
    let expected = proxy.planner.expected(proxy.index.desired());
    assert_eq!(
        proxy.planner.ledger().differences(&expected),
        [],
        "what was kept is known"
    );
}

#[test]
fn a_full_sync_repairs_what_others_changed_and_nothing_else() {
    let mut proxy = Proxy::new(&plain(3, 2));
    let chain = *proxy
        .kernel
        .chains(Table::Nat)
        .keys()
        .rfind(|chain| chain.is_transient())
        .unwrap();
    proxy
        .kernel
        .foreign_rule(Table::Nat, chain, Rule::new(Vec::new(), Target::Return));
    proxy.index.force_full();
    let input = proxy.sync();
    assert_eq!(input.matches("\n:").count(), 1, "{input}");
    assert!(input.contains(&format!(":{chain} - ")));
}

#[test]
fn jumps_that_lost_their_order_are_hung_again_and_foreign_rules_stay() {
    let mut proxy = Proxy::new(&plain(1, 1));
    let forward = ChainName::Builtin(Builtin::Forward);
    let ours: Vec<_> = proxy.kernel.chain(Table::Filter, forward).unwrap().to_vec();
    let foreign = Rule::new(Vec::new(), Target::Accept).comment("theirs");
    proxy.kernel.flush();
    for rule in ours.iter().rev().chain([&foreign]) {
        if let Some(chain) = rule.jumps_to() {
            proxy.kernel.foreign_chain(Table::Filter, chain);
        }
        proxy.kernel.foreign_rule(Table::Filter, forward, rule.clone());
    }
    proxy.index.force_full();
    proxy.sync();
    let after = proxy.kernel.chain(Table::Filter, forward).unwrap();
    assert_eq!(after[..ours.len()], ours);
    assert_eq!(after[ours.len()..], [foreign]);
}

#[test]
fn leftovers_of_an_earlier_life_are_removed_and_chains_of_others_are_kept() {
    let mut proxy = Proxy::new(&plain(2, 1));
    let stale = ChainName::parse("KUBE-SVC-XPGD46QRK7WJZT7O").unwrap();
    proxy.kernel.foreign_chain(Table::Nat, stale);
    proxy.kernel.foreign_chain(Table::Nat, ChainName::Bucket(0xEE));
    proxy.index.force_full();
    let input = proxy.sync();
    assert!(input.contains("-X KUBE-SVC-XPGD46QRK7WJZT7O") && input.contains("-X KUBE-SERVICES-EE"));
    assert_eq!(proxy.kernel.chain(Table::Nat, stale), None);
}

#[test]
fn a_failed_partial_sync_is_healed_by_a_full_one() {
    let mut proxy = Proxy::new(&plain(3, 0));
    // The Service gains its first endpoint: both tables change, and the second one fails.
    Cluster::parse(&plain_service(1, 1)).fold_into(&mut proxy.index);
    proxy.kernel.fail_after(1);
    assert!(proxy.try_sync().unwrap_err().contains("asked to fail"));
    proxy.sync();
    assert_eq!(
        proxy
            .planner
            .ledger()
            .differences(&proxy.planner.expected(proxy.index.desired())),
        []
    );
}

#[test]
fn somebody_elses_edits_make_a_partial_sync_fail_and_the_full_one_heals_it() {
    let mut proxy = Proxy::new(&plain(3, 1));
    proxy.kernel.flush();
    proxy.index.fold_service(&service_name("ns/s1"), None, None);
    assert!(proxy.try_sync().is_err(), "the rule to delete is gone");
    proxy.sync();
    assert_eq!(proxy.kernel.useless_chains(), []);
}

#[test]
fn rule_counts_are_upstreams_plus_one_that_counts_one_jump_for_each_bucket_and_one_spare_for_each_service() {
    for (services, endpoints) in [(0, 0), (1, 1), (10, 2), (10, 10)] {
        let proxy = Proxy::new(&plain(services, endpoints));
        let nat = proxy.planner.ledger().total(Table::Nat) as usize;
        assert_eq!(
            nat,
            6 + services * (2 + 3 * endpoints + usize::from(endpoints > 1)) + services,
            "{services} x {endpoints}"
        );
        // Three rules let traffic forward; the kubelet's chain is not counted as ours.
        assert_eq!(proxy.planner.ledger().total(Table::Filter), 3);
    }
    let empty = Proxy::new(&plain(10, 0));
    assert_eq!(empty.planner.ledger().total(Table::Nat), 6);
    assert_eq!(empty.planner.ledger().total(Table::Filter), 3 + 10 + 10);
}

#[test]
fn endpoint_comments_go_when_the_cluster_is_large() {
    let mut proxy = Proxy::new(&plain(4, 2));
    let small = proxy.add(&plain_service(9, 1));
    assert!(small.contains("ns/s9:http -> 10.0.0.10:8080"), "{small}");
    let large = proxy.add(&plain(260, 4));
    assert!(!large.contains(" -> "));
    assert!(large.contains("ns/s200:http cluster IP"), "other comments stay");
    let rewritten = proxy.add(&plain_service(9, 2));
    assert!(!rewritten.contains(" -> "));
}

/// A Service with these endpoints, by the last byte of their addresses.
fn with_endpoints(endpoints: &[u8], affinity: &str) -> String {
    let mut text = format!("node n1\nservice ns/s 172.30.0.1:80{affinity}\n");
    for endpoint in endpoints {
        text.push_str(&format!("endpoint ns/s 10.0.0.{endpoint}:8080\n"));
    }
    text
}

/// The last bytes of the addresses that a packet to the Service may be sent to.
fn reached(kernel: &FakeKernel<Ipv4Addr>) -> Vec<u8> {
    let host = Host {
        addresses: Vec::new(),
    };
    let packet = Packet {
        protocol: Protocol::Tcp,
        source: "10.0.9.9".parse().unwrap(),
        interface: None,
        destination: "172.30.0.1".parse().unwrap(),
        port: Port::new(80).unwrap(),
    };
    match walk(kernel, &host, &packet) {
        Fate::Delivered(backends) => backends.keys().map(|it| it.address.octets()[3]).collect(),
        fate => panic!("the packet is {fate}"),
    }
}

#[test]
fn leaving_endpoints_are_taken_out_ahead_without_writing_a_rule_or_losing_a_packet() {
    let all = [1, 2, 3, 4];
    for affinity in ["", " affinity=60"] {
        for leaving in 1u8..15 {
            let leaves = |endpoint: &u8| leaving & (1 << (endpoint - 1)) != 0;
            let stay: Vec<u8> = all.into_iter().filter(|endpoint| !leaves(endpoint)).collect();
            let mut proxy = Proxy::new(&with_endpoints(&all, affinity));
            proxy.planner = proxy.planner.removing_ahead_from(Some(0));
            // One comes, so that a full change has to write.
            let after: Vec<u8> = stay.iter().copied().chain([5]).collect();
            Cluster::parse(&with_endpoints(&after, affinity)).fold_into(&mut proxy.index);
            let batch = proxy.index.checkout();
            let transactions: Vec<_> = proxy
                .planner
                .plan(&batch, || Ok::<_, Infallible>(Inventory::default()))
                .unwrap()
                .collect();
            let [ahead, rest] = transactions.as_slice() else {
                panic!("{} transactions", transactions.len());
            };
            let input = render::transaction(ahead);
            let deletes_only = |line: &str| line.starts_with("-D KUBE-SVC-");
            assert!(
                input
                    .lines()
                    .filter(|line| line.starts_with(['-', ':']))
                    .all(deletes_only)
            );
            proxy.kernel.apply(ahead).unwrap();
            proxy.planner.applied(ahead);
            // Only where the last two leave together the last one waits for the rest.
            let waits = [3, 4].iter().all(leaves).then_some(4);
            let meanwhile: Vec<u8> = stay.iter().copied().chain(waits).collect();
            assert_eq!(reached(&proxy.kernel), meanwhile, "{leaving:#b} leaves");
            proxy.kernel.apply(rest).unwrap();
            proxy.planner.applied(rest);
            let _ = proxy.index.commit(batch);
            assert_eq!(reached(&proxy.kernel), after);
            let expected = proxy.planner.expected(proxy.index.desired());
            assert_eq!(proxy.planner.ledger().differences(&expected), []);
        }
    }
}

#[test]
fn what_was_taken_out_ahead_is_not_taken_out_again_when_the_rest_is_retried() {
    let mut proxy = Proxy::new(&with_endpoints(&[1, 2, 3, 4], ""));
    proxy.planner = proxy.planner.removing_ahead_from(Some(0));
    Cluster::parse(&with_endpoints(&[1, 3, 4], "")).fold_into(&mut proxy.index);
    let batch = proxy.index.checkout();
    let mut plan = proxy
        .planner
        .plan(&batch, || Ok::<_, Infallible>(Inventory::default()))
        .unwrap();
    let ahead = plan.next().unwrap();
    proxy.kernel.apply(&ahead).unwrap();
    proxy.planner.applied(&ahead);
    proxy.index.abort(batch, Recovery::Retry);
    // Meanwhile another one leaves.
    let input = proxy.add(&with_endpoints(&[1, 3], ""));
    assert!(!input.contains("-D"), "{input}");
    assert_eq!(reached(&proxy.kernel), [1, 3]);
    let expected = proxy.planner.expected(proxy.index.desired());
    assert_eq!(proxy.planner.ledger().differences(&expected), []);
}

#[test]
fn a_small_table_is_changed_at_once() {
    let mut proxy = Proxy::new(&with_endpoints(&[1, 2, 3], ""));
    let rules = proxy.planner.ledger().total(Table::Nat);
    proxy.planner = proxy.planner.removing_ahead_from(Some(rules + 1));
    assert!(!proxy.add(&with_endpoints(&[1, 2], "")).contains("-D"));
}

#[test]
fn cleaning_up_leaves_only_what_belongs_to_others() {
    let mut proxy = Proxy::new(&plain(3, 2));
    let foreign = Rule::new(Vec::new(), Target::Accept).comment("theirs");
    proxy
        .kernel
        .foreign_rule(Table::Filter, ChainName::Builtin(Builtin::Input), foreign.clone());
    let transaction = cleanup::<Ipv4Addr>(&proxy.kernel.inventory());
    proxy.kernel.apply(&transaction).unwrap();
    let left: Vec<String> = Table::ALL
        .into_iter()
        .flat_map(|table| proxy.kernel.chains(table).keys().map(|chain| chain.to_string()))
        .filter(|chain| chain.starts_with("KUBE"))
        .collect();
    assert_eq!(left, ["KUBE-FIREWALL"]);
    let input = proxy
        .kernel
        .chain(Table::Filter, ChainName::Builtin(Builtin::Input))
        .unwrap();
    assert_eq!(
        input.len(),
        2,
        "the kubelet's jump and the foreign rule: {input:?}"
    );
    let again = cleanup::<Ipv4Addr>(&proxy.kernel.inventory());
    assert!(again.is_empty());
}

#[test]
fn new_settings_ask_for_a_full_batch() {
    let mut proxy = Proxy::new(&plain(1, 1));
    let same = proxy.planner.settings().clone();
    assert!(!proxy.planner.change_settings(same.clone()));
    assert!(proxy.planner.change_settings(Settings {
        masquerade_all: true,
        ..same
    }));
    proxy.index.force_full();
    assert!(
        proxy
            .sync()
            .contains("cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ")
    );
}

#[test]
fn a_successor_keeps_its_chains_and_only_the_buckets_go() {
    let mut proxy = Proxy::new(&plain(3, 1));
    let inventory = proxy.kernel.inventory();
    assert_eq!(Holder::of(&inventory), Holder::Ourselves);
    assert_eq!(Holder::of(&Inventory::default()), Holder::Nobody);
    assert_eq!(
        Holder::of(&Proxy::new("node n1").kernel.inventory()),
        Holder::Unclear
    );
    // Another proxy writes the chain that both share, with rules of its own.
    let services = ChainName::Top(Top::Services);
    for table in [Table::Filter, Table::Nat] {
        let mut transaction = Transaction::default();
        let rules = vec![Rule::new(Vec::new(), Target::Return)];
        transaction.table(table).writes.insert(services, rules);
        proxy.kernel.apply(&transaction).unwrap();
    }
    let before = proxy.kernel.normalised();
    let inventory = proxy.kernel.inventory();
    assert_eq!(Holder::of(&inventory), Holder::Another);
    proxy.kernel.apply(&cleanup_own(&inventory)).unwrap();
    let mut expected = before.clone();
    expected.retain(|(_, chain), _| !matches!(chain, ChainName::Bucket(_)));
    assert_ne!(expected.len(), before.len());
    assert_eq!(proxy.kernel.normalised(), expected);
}
