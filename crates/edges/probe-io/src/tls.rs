//! How do checks speak TLS to servers whose certificates nobody vouches for?

use pointsman_http::{Proof, with_any_certificate};
use rustls::ClientConfig;
use rustls::client::{ClientConnection, Resumption};
use rustls::pki_types::ServerName;
use std::sync::Arc;

/// The configuration of all checks: any certificate will do, as it does for the kubelet, and every
/// check makes a full handshake.
pub fn config() -> Arc<ClientConfig> {
    let mut config = with_any_certificate(Proof::Nothing);
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// The client's side of a connection to `host` that has not begun.
pub fn connection(config: &Arc<ClientConfig>, host: &str) -> Result<ClientConnection, rustls::Error> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| rustls::Error::General(format!("{host:?} is not a server name")))?;
    let mut connection = ClientConnection::new(config.clone(), name)?;
    // A hostile server must not make us hold more than a body's worth.
    connection.set_buffer_limit(Some(64 << 10));
    Ok(connection)
}
