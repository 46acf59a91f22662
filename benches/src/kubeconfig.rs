//! Where is the server, and who are we to it?

use anyhow::{Context, anyhow};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// What is needed to open connections to a server.
#[derive(Clone)]
pub struct Access {
    /// Where it listens.
    pub address: SocketAddr,
    /// The name in its certificate.
    pub name: ServerName<'static>,
    /// For connections that speak HTTP/1.1.
    pub http1: Arc<ClientConfig>,
    /// For connections that speak HTTP/2.
    pub http2: Arc<ClientConfig>,
}

#[derive(Deserialize)]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: String,
}

#[derive(Deserialize)]
struct NamedUser {
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: String,
    client_key_data: String,
}

/// Reads a kubeconfig as `pointsman apiserver` writes it: one cluster, one user, everything inline.
pub fn read(path: &Path) -> anyhow::Result<Access> {
    let text = std::fs::read_to_string(path)?;
    let config: Kubeconfig = serde_saphyr::from_str(&text).map_err(|error| anyhow!("{error}"))?;
    let cluster = config.clusters.into_iter().next().context("no cluster")?.cluster;
    let user = config.users.into_iter().next().context("no user")?.user;

    let authority = cluster
        .server
        .strip_prefix("https://")
        .context("the server is not https")?;
    let address: SocketAddr = authority.trim_end_matches('/').parse()?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&decoded(&cluster.certificate_authority_data)?) {
        roots.add(certificate?)?;
    }
    let chain = decoded(&user.client_certificate_data)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&decoded(&user.client_key_data)?)?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    let speaking = |protocol: &[u8]| {
        let mut config = config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    };
    Ok(Access {
        address,
        name: ServerName::from(address.ip()),
        http1: speaking(b"http/1.1"),
        http2: speaking(b"h2"),
    })
}

fn decoded(text: &str) -> anyhow::Result<Vec<u8>> {
    Ok(BASE64_STANDARD.decode(text.trim())?)
}
