use super::*;
use crate::auth::authn::user_from_certificate;
use crate::auth::pki::{CertifiedPair, Identity, Pki, ServingNames};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConnection};
use std::io::Write;
use std::time::SystemTime;

struct Setup {
    _dir: tempfile::TempDir,
    pki: Pki,
    files: TlsFiles,
}

fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), SystemTime::now()).unwrap();
    let serving = pki
        .serving(&ServingNames::new(&[], &[], &[]), SystemTime::now())
        .unwrap();
    let files = TlsFiles {
        certificate: serving.certificate_path,
        key: serving.key_path,
        client_authorities: vec![pki.ca_path()],
    };
    Setup {
        _dir: dir,
        pki,
        files,
    }
}

fn client(trusted: &Pki, pair: Option<&CertifiedPair>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(trusted.ca_pem().as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        Some(pair) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// Runs the handshake in memory; the answer is the server's side of the connection.
fn handshake(files: &TlsFiles, mut client: ClientConnection) -> Result<ServerConnection, rustls::Error> {
    let mut server = ServerConnection::new(server_config(files).unwrap().0).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(server)
}

#[test]
fn a_certificate_from_our_authority_names_its_user() {
    let setup = setup();
    let pair = setup
        .pki
        .client("node-n1", &Identity::node("n1"), SystemTime::now())
        .unwrap();
    let server = handshake(&setup.files, client(&setup.pki, Some(&pair))).unwrap();
    let user = user_from_certificate(&server.peer_certificates().unwrap()[0]).unwrap();
    assert_eq!(user.name, "system:node:n1");
    assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
    assert_eq!(server.alpn_protocol(), Some(b"h2".as_slice()));
}

#[test]
fn a_client_certificate_is_optional_but_a_foreign_one_is_refused() {
    let (setup, foreign) = (setup(), setup());
    let server = handshake(&setup.files, client(&setup.pki, None)).unwrap();
    assert!(server.peer_certificates().is_none());
    let pair = foreign
        .pki
        .client("admin", &Identity::admin(), SystemTime::now())
        .unwrap();
    assert!(handshake(&setup.files, client(&setup.pki, Some(&pair))).is_err());
    // A user's own authority file makes the foreign certificate acceptable.
    let mut files = setup.files.clone();
    files.client_authorities.push(foreign.pki.ca_path());
    handshake(&files, client(&setup.pki, Some(&pair))).unwrap();
}

#[test]
fn a_serving_certificate_does_not_pass_for_a_client() {
    let setup = setup();
    let names = ServingNames::new(&[], &[], &[]);
    let pair = setup.pki.serving(&names, SystemTime::now()).unwrap();
    assert!(handshake(&setup.files, client(&setup.pki, Some(&pair))).is_err());
}

#[test]
fn unreadable_and_mismatched_files_are_named() {
    let setup = setup();
    let mut files = setup.files.clone();
    files.certificate = "/nonexistent/tls.crt".into();
    assert!(
        server_config(&files)
            .unwrap_err()
            .to_string()
            .contains("/nonexistent/tls.crt")
    );
    let pair = setup
        .pki
        .client("admin", &Identity::admin(), SystemTime::now())
        .unwrap();
    files = TlsFiles {
        key: pair.key_path,
        ..setup.files.clone()
    };
    assert!(matches!(server_config(&files), Err(TlsError::Unusable { .. })));
    let mut empty = tempfile::NamedTempFile::new().unwrap();
    empty.write_all(b"nothing here").unwrap();
    files = TlsFiles {
        certificate: empty.path().into(),
        ..setup.files.clone()
    };
    assert!(matches!(server_config(&files), Err(TlsError::Empty(_))));
    let (_, serving) = server_config(&setup.files).unwrap();
    assert!(serving.reload(&files).is_err());
    serving.reload(&setup.files).unwrap();
}
