//! Whose clients are believed, replaceable while the server runs?

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::{Arc, PoisonError, RwLock};

/// Asks whoever verifies at the moment.
#[derive(Debug)]
pub struct Clients(RwLock<Arc<dyn ClientCertVerifier>>);

impl Clients {
    pub fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self(RwLock::new(verifier))
    }

    pub fn replace(&self, verifier: Arc<dyn ClientCertVerifier>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = verifier;
    }

    fn now(&self) -> Arc<dyn ClientCertVerifier> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.now().offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.now().client_auth_mandatory()
    }

    /// None: the names of authorities may change, and clients that have one certificate show it without being told.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.now().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.now().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.now().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.now().supported_verify_schemes()
    }
}
