//! What does a KubeletConfiguration file say?

use crate::config_file::Kind;
use crate::duration;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The fields that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    pub address: Option<String>,
    pub port: Option<u16>,
    #[serde(deserialize_with = "go")]
    pub node_status_update_frequency: Option<Duration>,
    #[serde(deserialize_with = "go")]
    pub node_status_report_frequency: Option<Duration>,
    #[serde(deserialize_with = "go")]
    pub sync_frequency: Option<Duration>,
    pub node_lease_duration_seconds: Option<u32>,
    pub max_pods: Option<u32>,
    pub container_runtime_endpoint: Option<String>,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Option<Vec<IpAddr>>,
    pub cluster_domain: Option<String>,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    pub register_with_taints: Option<Vec<Value>>,
    pub authentication: Authentication,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authentication {
    pub x509: X509,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
}

fn go<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let parsed = text.map(|text| duration::parse(&text)).transpose();
    parsed.map_err(serde::de::Error::custom)
}

impl Kind for File {
    const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
    const KIND: &str = "KubeletConfiguration";
    const ZERO_IS_SET: bool = false;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::parse;

    #[test]
    fn a_file_as_kubeadm_writes_it_is_read_and_what_has_no_effect_is_named() {
        let text = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  x509: { clientCAFile: /etc/kubernetes/pki/ca.crt }
  webhook: { enabled: true }
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: example.test
nodeStatusUpdateFrequency: 20s
nodeStatusReportFrequency: 0s
maxPods: 50
logging: { flushFrequency: 0 }
";
        let (file, unread) = parse::<File>(text).unwrap();
        assert_eq!(file.node_status_update_frequency, Some(Duration::from_secs(20)));
        assert_eq!(
            (file.node_status_report_frequency, file.max_pods),
            (None, Some(50))
        );
        assert_eq!(file.cluster_dns, Some(vec![IpAddr::from([10, 96, 0, 10])]));
        assert_eq!(file.cluster_domain.as_deref(), Some("example.test"));
        let ca = file.authentication.x509.client_ca_file;
        assert_eq!(ca, Some("/etc/kubernetes/pki/ca.crt".into()));
        assert_eq!(unread, ["authentication.webhook.enabled", "cgroupDriver"]);
    }

    #[test]
    fn other_kinds_and_durations_that_are_none_are_refused() {
        assert!(parse::<File>("kind: Pod\napiVersion: v1\n").is_err());
        let odd = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeStatusUpdateFrequency: often\n";
        assert!(parse::<File>(odd).is_err());
    }
}
