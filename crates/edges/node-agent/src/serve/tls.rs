//! How do the agent and its clients prove who they are?
//!
//! The agent shows a certificate that it is given. Without one it makes one at every start, as kubelets do, which nobody
//! can check: the API server does not speak to such an agent. Clients show certificates of the cluster's authority.

use crate::work::chain;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The clients' authority cannot be used.
    #[error("the authority of client certificates cannot be used: {0}")]
    Authority(String),
    /// Our own certificate cannot be made or read.
    #[error("cannot get a serving certificate: {0}")]
    Serving(String),
}

/// A configuration for a server of this name and these addresses, whose clients the authority in
/// `client_ca` (PEM) vouches for.
pub(crate) fn server_config(
    name: &str,
    addresses: &[IpAddr],
    client_ca: &[u8],
    serving: Option<&(PathBuf, PathBuf)>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |error: &dyn std::error::Error| TlsError::Serving(chain(error));
    let authority = |error: &dyn std::error::Error| TlsError::Authority(chain(error));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(client_ca) {
        let certificate = certificate.map_err(|error| authority(&error))?;
        roots.add(certificate).map_err(|error| authority(&error))?;
    }
    if roots.is_empty() {
        return Err(TlsError::Authority("there is no certificate in it".into()));
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| authority(&error))?;
    let (certificates, key) = match serving {
        Some((certificate, key)) => given(certificate, key)?,
        None => {
            tracing::warn!(
                "without --tls-cert-file the API server does not believe this agent, and has no logs of its pods"
            );
            made(name, addresses)?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| failed(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate and key in these files.
fn given(certificate: &Path, key: &Path) -> Result<Shown, TlsError> {
    let unreadable = |path: &Path, error: &dyn std::error::Error| {
        TlsError::Serving(format!("{}: {}", path.display(), chain(error)))
    };
    let certificates = CertificateDer::pem_file_iter(certificate)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .map_err(|error| unreadable(certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
    Ok((certificates, key))
}

/// A certificate that vouches for itself.
fn made(name: &str, addresses: &[IpAddr]) -> Result<Shown, TlsError> {
    let failed = |error: &dyn std::error::Error| TlsError::Serving(chain(error));
    let names: Vec<String> = addresses
        .iter()
        .map(IpAddr::to_string)
        .chain([name.to_owned()])
        .collect();
    let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    let key =
        PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| TlsError::Serving(error.into()))?;
    Ok((vec![certificate.der().clone()], key))
}
