//! Which cluster does a kubeconfig's current context name?
//!
//! [`crate::connect`] reads everything else; this is for roles that need the server's address or its
//! authority themselves.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A cluster as a kubeconfig has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cluster {
    /// The URL of its API server.
    #[serde(default)]
    pub server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<PathBuf>,
}

/// Why a kubeconfig is of no use.
#[derive(Debug, Error)]
pub enum BadKubeconfig {
    #[error("reading {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    #[error("reading the kubeconfig")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    #[error("its current context names no cluster")]
    NoCluster,
    #[error("certificate-authority-data is not base64")]
    Authority(#[source] base64::DecodeError),
    #[error("it names no authority; use --client-ca-file")]
    NoAuthority,
}

impl Cluster {
    /// Reads the file's current cluster.
    pub fn read(path: &Path) -> Result<Self, BadKubeconfig> {
        let text = std::fs::read_to_string(path).map_err(|error| BadKubeconfig::File(path.into(), error))?;
        Self::parse(&text)
    }

    /// The current cluster in the text of a kubeconfig.
    pub fn parse(text: &str) -> Result<Self, BadKubeconfig> {
        let config: Config =
            serde_saphyr::from_str(text).map_err(|error| BadKubeconfig::Syntax(Box::new(error)))?;
        let current = config.current_context.as_deref();
        let context = config
            .contexts
            .into_iter()
            .find(|named| Some(named.name.as_str()) == current);
        let cluster = context
            .and_then(|named| named.context)
            .map(|context| context.cluster);
        let named = config
            .clusters
            .into_iter()
            .find(|named| Some(&named.name) == cluster.as_ref());
        named
            .and_then(|named| named.cluster)
            .ok_or(BadKubeconfig::NoCluster)
    }

    /// The authority of the server's certificate, as PEM. A file that the kubeconfig at `path` names is looked for
    /// beside it.
    pub fn authority(&self, path: &Path) -> Result<Vec<u8>, BadKubeconfig> {
        if let Some(data) = &self.certificate_authority_data {
            return BASE64_STANDARD.decode(data).map_err(BadKubeconfig::Authority);
        }
        let file = self
            .certificate_authority
            .as_ref()
            .ok_or(BadKubeconfig::NoAuthority)?;
        let file = path.parent().unwrap_or(Path::new(".")).join(file);
        std::fs::read(&file).map_err(|error| BadKubeconfig::File(file, error))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Config {
    current_context: Option<String>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
current-context: b
contexts:
- {name: a, context: {cluster: one, user: x}}
- {name: b, context: {cluster: two, user: x}}
clusters:
- {name: one, cluster: {server: 'https://192.0.2.1'}}
- {name: two, cluster: {server: 'https://192.0.2.2', certificate-authority-data: aGVsbG8=}}
users: []
";

    #[test]
    fn the_current_context_chooses_the_cluster() {
        let cluster = Cluster::parse(TWO).unwrap();
        assert_eq!(cluster.server, "https://192.0.2.2");
        assert_eq!(cluster.authority(Path::new("x")).unwrap(), b"hello");
    }

    #[test]
    fn a_kubeconfig_without_a_current_cluster_is_refused() {
        for bad in [
            "",
            "{}",
            "current-context: a",
            &TWO.replace("context: b", "context: c"),
            "- 1",
        ] {
            assert!(Cluster::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_authority_may_be_a_file_beside_the_kubeconfig_and_has_to_be_somewhere() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.crt"), "pem").unwrap();
        let path = directory.path().join("kubeconfig");
        let beside = TWO.replace(
            "certificate-authority-data: aGVsbG8=",
            "certificate-authority: ca.crt",
        );
        std::fs::write(&path, beside).unwrap();
        assert_eq!(Cluster::read(&path).unwrap().authority(&path).unwrap(), b"pem");
        let none = TWO.replace(", certificate-authority-data: aGVsbG8=", "");
        let nowhere = Cluster::parse(&none).unwrap().authority(&path);
        assert!(matches!(nowhere, Err(BadKubeconfig::NoAuthority)));
    }
}
