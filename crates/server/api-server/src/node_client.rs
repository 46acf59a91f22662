//! How does the server ask a node's agent for something?
//!
//! Over HTTPS to the address and port that the Node's status names. The agent has to show a certificate for that
//! address by the cluster's authority, or by the one of `--kubelet-certificate-authority`. The server shows a client
//! certificate whose user has no rights but those that the agents' answers need (`system:kubelet-api-admin`).

use crate::auth::pki::Identity;
use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use pointsman_http::{ClientError, Incoming, Target};
use pointsman_rules::ApiError;
use pointsman_rules::value::{int_at, list_at, str_at};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files of the client certificate, without their endings.
pub const STEM: &str = "apiserver-kubelet-client";
/// Whom agents know the server as.
pub const USER: &str = "kube-apiserver-kubelet-client";
/// How long a node may take until the head of its answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Who the server is to nodes.
pub fn identity() -> Identity {
    Identity::new(USER, &[])
}

/// Where an agent listens, as its Node says.
pub fn endpoint(node: &Value) -> Option<SocketAddr> {
    let addresses = list_at(node, &["status", "addresses"]).iter();
    let mut internal = addresses.filter(|address| str_at(address, &["type"]) == "InternalIP");
    let ip: IpAddr = str_at(internal.next()?, &["address"]).parse().ok()?;
    let port = int_at(node, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"])?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    Some(SocketAddr::new(ip, port))
}

#[derive(Clone, Debug)]
pub struct NodeClient {
    pki: PathBuf,
    authority: PathBuf,
}

impl NodeClient {
    /// A client whose certificate is kept in this directory. The certificates of agents are by the authority there,
    /// or by another one.
    pub fn new(pki: &Path, authority: Option<&Path>) -> Self {
        Self {
            pki: pki.to_owned(),
            authority: authority.map_or_else(|| pki.join("ca.crt"), Path::to_owned),
        }
    }

    /// Gets a path; the body of the answer may go on for as long as it likes.
    pub async fn get(&self, address: SocketAddr, path: &str) -> Result<Response<Incoming>, ApiError> {
        let answer = self.target(address)?.open(path, ANSWER).await;
        match answer {
            Ok(answer) => Ok(answer.into_response()),
            Err(error @ ClientError::BadRequest(..)) => Err(ApiError::BadRequest(error.to_string())),
            Err(error) => Err(ApiError::Unavailable(format!("the node's agent: {error}"))),
        }
    }

    /// Asks for a connection of streams; the answer says whether there is one.
    pub async fn upgrade(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, ApiError> {
        let target = self.target(address)?;
        let answer = target.pass(method, path, headers, Bytes::new()).await;
        answer.map_err(|error| ApiError::Unavailable(format!("the node's agent: {error}")))
    }

    /// The agent at an address.
    pub fn target(&self, address: SocketAddr) -> Result<Target, ApiError> {
        Ok(self.targets()?(address))
    }

    /// The agents at any addresses.
    pub fn targets(&self) -> Result<impl Fn(SocketAddr) -> Target + use<>, ApiError> {
        // Read anew each time: such requests are rare, and certificates are renewed.
        let tls = self.tls().map_err(|error| {
            ApiError::Unavailable(format!("cannot prepare to ask the nodes' agents: {error}"))
        })?;
        let tls = Arc::new(tls);
        Ok(move |address| Target::secure(address, tls.clone()))
    }

    fn tls(&self) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
        let path = |ending: &str| self.pki.join(format!("{STEM}.{ending}"));
        let chain = CertificateDer::pem_file_iter(path("crt"))?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(path("key"))?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_file_iter(&self.authority)? {
            roots.add(authority?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_agent_is_where_its_node_says() {
        let node = json!({"status": {
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        }});
        assert_eq!(endpoint(&node), Some("192.0.2.1:10250".parse().unwrap()));
        assert_eq!(endpoint(&json!({"status": {}})), None);
        assert_eq!(
            endpoint(&json!({"status": {"addresses": node["status"]["addresses"]}})),
            None
        );
    }
}
