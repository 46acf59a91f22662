//! Attacks by connections that are held.

use super::MAPS;
use crate::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connections that say nothing or little.
const SILENT: usize = 500;
/// Requests that are not read, or not sent.
const SLOW: usize = 200;
const BEAT: Duration = Duration::from_millis(200);

/// How a server is reached without a client library.
#[derive(Clone)]
pub struct Target {
    address: String,
    tls: Arc<rustls::ClientConfig>,
}

impl Target {
    pub fn new(server: &Server) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let authority = server.data_dir().join("pki/ca.crt");
        for certificate in CertificateDer::pem_file_iter(authority).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            address: server.address(),
            tls: Arc::new(tls),
        }
    }

    /// A connection that speaks `protocol`; none if the server does not want it.
    async fn connect(&self, protocol: &[u8]) -> Option<TlsStream<TcpStream>> {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(&self.address).await.ok()?;
        let ip = stream.peer_addr().ok()?.ip();
        let connector = TlsConnector::from(Arc::new(tls));
        connector.connect(ServerName::from(ip), stream).await.ok()
    }
}

/// Keeps `count` tasks going: what the server ends is started again.
fn keep<F: Future<Output = ()> + Send>(
    runtime: &Runtime,
    count: usize,
    attack: impl Fn() -> F + Send + Sync + 'static,
) {
    let attack = Arc::new(attack);
    for _ in 0..count {
        let attack = attack.clone();
        runtime.spawn(async move {
            loop {
                attack().await;
                tokio::time::sleep(BEAT).await;
            }
        });
    }
}

/// Connections without TLS that send `first` and wait.
pub fn silent(runtime: &Runtime, target: &Target, first: &'static [u8]) {
    let target = target.clone();
    keep(runtime, SILENT, move || {
        let target = target.clone();
        async move {
            if let Ok(mut stream) = TcpStream::connect(&target.address).await
                && stream.write_all(first).await.is_ok()
            {
                let _ = stream.read(&mut [0]).await;
            }
        }
    });
}

/// Connections that begin HTTP/2 and answer what keeps them open.
pub fn idle_http2(runtime: &Runtime, target: &Target) {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let target = target.clone();
    keep(runtime, SILENT, move || {
        let target = target.clone();
        async move {
            if let Some(mut stream) = target.connect(b"h2").await
                && stream.write_all(PREFACE).await.is_ok()
                && stream.write_all(EMPTY_SETTINGS).await.is_ok()
            {
                while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
            }
        }
    });
}

/// Requests that promise 2 MB and send a byte now and then.
pub fn slow_bodies(runtime: &Runtime, target: &Target, token: &'static str) {
    let target = target.clone();
    keep(runtime, SLOW, move || {
        let target = target.clone();
        async move {
            let head = format!(
                "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
            );
            let Some(mut stream) = target.connect(b"http/1.1").await else {
                return;
            };
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                tokio::time::sleep(BEAT).await;
                sent = stream.write_all(b" ").await;
                if sent.is_ok() {
                    sent = stream.flush().await;
                }
            }
        }
    });
}

/// Requests for a list whose answers are not read.
pub fn slow_readers(runtime: &Runtime, target: &Target, token: &'static str) {
    let target = target.clone();
    keep(runtime, SLOW, move || {
        let target = target.clone();
        async move {
            let head = format!("GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
            if let Some(mut stream) = target.connect(b"http/1.1").await
                && stream.write_all(head.as_bytes()).await.is_ok()
            {
                while stream.read(&mut [0]).await.is_ok_and(|read| read > 0) {
                    tokio::time::sleep(BEAT).await;
                }
            }
        }
    });
}
