//! Whose words the jumps into our chains are written in, and which of them are taken out.

use super::*;

/// What kube-proxy leaves, in its own words: of its jumps those that ask for new connections say so before they say why.
const OF_KUBE_PROXY: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
COMMIT
";

#[test]
fn cleaning_up_takes_out_the_jumps_of_kube_proxy_and_those_of_our_earlier_versions() {
    let ours_before = OF_KUBE_PROXY.replace(
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\"",
        "-m comment --comment \"kubernetes service portals\" -m conntrack --ctstate NEW",
    );
    assert_ne!(ours_before, OF_KUBE_PROXY);
    for saved in [OF_KUBE_PROXY, &ours_before] {
        let input = render::transaction(&cleanup::<Ipv4Addr>(&Inventory::parse(saved)));
        // The kernel removes no chain that something leads to.
        for jump in saved.lines().filter(|line| line.starts_with("-A")) {
            let delete = jump.replacen("-A", "-D", 1);
            assert!(input.lines().any(|line| line == delete), "{delete}\n{input}");
        }
    }
}

#[test]
fn our_jumps_are_what_kube_proxy_takes_for_its_own() {
    let input = first_input();
    for jump in OF_KUBE_PROXY.lines().filter(|line| line.starts_with("-A")) {
        let insert = jump.replacen("-A", "-I", 1);
        assert!(input.lines().any(|line| line == insert), "{insert}\n{input}");
    }
}

/// The restore input of a proxy that finds nothing.
fn first_input() -> String {
    let cluster = Cluster::parse("node n1");
    let mut proxy = Proxy {
        index: cluster.index(),
        planner: Planner::new(cluster.settings()),
        kernel: FakeKernel::default(),
    };
    proxy.sync()
}
