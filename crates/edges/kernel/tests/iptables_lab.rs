//! Real connections through real iptables rules meet the fate that the shared cases say.

use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::{Compared, Programmer};
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::IptablesBackend;
use pointsman_model::SliceName;
use pointsman_testkit::cases::{CASES, Case, CaseFamily, Mode};
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::lab::Lab;
use pointsman_testkit::require_netns;

/// Makes the node's rules those of a case, whatever they were before.
fn program<A: Family>(lab: &Lab, variant: Variant, case: &Case<'static>) {
    let text = case.cluster;
    lab.node().run(move || {
        let cluster = Cluster::parse(text);
        let mut index = cluster.index::<A>();
        let mut backend = IptablesBackend::new(cluster.settings::<A>(), variant);
        let batch = index.checkout();
        backend.sync(&batch).expect("the kernel takes the rules");
        let ledger = backend.comparison(Compared::Ledger, index.desired().collect());
        let ledger = ledger.expect("nothing is read").expect("this mode compares");
        assert_eq!(ledger.differences().expect("nothing is read").names, [""; 0]);
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

/// UDP and TCP through the same address before, during and after a change of endpoints.
#[test]
fn partial_syncs_move_connections_to_the_new_endpoints() {
    require_netns!();
    for variant in [Variant::Nft, Variant::Legacy] {
        let lab = Lab::new().expect("a network");
        let service = "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                       service default/web:t 172.30.0.1:80/tcp
                       service default/web:u 172.30.0.1:80/udp\n";
        let endpoints = |address: &str| {
            format!(
                "endpoint default/web:t {address}:8080/tcp node=n1\nendpoint default/web:u {address}:8080/udp node=n1\n"
            )
        };
        let lives = [
            String::new(),
            endpoints("10.0.1.5"),
            endpoints("10.0.2.5"),
            String::new(),
        ];
        let expected = ["rejected", "10.0.1.5:8080", "10.0.2.5:8080", "rejected"];
        let (mut index, mut backend) = {
            let cluster = Cluster::parse(service);
            (
                cluster.index::<Ipv4Addr>(),
                IptablesBackend::new(cluster.settings::<Ipv4Addr>(), variant),
            )
        };
        let mut known = Vec::new();
        for (life, fate) in lives.iter().zip(expected) {
            let slices = index_slices(&Cluster::parse(&format!("{service}{life}")));
            let names = slices.iter().map(|slice| slice.name.clone()).collect();
            let before: Vec<SliceName> = std::mem::replace(&mut known, names);
            (index, backend) = lab.node().run(move || {
                for name in &before {
                    index.remove_slice(name, None);
                }
                for slice in slices {
                    index.fold_slice(slice, None, None);
                }
                let batch = index.checkout();
                backend.sync(&batch).expect("the kernel takes the rules");
                let _ = index.commit(batch);
                (index, backend)
            });
            for protocol in ["tcp", "udp"] {
                let flows = format!("10.0.1.9 -> 172.30.0.1:80/{protocol} => {fate}");
                let case = Case {
                    name: "moving",
                    family: CaseFamily::V4,
                    cluster: "",
                    flows: &flows,
                };
                assert_eq!(lab.check::<Ipv4Addr>(&case, Mode::Iptables), Vec::<String>::new());
            }
        }
    }
}

fn index_slices(cluster: &Cluster) -> Vec<pointsman_model::Slice<Ipv4Addr>> {
    let convert = |object| {
        pointsman_dataplane::convert::slice(object, &mut pointsman_model::Interner::default())
            .expect("a slice")
    };
    cluster
        .slices
        .values()
        .map(convert)
        .filter_map(Ipv4Addr::slice)
        .collect()
}
