//! How does a client learn where the server is and who to be?
//!
//! One self-contained kubeconfig file per role: server URL, authority, client certificate and key
//! all inside, readable by its owner only.

use super::files;
use super::pki::{CertifiedPair, Identity, Pki, PkiError};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The URL under which a client on this machine reaches a server listening on `listen`.
pub fn local_url(listen: SocketAddr) -> String {
    let address = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    format!("https://{}", SocketAddr::new(address, listen.port()))
}

/// The text of a kubeconfig for `pair` at `server`, whose certificate `ca_pem` vouches for.
pub fn render(server: &str, ca_pem: &str, user: &str, pair: &CertifiedPair) -> String {
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    // JSON strings are YAML strings, so quoting them that way needs no YAML writer.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: pointsman\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n\
         contexts:\n\
         - name: {context}\n  context:\n    cluster: pointsman\n    user: {user}\n\
         current-context: {context}\n",
        server = quote(server),
        ca = encode(ca_pem),
        user = quote(user),
        certificate = encode(&pair.certificate_pem),
        key = encode(&pair.key_pem),
        context = quote(&format!("{user}@pointsman")),
    )
}

/// Where each role finds its kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleFiles {
    /// May do everything.
    pub admin: PathBuf,
    /// The controllers role.
    pub controllers: PathBuf,
    /// The proxy role.
    pub proxy: PathBuf,
    /// The SLI role.
    pub sli: PathBuf,
    /// The DNS role.
    pub dns: PathBuf,
}

/// Writes the kubeconfig of every fixed role: `admin.kubeconfig` in `data_dir`, the others in its
/// `kubeconfigs` directory.
pub fn write_roles(
    pki: &Pki,
    data_dir: &Path,
    server: &str,
    serving_ca_pem: &str,
    now: SystemTime,
) -> Result<RoleFiles, PkiError> {
    let write = |path: PathBuf, stem: &str, identity: Identity| {
        let pair = pki.client(stem, &identity, now)?;
        write_one(&path, &render(server, serving_ca_pem, &identity.name, &pair))?;
        Ok::<_, PkiError>(path)
    };
    let dir = role_dir(data_dir)?;
    Ok(RoleFiles {
        admin: write(data_dir.join("admin.kubeconfig"), "admin", Identity::admin())?,
        controllers: write(
            dir.join("controllers.kubeconfig"),
            "controllers",
            Identity::controllers(),
        )?,
        proxy: write(dir.join("proxy.kubeconfig"), "proxy", Identity::proxy())?,
        sli: write(dir.join("sli.kubeconfig"), "sli", Identity::sli())?,
        dns: write(dir.join("dns.kubeconfig"), "dns", Identity::dns())?,
    })
}

/// Writes the kubeconfig of the agent of node `name` and returns its path.
pub fn write_node(
    pki: &Pki,
    data_dir: &Path,
    name: &str,
    server: &str,
    serving_ca_pem: &str,
    now: SystemTime,
) -> Result<PathBuf, PkiError> {
    let identity = Identity::node(name);
    let stem = format!("node-{name}");
    let pair = pki.client(&stem, &identity, now)?;
    let path = role_dir(data_dir)?.join(format!("{stem}.kubeconfig"));
    write_one(&path, &render(server, serving_ca_pem, &identity.name, &pair))?;
    Ok(path)
}

fn role_dir(data_dir: &Path) -> Result<PathBuf, PkiError> {
    let dir = data_dir.join("kubeconfigs");
    files::private_dir(&dir).map_err(|source| PkiError::File {
        path: dir.clone(),
        source,
    })?;
    Ok(dir)
}

fn write_one(path: &Path, text: &str) -> Result<(), PkiError> {
    let failed = |source| PkiError::File {
        path: path.into(),
        source,
    };
    // An unchanged file is left alone, so that its age tells when it last mattered.
    if files::read_if_there(path).map_err(failed)?.as_deref() == Some(text) {
        return Ok(());
    }
    files::replace(path, text.as_bytes(), files::SECRET).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_role_gets_a_private_file_that_yaml_readers_understand() {
        let data_dir = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        let pki = Pki::open(&data_dir.path().join("pki"), now).unwrap();
        let server = local_url("0.0.0.0:6443".parse().unwrap());
        let roles = write_roles(&pki, data_dir.path(), &server, pki.ca_pem(), now).unwrap();
        let node = write_node(&pki, data_dir.path(), "n1", &server, pki.ca_pem(), now).unwrap();
        for path in [
            &roles.admin,
            &roles.controllers,
            &roles.proxy,
            &roles.sli,
            &roles.dns,
            &node,
        ] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(&roles.admin).unwrap()).unwrap();
        assert_eq!(
            config["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:6443"
        );
        assert_eq!(config["current-context"], config["contexts"][0]["name"]);
        assert_eq!(
            config["contexts"][0]["context"]["user"],
            config["users"][0]["name"]
        );
        let ca = config["clusters"][0]["cluster"]["certificate-authority-data"]
            .as_str()
            .unwrap();
        assert_eq!(BASE64_STANDARD.decode(ca).unwrap(), pki.ca_pem().as_bytes());
        assert!(write_node(&pki, data_dir.path(), "../x", &server, pki.ca_pem(), now).is_err());
    }

    #[test]
    fn unspecified_listen_addresses_become_loopback() {
        assert_eq!(local_url("[::]:1".parse().unwrap()), "https://[::1]:1");
        assert_eq!(
            local_url("192.0.2.7:6443".parse().unwrap()),
            "https://192.0.2.7:6443"
        );
    }
}
