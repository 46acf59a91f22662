//! What does a KubeProxyConfiguration file say?
//!
//! Files are read as kubeadm and others write them: with every field, most of them null, empty or zero,
//! which all mean "not set". A field that is set and that nothing here reads is named in a warning.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The fields that are read. Serialised, it is the list of them.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub mode: Option<String>,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    pub detect_local_mode: Option<String>,
    pub detect_local: DetectLocal,
    pub iptables: Iptables,
    pub nftables: Nftables,
    pub node_port_addresses: Option<Vec<String>>,
    pub healthz_bind_address: Option<String>,
    pub metrics_bind_address: Option<String>,
    pub bind_address: Option<String>,
    pub bind_address_hard_fail: Option<bool>,
    pub client_connection: ClientConnection,
    pub hostname_override: Option<String>,
    pub conntrack: Conntrack,
    pub feature_gates: Option<BTreeMap<String, bool>>,
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
    pub masquerade_all: Option<bool>,
    pub masquerade_bit: Option<u8>,
    pub localhost_node_ports: Option<bool>,
    pub min_sync_period: Option<String>,
    pub sync_period: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
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

impl File {
    /// Reads a file; also returns the fields that are set and have no effect.
    pub fn read(path: &Path) -> anyhow::Result<(Self, Vec<String>)> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("reading {}", path.display()))
    }

    pub fn parse(text: &str) -> anyhow::Result<(Self, Vec<String>)> {
        let mut value: Value = serde_saphyr::from_str(text)?;
        remove_unset(&mut value);
        let template = serde_json::to_value(Self::default())?;
        let mut unread = Vec::new();
        find_unread(&value, &template, "", &mut unread);
        let file: Self = serde_json::from_value(value)?;
        match (file.api_version.as_deref(), file.kind.as_deref()) {
            (Some("kubeproxy.config.k8s.io/v1alpha1"), Some("KubeProxyConfiguration")) => Ok((file, unread)),
            (version, kind) => bail!(
                "{} {} is not kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration",
                version.unwrap_or("nothing"),
                kind.unwrap_or("nothing"),
            ),
        }
    }
}

/// Removes what means "not set". `false` stays: it is a wish.
fn remove_unset(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(remove_unset);
        fields.retain(|_, value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty() && text != "0s",
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => true,
        });
    }
}

fn find_unread(value: &Value, template: &Value, path: &str, unread: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let idle = value == &Value::Bool(false) || value == &Value::from(0);
        match template.get(name) {
            Some(template @ Value::Object(_)) => find_unread(value, template, &path, unread),
            Some(_) => {}
            None if idle => {}
            None if value.is_object() => find_unread(value, &Value::Null, &path, unread),
            None => unread.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (file, unread) = File::parse(KUBEADM).unwrap();
        assert_eq!(file.cluster_cidr.as_deref(), Some("10.244.0.0/16"));
        assert_eq!(file.iptables.sync_period.as_deref(), Some("30s"));
        assert_eq!(file.iptables.masquerade_all, Some(false));
        assert_eq!(file.mode, None);
        assert_eq!(file.iptables.min_sync_period, None);
        assert!(file.client_connection.kubeconfig.is_some());
        assert_eq!(unread, ["logging.options.json.infoBufferSize"]);
    }

    #[test]
    fn fields_without_effect_are_named_and_other_kinds_refused() {
        let text = "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, \
                    ipvs: {scheduler: rr}, iptables: {masqueradeBit: 15, colour: red}}";
        let (file, mut unread) = File::parse(text).unwrap();
        unread.sort();
        assert_eq!(file.iptables.masquerade_bit, Some(15));
        assert_eq!(unread, ["iptables.colour", "ipvs.scheduler"]);
        assert!(File::parse("{apiVersion: v1, kind: ConfigMap}").is_err());
    }
}
