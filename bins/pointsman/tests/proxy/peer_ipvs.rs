//! Does a node leave a real kube-proxy's IPVS mode, and go back to it, without anybody noticing?
//!
//! `PEER_KUBE_PROXY` names the program; besides it takes a kernel with IPVS, and the programs ipset and ipvsadm.
//! [`takeover`](crate::takeover) has a stand-in that always runs.

use std::time::{Duration, Instant};

use crate::eventually_within;
use crate::features::answers;
use crate::node::{Network, Traffic};
use crate::peer::{SYNCED, start_kube_proxy};
use crate::takeover::{echoes, service};

/// A machine that is emulated takes its time.
const PATIENCE: Duration = Duration::from_secs(180);

/// What IPVS mode keeps on a node: link, virtual servers and sets.
fn kept(network: &Network) -> [usize; 3] {
    let count = |command: &str, what: &str| {
        let said = network.node.sh(command);
        said.lines().filter(|line| line.contains(what)).count()
    };
    [
        count("ip -o link", "kube-ipvs0"),
        count("ipvsadm -Ln", " rr"),
        count("ipset list -n", "KUBE-"),
    ]
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY and a kernel with ip_vs"]
fn a_real_kube_proxy_in_ipvs_mode_is_replaced_and_comes_back_without_a_gap() {
    pointsman_testkit::require_netns!();
    let program = std::env::var("PEER_KUBE_PROXY").expect("PEER_KUBE_PROXY names a kube-proxy");
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let address = service(&cluster);
    start_kube_proxy(&mut cluster, &program, "ipvs");
    // Virtual servers come before the rules that masquerade for them.
    eventually_within(PATIENCE, "kube-proxy has written everything", || {
        cluster.metric(SYNCED) > 0.0
    });
    eventually_within(PATIENCE, "virtual servers are there", || kept(&network)[1] > 41);
    answers(&network, &address, "10.0.1.5");
    let at_first = kept(&network);
    assert!(at_first.iter().all(|count| *count > 0), "{at_first:?}");

    // One that IPVS carries, and one of the node itself, whose own address is the cluster address.
    let mut carried = network.echo(&address, 81);
    let mut of_node = Network::echo_from(&network.node, &address, 81);
    for stream in [&carried, &of_node] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert_eq!(of_node.local_addr().unwrap().ip().to_string(), address);
    let traffic = [&network.client, &network.node].map(|from| Network::traffic_from(from, &address, 80));
    let more = |what: &str| {
        let so_far = traffic.each_ref().map(Traffic::answered);
        eventually_within(PATIENCE, what, || {
            let now = traffic.each_ref().map(Traffic::answered);
            now[0] > so_far[0] + 100 && now[1] > so_far[1] + 100
        });
    };
    more("IPVS serves");

    cluster.kill("kube-proxy");
    more("IPVS serves without kube-proxy");
    assert!(echoes(&mut carried), "the client's connection goes on");
    assert!(echoes(&mut of_node), "the node's connection goes on");
    let began = Instant::now();
    cluster.start_proxy(&["--proxy-mode=ipvs", "--iptables-sync-period=1s"]);
    let log = |role: &str| std::fs::read_to_string(cluster.directory().join(role)).unwrap_or_default();
    eventually_within(PATIENCE, "it waits for connections", || {
        log("proxy.log").contains("kube-ipvs0 goes when its connections have ended")
    });
    let there = began.elapsed();
    let chains = network.node.sh("iptables-save");
    assert!(!chains.contains("KUBE-"), "{chains}");
    more("ours serves beside what IPVS mode left");
    assert_eq!(kept(&network), at_first, "connections need it");
    let shown = || {
        network
            .node
            .sh("ipvsadm -Lnc; conntrack -L 2>/dev/null | grep -w dport=81; nft list ruleset")
    };
    assert!(
        echoes(&mut carried),
        "the client's connection goes on: {}",
        shown()
    );
    assert!(echoes(&mut of_node), "the node's connection goes on: {}", shown());
    let new = Network::echo_from(&network.node, &address, 81);
    assert_ne!(
        new.local_addr().unwrap().ip().to_string(),
        address,
        "new ones need it no more"
    );
    drop((carried, of_node));
    eventually_within(PATIENCE, "link, virtual servers and sets are gone", || {
        kept(&network) == [0, 0, 0]
    });
    more("ours serves alone");

    let mut ours = network.echo(&address, 81);
    cluster.kill("proxy");
    let early = cluster.run(&["proxy", "--cleanup-own"]);
    assert!(!early.status.success(), "packets still need our rules");
    let began = Instant::now();
    start_kube_proxy(&mut cluster, &program, "ipvs");
    eventually_within(PATIENCE, "kube-proxy has taken over and ours can go", || {
        cluster.run(&["proxy", "--cleanup-own"]).status.success()
    });
    let back = began.elapsed();
    let rules = network.node.sh("nft list tables");
    assert!(!rules.contains("pointsman"), "{rules}");
    more("IPVS serves again");
    // It makes sets that are empty when it likes.
    assert_eq!(kept(&network)[..2], at_first[..2]);
    let goes_on = echoes(&mut ours);
    let answered = traffic.each_ref().map(Traffic::answered);
    let [outside, node] = traffic.map(Traffic::stop);
    eprintln!(
        "{answered:?} connections of a client and of the node, {} and {} failed; ours after {there:.2?}, \
         kube-proxy's after {back:.2?}; link, virtual servers and sets: {at_first:?}",
        outside.len(),
        node.len(),
    );
    assert_eq!((outside, node), (Vec::new(), Vec::new()), "no connection failed");
    assert!(goes_on, "an open connection goes on");
}
