//! How does a connection prove who the server is, and who the client is if it wants to?
//!
//! TLS 1.2 and 1.3 with HTTP/2 and HTTP/1.1. A client certificate is optional; one that is offered
//! must be signed by a trusted authority for client use, or the handshake fails.

mod clients;

use clients::Clients;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file could not be read.
    #[error("cannot read {path}")]
    Pem {
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate.
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    /// A certificate, key or authority is not acceptable.
    #[error("unusable certificate or key in {path}: {problem}")]
    Unusable {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// The files behind a serving endpoint.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The serving certificate, leaf first (`--tls-cert-file`).
    pub certificate: PathBuf,
    /// Its private key (`--tls-private-key-file`).
    pub key: PathBuf,
    /// Authorities whose client certificates are believed (`--client-ca-file` and our own).
    pub client_authorities: Vec<PathBuf>,
}

/// What can be replaced while the server runs: its certificate, and whose clients it believes.
#[derive(Debug)]
pub struct Replaceable {
    serving: Arc<ServingCertificate>,
    clients: Arc<Clients>,
}

impl Replaceable {
    /// Reads the files again; connections made afterwards use them. On an error everything stays as it is.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let provider = Arc::new(provider());
        let fresh = load_certified_key(files, &provider)?;
        let clients = load_verifier(files, &provider)?;
        *self.serving.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
        self.clients.replace(clients);
        Ok(())
    }
}

/// The certificate that the server shows.
#[derive(Debug)]
struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The TLS configuration for `files`, and the handle that replaces what they held later.
pub fn server_config(files: &TlsFiles) -> Result<(Arc<ServerConfig>, Arc<Replaceable>), TlsError> {
    let provider = Arc::new(provider());
    let certified = load_certified_key(files, &provider)?;
    let serving = Arc::new(ServingCertificate(RwLock::new(Arc::new(certified))));
    let clients = Arc::new(Clients::new(load_verifier(files, &provider)?));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| unusable(&files.certificate, error.to_string()))?
        .with_client_cert_verifier(clients.clone())
        .with_cert_resolver(serving.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Who resumes a session shows no certificate again, and would outlive the trust in it.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), Arc::new(Replaceable { serving, clients })))
}

fn unusable(path: &Path, problem: String) -> TlsError {
    TlsError::Unusable {
        path: path.into(),
        problem,
    }
}

/// Believes the clients that the files' authorities vouch for.
fn load_verifier(
    files: &TlsFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for path in &files.client_authorities {
        for certificate in read_certificates(path)? {
            roots
                .add(certificate)
                .map_err(|error| unusable(path, error.to_string()))?;
        }
    }
    if roots.is_empty() {
        return Ok(WebPkiClientVerifier::no_client_auth());
    }
    let authorities = files.client_authorities.first().cloned().unwrap_or_default();
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| unusable(&authorities, error.to_string()))
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn load_certified_key(files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain = read_certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| TlsError::Pem {
        path: files.key.clone(),
        source,
    })?;
    // The error is about the pair; the key is not part of its text.
    CertifiedKey::from_der(chain, key, provider).map_err(|error| TlsError::Unusable {
        path: files.key.clone(),
        problem: error.to_string(),
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = |source| TlsError::Pem {
        path: path.into(),
        source,
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(pem)?
        .collect::<Result<_, _>>()
        .map_err(pem)?;
    if certificates.is_empty() {
        Err(TlsError::Empty(path.into()))
    } else {
        Ok(certificates)
    }
}

#[cfg(test)]
mod tests;
