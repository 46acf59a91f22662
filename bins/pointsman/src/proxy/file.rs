//! What does a KubeProxyConfiguration file say?

use crate::config_file::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The fields that are read.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    pub mode: Option<String>,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    pub detect_local_mode: Option<String>,
    pub detect_local: DetectLocal,
    pub iptables: Iptables,
    pub nftables: Writing,
    pub ipvs: IpvsSettings,
    pub node_port_addresses: Option<Vec<String>>,
    pub healthz_bind_address: Option<String>,
    pub metrics_bind_address: Option<String>,
    pub bind_address: Option<String>,
    pub bind_address_hard_fail: Option<bool>,
    pub client_connection: ClientConnection,
    pub hostname_override: Option<String>,
    pub conntrack: Conntrack,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    /// Not of kube-proxy.
    pub reset_dead_connections: Option<String>,
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    pub bridge_interface: Option<String>,
    pub interface_name_prefix: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    #[serde(flatten)]
    pub writing: Writing,
    pub localhost_node_ports: Option<bool>,
}

/// What is left of IPVS mode's settings.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpvsSettings {
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
}

/// How rules are written; each mode has settings of its own.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Writing {
    pub masquerade_all: Option<bool>,
    pub masquerade_bit: Option<u8>,
    pub min_sync_period: Option<String>,
    pub sync_period: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    pub max_per_core: Option<u64>,
    pub min: Option<u64>,
    pub tcp_established_timeout: Option<String>,
    pub tcp_close_wait_timeout: Option<String>,
    pub tcp_be_liberal: Option<bool>,
    pub udp_timeout: Option<String>,
    pub udp_stream_timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    pub kubeconfig: Option<PathBuf>,
}

impl Kind for File {
    const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
    const KIND: &str = "KubeProxyConfiguration";
    const ZERO_IS_SET: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::parse;

    /// What kubeadm 1.31 writes.
    const KUBEADM: &str = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
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
  syncPeriod: 30s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: \"\"
  strictARP: false
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
metricsBindAddress: \"\"
mode: \"\"
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel:
  enableDSR: false
";

    #[test]
    fn a_file_of_kubeadm_is_read_and_what_is_not_set_stays_unset() {
        let (file, unread) = parse::<File>(KUBEADM).unwrap();
        assert_eq!(file.cluster_cidr.as_deref(), Some("10.244.0.0/16"));
        assert_eq!(file.iptables.writing.sync_period.as_deref(), Some("30s"));
        assert_eq!(file.iptables.writing.masquerade_all, Some(false));
        assert_eq!(file.mode, None);
        assert_eq!(file.iptables.writing.min_sync_period, None);
        assert!(file.client_connection.kubeconfig.is_some());
        assert_eq!(unread, ["logging.options.json.infoBufferSize"]);
    }

    #[test]
    fn fields_without_effect_are_named_and_other_kinds_refused() {
        let text = "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, \
                    ipvs: {scheduler: rr}, iptables: {masqueradeBit: 15, colour: red}}";
        let (file, mut unread) = parse::<File>(text).unwrap();
        unread.sort();
        assert_eq!(file.iptables.writing.masquerade_bit, Some(15));
        assert_eq!(unread, ["iptables.colour", "ipvs.scheduler"]);
        assert!(parse::<File>("{apiVersion: v1, kind: ConfigMap}").is_err());
    }
}
