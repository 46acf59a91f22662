//! Does everything that kube-proxy's IPVS mode left go, and nothing else?
//!
//! Virtual servers are not part of it where the kernel has no IPVS, as that of CI: there the answer "no such family" is.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use pointsman_kernel::others::Lookout;
use pointsman_kernel::{Mode, clean_up, ipvs};
use pointsman_netlink_io::ipvs::{IpSets, Ipvs};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Rules of IPVS mode that look into a set, beside others.
const RULES: &str = "*filter
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j ACCEPT
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst -j RETURN
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP dst -j KUBE-LOAD-BALANCER
COMMIT
";

#[test]
fn the_link_is_found_and_removed_with_the_rights_of_a_proxy_that_is_not_privileged() {
    require_netns!();
    let namespace = Namespace::new().unwrap();
    namespace.ip("link add kube-ipvs0 type bridge");
    namespace.run(|| {
        let mut rights = capabilities(None).unwrap();
        rights.effective = CapabilitySet::NET_ADMIN;
        set_capabilities(None, rights).unwrap();
        let [.., left] = Lookout::open(Mode::Nftables).unwrap().look().unwrap();
        assert!(left.is_some(), "the lookout does not see it");
        assert!(ipvs::Leftovers::find(Instant::now()).unwrap().is_some());
        ipvs::remove_all().unwrap();
        assert!(ipvs::Leftovers::find(Instant::now()).unwrap().is_none());
    });
}

#[test]
fn chains_sets_and_the_link_of_ipvs_mode_are_removed_and_nothing_else() {
    require_netns!();
    for restore in ["iptables-nft-restore", "iptables-legacy-restore"] {
        let namespace = Namespace::new().unwrap();
        namespace.ip("link add kube-ipvs0 type bridge");
        namespace.ip("addr add 10.96.0.1/32 dev kube-ipvs0");
        namespace.run(|| {
            let mut sets = IpSets::open().unwrap();
            for name in ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "OTHER"] {
                sets.create(name).unwrap();
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), RULES).unwrap();
        namespace.sh(&format!("{restore} < {}", file.path().display()));
        namespace.run(|| {
            assert!(ipvs::remove_all().is_err(), "rules still look into the sets");
            clean_up::<Ipv4Addr>().unwrap();
            clean_up::<Ipv6Addr>().unwrap();
            ipvs::remove_all().unwrap();
            let mut sets = IpSets::open().unwrap();
            assert!(!sets.destroy("KUBE-CLUSTER-IP").unwrap());
            assert!(sets.destroy("OTHER").unwrap(), "it was not kube-proxy's");
            if let Some(mut ipvs) = Ipvs::open().unwrap() {
                assert_eq!(ipvs.servers().unwrap(), []);
            }
        });
        let save = restore.replace("restore", "save");
        let rules = namespace.sh(&save);
        assert!(
            rules.contains("-A INPUT -j ACCEPT") && rules.contains("KUBE-KUBELET-CANARY"),
            "{rules}"
        );
        assert_eq!(rules.matches("KUBE-").count(), 1, "{rules}");
        assert!(!namespace.ip("-o link").contains("kube-ipvs0"));
    }
}
