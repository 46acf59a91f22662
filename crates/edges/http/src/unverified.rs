//! How is a server asked whose certificate nobody vouches for?
//!
//! Roles make a certificate of their own at every start, as kubelets do. What is sent to them must be worth nothing to
//! anybody else.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

/// What a server has to prove whose certificate nobody vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// That it holds the key of the certificate it shows.
    Key,
    /// Nothing: for those who tell it no secrets, and check so often that the time counts.
    Nothing,
}

/// TLS with whoever holds the key of the certificate they show.
pub fn unverified() -> Arc<ClientConfig> {
    Arc::new(with_any_certificate(Proof::Key))
}

/// TLS with whatever certificate a server shows.
pub fn with_any_certificate(proof: Proof) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer { provider, proof }))
        .with_no_client_auth()
}

/// A client certificate for servers that ask for one.
#[derive(Debug)]
pub(crate) struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateFiles {
    fn read(&self) -> Result<CertifiedKey, Box<dyn std::error::Error>> {
        let chain = CertificateDer::pem_file_iter(&self.certificate)?.collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&self.key)?;
        let provider = rustls::crypto::ring::default_provider();
        Ok(CertifiedKey::from_der(chain, key, &provider)?)
    }
}

impl ResolvesClientCert for CertificateFiles {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let read = self.read().inspect_err(|error| {
            tracing::warn!(certificate = %self.certificate.display(), %error, "cannot show our certificate");
        });
        read.ok().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct AnyServer {
    provider: Arc<CryptoProvider>,
    proof: Proof,
}

impl AnyServer {
    fn signed(
        &self,
        verify: impl FnOnce(&WebPkiSupportedAlgorithms) -> Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.proof {
            Proof::Key => verify(&self.provider.signature_verification_algorithms),
            Proof::Nothing => Ok(HandshakeSignatureValid::assertion()),
        }
    }
}

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
        self.signed(|algorithms| verify_tls12_signature(message, cert, dss, algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(|algorithms| verify_tls13_signature(message, cert, dss, algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
