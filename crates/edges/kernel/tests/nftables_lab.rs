//! Real connections through a real nf_tables table meet the fate that the shared cases say.
//!
//! The same table of cases, in the same network, as `iptables_lab.rs` runs.

use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::Programmer;
use pointsman_kernel::Commits;
use pointsman_kernel::nftables_backend::NftablesBackend;
use pointsman_testkit::cases::{CASES, Case, CaseFamily, Mode};
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::lab::Lab;
use pointsman_testkit::require_netns;

/// Makes the node's rules those of a case, whatever they were before.
fn program<A: Family>(lab: &Lab, case: &Case<'static>) {
    let text = case.cluster;
    lab.node().run(move || {
        let cluster = Cluster::parse(text);
        let mut index = cluster.index::<A>();
        let mut backend = NftablesBackend::open(cluster.settings::<A>(), Commits::default()).unwrap();
        let batch = index.checkout();
        backend.sync(&batch).expect("the kernel takes the elements");
        let _ = index.commit(batch);
        assert!(backend.is_undisturbed().unwrap());
    });
}

fn check<A: Family>(family: CaseFamily) {
    let lab = Lab::new().expect("a network");
    let mut failures = Vec::new();
    for case in CASES.iter().filter(|case| case.family == family) {
        program::<A>(&lab, case);
        failures.extend(lab.check::<A>(case, Mode::Nftables));
    }
    assert!(
        failures.is_empty(),
        "{} flows went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn connections_meet_their_fate_with_nftables() {
    require_netns!();
    check::<Ipv4Addr>(CaseFamily::V4);
}

#[test]
fn connections_meet_their_fate_with_nftables_and_ipv6() {
    require_netns!();
    check::<Ipv6Addr>(CaseFamily::V6);
}
