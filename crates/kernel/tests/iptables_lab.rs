//! Real connections through real iptables rules meet the fate that the shared cases say.

use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::Programmer;
use pointsman_iptables::Planner;
use pointsman_kernel::iptables::{Iptables, Variant};
use pointsman_testkit::cases::{CASES, Case, CaseFamily, Mode};
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::lab::Lab;
use pointsman_testkit::require_netns;

/// Makes the node's rules those of a case, whatever they were before.
fn program<A: Family>(lab: &Lab, variant: Variant, case: &Case) {
    let text = case.cluster;
    lab.node().run(move || {
        let cluster = Cluster::parse(text);
        let mut index = cluster.index::<A>();
        let mut planner = Planner::new(cluster.settings::<A>());
        let mut kernel = Iptables::<A>::new(variant);
        let batch = index.checkout();
        let plan = planner
            .plan(&batch, || kernel.inventory())
            .expect("iptables-save");
        for transaction in plan {
            kernel.apply(&transaction).expect("iptables-restore");
            planner.applied(&transaction);
        }
        let _ = index.commit(batch);
    });
}

fn check<A: Family>(variant: Variant, family: CaseFamily) {
    let lab = Lab::new().expect("a network");
    let mut failures = Vec::new();
    for case in CASES.iter().filter(|case| case.family == family) {
        program::<A>(&lab, variant, case);
        failures.extend(lab.check::<A>(case, Mode::Iptables));
    }
    assert!(
        failures.is_empty(),
        "{} flows went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn connections_meet_their_fate_with_iptables_nft() {
    require_netns!();
    check::<Ipv4Addr>(Variant::Nft, CaseFamily::V4);
}

#[test]
fn connections_meet_their_fate_with_iptables_legacy() {
    require_netns!();
    check::<Ipv4Addr>(Variant::Legacy, CaseFamily::V4);
}

#[test]
fn connections_meet_their_fate_with_ip6tables_nft() {
    require_netns!();
    check::<Ipv6Addr>(Variant::Nft, CaseFamily::V6);
}

#[test]
fn connections_meet_their_fate_with_ip6tables_legacy() {
    require_netns!();
    check::<Ipv6Addr>(Variant::Legacy, CaseFamily::V6);
}
