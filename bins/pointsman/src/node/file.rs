//! What does a KubeletConfiguration file say?
//!
//! Files are read as kubeadm and others write them: null, empty and zero mean "not set". A field that is
//! set and that nothing here reads is named in a warning.

use crate::duration;
use anyhow::{Context, bail};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The fields that are read. Serialised, it is the list of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    pub api_version: Option<String>,
    pub kind: Option<String>,
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
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    pub register_with_taints: Option<Vec<Value>>,
    pub authentication: Authentication,
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

impl File {
    /// Reads a file; also returns the fields that are set and have no effect.
    pub fn read(path: &Path) -> anyhow::Result<(Self, Vec<String>)> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("reading {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<(Self, Vec<String>)> {
        let mut value: Value = serde_saphyr::from_str(text)?;
        remove_unset(&mut value);
        let known = serde_json::to_value(Self::default())?;
        let mut unread = Vec::new();
        find_unread(&value, &known, "", &mut unread);
        let file: Self = serde_json::from_value(value)?;
        match (file.api_version.as_deref(), file.kind.as_deref()) {
            (Some("kubelet.config.k8s.io/v1beta1"), Some("KubeletConfiguration")) => Ok((file, unread)),
            (version, kind) => bail!(
                "{} {} is not kubelet.config.k8s.io/v1beta1 KubeletConfiguration",
                version.unwrap_or("nothing"),
                kind.unwrap_or("nothing"),
            ),
        }
    }
}

/// Takes away what means nothing. Durations of zero are not set either.
fn remove_unset(value: &mut Value) {
    let Value::Object(map) = value else { return };
    map.values_mut().for_each(remove_unset);
    map.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !matches!(text.as_str(), "" | "0s"),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) => true,
    });
}

fn find_unread(value: &Value, known: &Value, path: &str, unread: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    for (field, value) in map {
        let path = format!("{path}{field}");
        match known.get(field) {
            None => unread.push(path),
            Some(known @ Value::Object(_)) => find_unread(value, known, &format!("{path}."), unread),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_as_kubeadm_writes_it_is_read_and_what_has_no_effect_is_named() {
        let text = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  x509: { clientCAFile: /etc/kubernetes/pki/ca.crt }
  webhook: { enabled: true }
cgroupDriver: systemd
clusterDNS: []
nodeStatusUpdateFrequency: 20s
nodeStatusReportFrequency: 0s
maxPods: 50
logging: { flushFrequency: 0 }
";
        let (file, unread) = File::parse(text).unwrap();
        assert_eq!(file.node_status_update_frequency, Some(Duration::from_secs(20)));
        assert_eq!(
            (file.node_status_report_frequency, file.max_pods),
            (None, Some(50))
        );
        let ca = file.authentication.x509.client_ca_file;
        assert_eq!(ca, Some("/etc/kubernetes/pki/ca.crt".into()));
        assert_eq!(unread, ["authentication.webhook", "cgroupDriver"]);
    }

    #[test]
    fn other_kinds_and_durations_that_are_none_are_refused() {
        assert!(File::parse("kind: Pod\napiVersion: v1\n").is_err());
        let odd = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeStatusUpdateFrequency: often\n";
        assert!(File::parse(odd).is_err());
    }
}
