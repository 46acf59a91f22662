//! Which keys and certificates does the server show and hand out, and who keeps them fresh?

use crate::auth::kubeconfig;
use crate::auth::pki::{Pki, ServingNames};
use crate::auth::tls::{Replaceable, TlsFiles, server_config};
use crate::config::Config;
use crate::node_client;
use crate::run::StartError;
use pointsman_rules::allocation::first_address;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// How often certificates are looked at; they are renewed long before they end.
const CHECK: Duration = Duration::from_secs(12 * 3600);
/// How often is looked whether an operator has taken a step from one authority to the next.
const LOOK: Duration = Duration::from_secs(1);

/// What certificates are made for.
pub struct Identities {
    data_dir: PathBuf,
    address: SocketAddr,
    names: ServingNames,
    own_files: Option<(PathBuf, PathBuf)>,
    client_ca_file: Option<PathBuf>,
    /// Where those who publish the authority learn of it, if anybody does.
    root_ca: Option<watch::Sender<String>>,
}

impl Identities {
    /// Identities for a server that listens on `address`; `root_ca` learns by which authority it is known.
    pub fn new(config: &Config, address: SocketAddr, root_ca: watch::Sender<String>) -> Self {
        let first: Vec<IpAddr> = config
            .cluster
            .service_ranges
            .iter()
            .map(|range| first_address(*range))
            .collect();
        let reachable: Vec<IpAddr> = std::iter::once(address.ip())
            .chain(config.also_listen.iter().map(SocketAddr::ip))
            .chain(config.advertise)
            .collect();
        Self {
            data_dir: config.data_dir.clone(),
            address,
            names: ServingNames::new(&reachable, &first, &config.extra_sans),
            own_files: config.tls_files.clone(),
            client_ca_file: config.client_ca_file.clone(),
            root_ca: config.publish_root_ca.then_some(root_ca),
        }
    }

    /// Makes what is missing or about to end, writes the kubeconfigs of all roles, and returns the TLS
    /// configuration, the handle that renews it, and the administrator's kubeconfig.
    pub fn prepare(&self) -> Result<(Arc<rustls::ServerConfig>, Arc<Replaceable>, PathBuf), StartError> {
        let certificates = self.make()?;
        let (tls, replaceable) = server_config(&certificates.files)?;
        let kubeconfig = self.hand_out(&certificates)?;
        Ok((tls, replaceable, kubeconfig))
    }

    /// Renews certificates and picks up files that were replaced. Works for ever.
    /// Connections begun under other authorities are asked to end by a higher number in `trusted`.
    pub async fn keep_fresh(self, replaceable: Arc<Replaceable>, trusted: watch::Sender<u64>) {
        let mut authority = self.authority();
        let mut checked = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            let found = self.authority();
            let is_other = found != authority;
            if !is_other && checked.elapsed() < CHECK {
                continue;
            }
            checked = Instant::now();
            match self.renew(&replaceable, is_other.then_some(&trusted)) {
                Ok(()) if is_other => {
                    tracing::info!(
                        "the certificate authority was changed: certificates and kubeconfigs are up to date"
                    );
                    authority = found;
                }
                Ok(()) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(error, "cannot renew certificates; the present ones stay in use");
                }
            }
        }
    }

    /// Kubeconfigs come last: whoever sees a new one finds a server that acts on it already, and makes no
    /// connection that is then asked to end.
    fn renew(
        &self,
        replaceable: &Replaceable,
        trusted: Option<&watch::Sender<u64>>,
    ) -> Result<(), StartError> {
        let certificates = self.make()?;
        replaceable.reload(&certificates.files)?;
        if let Some(trusted) = trusted {
            trusted.send_modify(|round| *round += 1);
        }
        self.hand_out(&certificates)?;
        Ok(())
    }

    /// Which files the authority is in; a replaced file is another one.
    fn authority(&self) -> [Option<(u64, i64)>; 2] {
        ["ca.crt", "ca.key"].map(|name| {
            let found = std::fs::metadata(self.data_dir.join("pki").join(name)).ok()?;
            Some((found.ino(), found.mtime_nsec()))
        })
    }

    /// The authorities whose client certificates are believed.
    pub fn client_authorities(&self) -> Result<String, StartError> {
        let own = self.data_dir.join("pki/ca.crt");
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| StartError::File {
                path: path.clone(),
                source,
            })
        };
        std::iter::once(&own)
            .chain(&self.client_ca_file)
            .map(read)
            .collect()
    }

    /// Makes the server's own certificates where they are missing or about to end.
    fn make(&self) -> Result<Certificates, StartError> {
        let now = SystemTime::now();
        let pki = Pki::open(&self.data_dir.join("pki"), now)?;
        let (certificate, key) = match &self.own_files {
            Some(files) => files.clone(),
            None => {
                let pair = pki.serving(&self.names, now)?;
                (pair.certificate_path.clone(), pair.key_path.clone())
            }
        };
        let serving_ca = match &self.own_files {
            Some((path, _)) => std::fs::read_to_string(path).map_err(|source| StartError::File {
                path: path.clone(),
                source,
            })?,
            None => pki.ca_pem().to_owned(),
        };
        pki.client(node_client::STEM, &node_client::identity(), now)?;
        let mut client_authorities = vec![pki.ca_path()];
        client_authorities.extend(self.client_ca_file.clone());
        Ok(Certificates {
            pki,
            serving_ca,
            files: TlsFiles {
                certificate,
                key,
                client_authorities,
            },
        })
    }

    /// Tells clients by which authority the server is known, and returns the administrator's kubeconfig.
    fn hand_out(&self, made: &Certificates) -> Result<PathBuf, StartError> {
        if let Some(root_ca) = &self.root_ca {
            root_ca.send_if_modified(|known| {
                let changed = *known != made.serving_ca;
                known.clone_from(&made.serving_ca);
                changed
            });
        }
        let url = kubeconfig::local_url(self.address);
        let now = SystemTime::now();
        let roles = kubeconfig::write_roles(&made.pki, &self.data_dir, &url, &made.serving_ca, now)?;
        Ok(roles.admin)
    }
}

/// The authority and what the server itself shows.
struct Certificates {
    pki: Pki,
    serving_ca: String,
    files: TlsFiles,
}
