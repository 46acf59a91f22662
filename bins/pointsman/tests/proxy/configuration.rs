//! Is a proxy configured as kube-proxy is?

use serde_json::Value;

use crate::eventually;
use crate::features::{answers, web};
use crate::node::Network;

/// What kubeadm writes into the ConfigMap of kube-proxy.
const KUBEADM: &str = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: KUBECONFIG
  qps: 0
clusterCIDR: 10.0.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 5m
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: \"\"
  interfaceNamePrefix: \"\"
detectLocalMode: \"\"
enableProfiling: false
healthzBindAddress: \"\"
hostnameOverride: \"\"
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: \"\"
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
metricsBindAddress: \"\"
mode: nftables
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: \"\"
  rootHnsEndpointName: \"\"
  sourceVip: \"\"
";

#[test]
fn the_file_and_the_arguments_of_a_kubeadm_cluster_start_a_working_proxy() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let file = cluster.directory().join("config.conf");
    let kubeconfig = cluster.kubeconfig.display().to_string();
    std::fs::write(&file, KUBEADM.replace("KUBECONFIG", &kubeconfig)).unwrap();
    let config = format!("--config={}", file.display());
    cluster.start_proxy(&[&config, "--hostname-override=n1", "--v=2"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    assert_eq!(cluster.get(10249, "/proxyMode"), "nftables");
    let shown: Value = serde_json::from_str(&cluster.get(10249, "/configz")).unwrap();
    assert_eq!(shown["kubeproxy.config.k8s.io"]["clusterCIDR"], "10.0.0.0/16");
    let timeout = network
        .node
        .sh("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait");
    assert_eq!(
        timeout.trim(),
        "300",
        "settings of connection tracking are applied"
    );
}

#[test]
fn kernel_settings_can_be_made_beforehand_and_the_configuration_written_down() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let prepared = cluster.run(&[
        "proxy",
        "--init-only",
        "--proxy-mode=iptables",
        "--hostname-override=n1",
    ]);
    assert!(
        prepared.status.success(),
        "{}",
        String::from_utf8_lossy(&prepared.stderr)
    );
    let localnet = network.node.sh("cat /proc/sys/net/ipv4/conf/all/route_localnet");
    assert_eq!(localnet.trim(), "1");
    let file = cluster.directory().join("written.yaml").display().to_string();
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let written = cluster.run(&[
        "proxy",
        "--write-config-to",
        &file,
        "--kubeconfig",
        &kubeconfig,
        "--hostname-override=n1",
        "--proxy-mode=nftables",
        "--cluster-cidr=10.0.0.0/16",
    ]);
    assert!(
        written.status.success(),
        "{}",
        String::from_utf8_lossy(&written.stderr)
    );
    cluster.start_proxy(&["--config", &file]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    assert_eq!(cluster.get(10249, "/proxyMode"), "nftables");
    eventually("a proxy without its Node is not for load balancers", || {
        cluster.health() == "503"
    });
    cluster.node_object();
    eventually("and with it is", || cluster.health() == "200");
}

/// The arguments after the program's name, as clusters in the field have them.
const DAEMON_SETS: [(&str, &[&str], &str); 4] = [
    (
        "kubeadm",
        &["--config=CONFIG", "--hostname-override=n1"],
        "clusterCIDR: 10.0.0.0/16",
    ),
    (
        "a managed cluster",
        &[
            "--v=2",
            "--config=CONFIG",
            "--hostname-override=n1",
            "--profiling",
            "--vmodule=proxier=4",
        ],
        "mode: nftables",
    ),
    (
        "an installer with flags alone",
        &[
            "--conntrack-max-per-core=131072",
            "--hostname-override=n1",
            "--kubeconfig=KUBECONFIG",
            "--master=https://127.0.0.1:6443",
            "--oom-score-adj=0",
            "-v",
            "2",
        ],
        "maxPerCore: 131072",
    ),
    (
        "a static pod",
        &[
            "--kubeconfig=KUBECONFIG",
            "--cluster-cidr=10.0.0.0/16",
            "--detect-local-mode=NodeCIDR",
            "--feature-gates=ServiceTrafficDistribution=true",
            "--iptables-sync-period=1m",
            "--iptables-min-sync-period=10s",
            "--ipvs-sync-period=1m",
            "--ipvs-min-sync-period=10s",
            "--ipvs-strict-arp",
            "--kube-api-qps=50",
            "--log-flush-frequency=5s",
            "--logging-format=json",
            "--hostname-override=n1",
        ],
        "detectLocalMode: NodeCIDR",
    ),
];

#[test]
fn arguments_of_daemon_sets_and_static_pods_are_accepted_and_mean_what_they_say() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let cluster = network.start_server();
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let file = cluster.directory().join("config.conf").display().to_string();
    std::fs::write(&file, KUBEADM.replace("KUBECONFIG", &kubeconfig)).unwrap();
    let out = cluster.directory().join("written.yaml").display().to_string();
    for (who, arguments, expected) in DAEMON_SETS {
        let filled = arguments.iter().map(|argument| {
            argument
                .replace("KUBECONFIG", &kubeconfig)
                .replace("CONFIG", &file)
        });
        let filled: Vec<String> = filled.collect();
        let mut all = vec!["proxy", "--write-config-to", &out];
        all.extend(filled.iter().map(String::as_str));
        let written = cluster.run(&all);
        let errors = String::from_utf8_lossy(&written.stderr);
        assert!(written.status.success(), "{who}: {errors}");
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.contains(expected), "{who}: {expected} is not in\n{text}");
    }
}
