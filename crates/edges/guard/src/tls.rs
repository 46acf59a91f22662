//! What does a listener show, and whose certificates does it believe?
//!
//! A certificate of its own making, new at every start, as kube-controller-manager and the kubelet have one when none is
//! given to them.

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;

/// Why TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The clients' authority cannot be used.
    #[error("the authority of client certificates cannot be used: {0}")]
    Authority(String),
    /// Our own certificate cannot be made.
    #[error("cannot make a serving certificate: {0}")]
    Serving(String),
}

pub(crate) fn server_config(
    name: &str,
    address: IpAddr,
    client_ca: Option<&[u8]>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let serving = |error: &dyn std::error::Error| TlsError::Serving(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = match client_ca {
        Some(pem) => WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)?), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| TlsError::Authority(error.to_string()))?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let names = [name.to_owned(), address.to_string()];
    let mut params = CertificateParams::new(names).map_err(|error| serving(&error))?;
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().map_err(|error| serving(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| serving(&error))?;
    let key =
        PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| TlsError::Serving(error.into()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| serving(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.der().clone()], key)
        .map_err(|error| serving(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let authority = |error: &dyn std::error::Error| TlsError::Authority(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| authority(&error))?;
        roots.add(certificate).map_err(|error| authority(&error))?;
    }
    match roots.is_empty() {
        true => Err(TlsError::Authority("there is no certificate in it".into())),
        false => Ok(roots),
    }
}
