//! How does the server ask a node's agent for something?
//!
//! Over HTTPS to the address and port that the Node's status names, with a client certificate that the
//! agent believes. The agent's own certificate is not checked: agents make one at every start, as
//! kubelets do, and kube-apiserver does not check it either unless it is given an authority for them.

use crate::auth::pki::Identity;
use http::Response;
use pointsman_http::{ClientError, Incoming, Target};
use pointsman_rules::ApiError;
use pointsman_rules::value::{int_at, list_at, str_at};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files of the client certificate, without their endings.
pub const STEM: &str = "apiserver-kubelet-client";
/// How long a node may take until the head of its answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Who the server is to nodes.
pub fn identity() -> Identity {
    Identity::new("kube-apiserver-kubelet-client", &["system:masters"])
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
}

impl NodeClient {
    /// A client whose certificate is kept in this directory.
    pub fn new(pki: &Path) -> Self {
        Self { pki: pki.to_owned() }
    }

    /// Gets a path; the body of the answer may go on for as long as it likes.
    pub async fn get(&self, address: SocketAddr, path: &str) -> Result<Response<Incoming>, ApiError> {
        // Read anew each time: such requests are rare, and certificates are renewed.
        let tls = self.tls().map_err(|error| {
            ApiError::Unavailable(format!(
                "cannot prepare to ask the node's agent at {address}: {error}"
            ))
        })?;
        let answer = Target::secure(address, Arc::new(tls)).open(path, ANSWER).await;
        match answer {
            Ok(answer) => Ok(answer.into_response()),
            Err(error @ ClientError::BadRequest(..)) => Err(ApiError::BadRequest(error.to_string())),
            Err(error) => Err(ApiError::Unavailable(format!("the node's agent: {error}"))),
        }
    }

    fn tls(&self) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
        let path = |ending: &str| self.pki.join(format!("{STEM}.{ending}"));
        let chain = CertificateDer::pem_file_iter(path("crt"))?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(path("key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            .with_client_auth_cert(chain, key)?)
    }
}

/// Accepts every certificate whose key the server holds.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
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
