//! Which server, and who are we to it?

use crate::client::Client;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where the server's address and our credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig file, or several as `$KUBECONFIG` lists them.
    Kubeconfig(PathBuf),
    /// The service account that every pod is given.
    InCluster,
}

impl Source {
    /// The file if one is named, else the pod's own service account.
    pub fn from_flag(kubeconfig: Option<PathBuf>) -> Self {
        kubeconfig.map_or(Self::InCluster, Self::Kubeconfig)
    }

    /// The same for a command that a person runs: before the service account comes what kubectl reads by itself.
    pub fn of_user(kubeconfig: Option<PathBuf>) -> Self {
        Self::from_flag(kubeconfig.or_else(usual_kubeconfig))
    }
}

/// `~/.kube/config`, if it is there.
pub fn usual_kubeconfig() -> Option<PathBuf> {
    let file = std::env::home_dir()?.join(".kube/config");
    file.is_file().then_some(file)
}

/// Reads a file, or the files of a list: what an earlier one says counts, and those that are not there are left out.
fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut files = std::env::split_paths(path).filter(|file| file.is_file());
    let first = match files.next() {
        Some(first) if !path.is_file() => first,
        _ => return Kubeconfig::read_from(path),
    };
    files.try_fold(Kubeconfig::read_from(first)?, |merged, file| {
        merged.merge(Kubeconfig::read_from(file)?)
    })
}

/// Why no client could be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig file cannot be used.
    #[error("reading kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    /// There is no usable service account.
    #[error("reading the pod's service account (use --kubeconfig outside of a cluster)")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// Certificates, keys or addresses are of no use.
    #[error("setting up the connection")]
    Setup(#[source] Box<kube::Error>),
}

/// Makes a client; `user_agent` names the role in the server's logs. Nothing is sent yet.
pub async fn connect(source: &Source, user_agent: &str) -> Result<Client, ConnectError> {
    let mut config = match source {
        Source::Kubeconfig(path) => {
            let failed = |source| ConnectError::Kubeconfig {
                path: path.clone(),
                source: Box::new(source),
            };
            let kubeconfig = read(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(failed)?
        }
        Source::InCluster => {
            kube::Config::incluster().map_err(|error| ConnectError::InCluster(Box::new(error)))?
        }
    };
    // Every caller retries in its own way; two layers of waiting would only hide it.
    config.default_retry = false;
    if let Ok(agent) = http::HeaderValue::from_str(user_agent) {
        config.headers.push((http::header::USER_AGENT, agent));
    }
    let host = config.cluster_url.authority().map(ToString::to_string);
    let client = kube::Client::try_from(config).map_err(|error| ConnectError::Setup(Box::new(error)))?;
    Ok(Client::new(client).at(&host.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_list_are_read_together_and_missing_ones_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let context =
            |name: &str| format!("contexts: [{{name: {name}, context: {{cluster: {name}, user: u}}}}]\n");
        let first = file("a", &format!("{}current-context: b\n", context("a")));
        let second = file("b", &format!("{}current-context: a\n", context("b")));
        let list = std::env::join_paths([directory.path().join("none"), first.clone(), second]).unwrap();
        let merged = read(Path::new(&list)).unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("b"));
        assert_eq!(merged.contexts.len(), 2);
        assert_eq!(read(&first).unwrap().contexts.len(), 1);
        assert!(read(&directory.path().join("none")).is_err());
    }
}
