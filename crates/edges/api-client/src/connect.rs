//! Which server, and who are we to it?

use crate::client::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use thiserror::Error;

/// Where the server's address and our credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig file.
    Kubeconfig(PathBuf),
    /// The service account that every pod is given.
    InCluster,
}

impl Source {
    /// The file if one is named, else the pod's own service account.
    pub fn from_flag(kubeconfig: Option<PathBuf>) -> Self {
        kubeconfig.map_or(Self::InCluster, Self::Kubeconfig)
    }
}

/// Why no client could be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig file cannot be used.
    #[error("reading kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<kube::config::KubeconfigError>,
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
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
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
