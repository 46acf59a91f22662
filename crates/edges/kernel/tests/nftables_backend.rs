//! The nftables backend finds, keeps, repairs and removes tables of a real kernel.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

use pointsman_dataplane::{Programmer, Recovery, Settings, Written};
use pointsman_kernel::Commits;
use pointsman_kernel::nftables_backend::NftablesBackend;
use pointsman_model::Cidr;
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

const V4: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    endpoint default/web 10.0.2.5:8080 node=n2
    service default/api 172.30.0.2:443
    endpoint default/api 10.0.1.6:8443 node=n1";
const V6: &str = "node n1
    service default/web [fd00:30::1]:80
    endpoint default/web [fd00:1:1::5]:8080 node=n1";

/// Programs the whole cluster with a backend that knows nothing of earlier ones.
fn start<A: Family>(text: &str) -> (NftablesBackend<A>, Written) {
    let cluster = Cluster::parse(text);
    let mut backend = NftablesBackend::open(cluster.settings::<A>(), Commits::default()).unwrap();
    let written = full(&mut backend, &cluster);
    (backend, written)
}

fn full<A: Family>(backend: &mut NftablesBackend<A>, cluster: &Cluster) -> Written {
    let mut index = cluster.index::<A>();
    let batch = index.checkout();
    let written = backend.sync(&batch).unwrap();
    let _ = index.commit(batch);
    written
}

fn nft(arguments: &str) -> String {
    let output = Command::new("nft")
        .args(arguments.split_whitespace())
        .output()
        .expect("nft is installed");
    assert!(
        output.status.success(),
        "nft {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_restart_on_a_correct_table_writes_nothing() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let (_, first) = start::<Ipv4Addr>(V4);
        assert!(first.transactions > 0 && !first.repaired, "{first:?}");
        let before = nft("list table ip pointsman");
        let (mut again, second) = start::<Ipv4Addr>(V4);
        assert_eq!(second, Written::default());
        assert_eq!(nft("list table ip pointsman"), before);
        assert!(again.is_undisturbed().unwrap());
    });
}

#[test]
fn what_changed_settings_make_different_is_no_repair() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let cluster = Cluster::parse(V4);
        let (mut backend, _) = start::<Ipv4Addr>(V4);
        backend.change_settings(Settings {
            service_cidrs: Cidr::parse("172.30.0.0/16").unwrap().into_iter().collect(),
            ..cluster.settings()
        });
        let changed = full(&mut backend, &cluster);
        assert!(changed.elements > 0 && !changed.repaired, "{changed:?}");
        nft("flush set ip pointsman cluster-ips");
        assert!(full(&mut backend, &cluster).repaired);
    });
}

#[test]
fn what_others_deleted_is_noticed_and_put_back() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let (mut backend, _) = start::<Ipv4Addr>(V4);
        let before = nft("list table ip pointsman");
        nft("flush set ip pointsman cluster-ips");
        assert!(!backend.is_undisturbed().unwrap());
        let repaired = full(&mut backend, &Cluster::parse(V4));
        assert!(repaired.repaired && repaired.elements == 2, "{repaired:?}");
        assert_eq!(nft("list table ip pointsman"), before);
        assert!(backend.is_undisturbed().unwrap());
        nft("flush ruleset");
        assert!(full(&mut backend, &Cluster::parse(V4)).repaired);
        assert_eq!(nft("list table ip pointsman"), before);
    });
}

#[test]
fn what_changed_between_two_processes_is_no_repair() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let before = start::<Ipv4Addr>(V4);
        drop(before);
        nft("flush set ip pointsman cluster-ips");
        let (mut backend, first) = start::<Ipv4Addr>(V4);
        assert!(first.elements == 2 && !first.repaired, "{first:?}");
        nft("flush set ip pointsman cluster-ips");
        assert!(full(&mut backend, &Cluster::parse(V4)).repaired);
    });
}

#[test]
fn a_change_to_a_table_that_vanished_asks_for_everything() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let cluster = Cluster::parse(V4);
        let mut index = cluster.index::<Ipv4Addr>();
        let mut backend = NftablesBackend::open(cluster.settings(), Commits::default()).unwrap();
        let batch = index.checkout();
        backend.sync(&batch).unwrap();
        let _ = index.commit(batch);
        let before = nft("list table ip pointsman");
        nft("flush ruleset");
        let gone = pointsman_testkit::cluster::service_name("default/web");
        index.fold_service(&gone, None, None);
        let batch = index.checkout();
        let error = backend.sync(&batch).unwrap_err();
        assert_eq!(error.recovery(), Recovery::FullResync);
        index.abort(batch, error.recovery());
        cluster.fold_into(&mut index);
        let batch = index.checkout();
        backend.sync(&batch).unwrap();
        let _ = index.commit(batch);
        assert_eq!(nft("list table ip pointsman"), before);
    });
}

#[test]
fn cleaning_up_removes_both_families_and_what_kube_proxy_left() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let (mut four, _) = start::<Ipv4Addr>(V4);
        let (mut six, _) = start::<Ipv6Addr>(V6);
        nft("add table ip kube-proxy");
        nft("add table ip other");
        for _ in 0..2 {
            four.remove_predecessors().unwrap();
            assert!(!nft("list tables").contains("kube-proxy"));
        }
        four.clean_up().unwrap();
        six.clean_up().unwrap();
        assert_eq!(nft("list tables").trim(), "table ip other");
    });
}
