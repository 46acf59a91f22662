//! Where do certificates come from?
//!
//! A certificate authority of our own lives in `<data-dir>/pki` and signs the serving certificate
//! and one client certificate per role. All are made on the first start and kept; a leaf is issued
//! again when it nears its end, no longer covers the names it must, or does not fit its key or the
//! authority (a crash between two files leaves such a pair).
//!
//! The authority itself is never replaced by itself, because a new one would lock out everybody who trusts
//! the old one: an unreadable one is an error, and one that nears its end is kept and warned about. An
//! operator replaces it in steps ([`rotation`]).

pub mod rotation;

use super::files;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Leaves are issued again this long before their end; of the authority's own end is warned this long before.
const RENEW_BEFORE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Certificates are valid from a little before they are made, for clients whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Why key material could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("cannot access {path}")]
    File {
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The authority's files are there but cannot be used; an operator must decide.
    #[error("the certificate authority in {path} is unusable: {problem}")]
    Authority {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A requested name cannot be put into a certificate.
    #[error("cannot issue a certificate for {subject:?}: {problem}")]
    Subject {
        subject: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The cryptography failed.
    #[error("cannot generate a key or certificate")]
    Generate(#[from] rcgen::Error),
}

/// Who a client certificate speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user, as common name.
    pub name: String,
    /// The groups, each an organization; at most two fit.
    pub groups: Vec<String>,
}

impl Identity {
    /// A user with the given groups.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self {
            name: name.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    /// May do everything.
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", &["system:masters"])
    }

    /// The agent of node `name`.
    pub fn node(name: &str) -> Self {
        Self::new(format!("system:node:{name}"), &["system:nodes"])
    }

    /// The controllers role.
    pub fn controllers() -> Self {
        Self::new("system:pointsman-controllers", &[])
    }

    /// The proxy role.
    pub fn proxy() -> Self {
        Self::new("system:kube-proxy", &[])
    }

    /// The SLI role.
    pub fn sli() -> Self {
        Self::new("system:pointsman-sli", &[])
    }

    /// The DNS role.
    pub fn dns() -> Self {
        Self::new("system:pointsman-dns", &[])
    }
}

/// A certificate and its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertifiedPair {
    pub certificate_pem: String,
    /// The private key. Not shown by `Debug`.
    pub key_pem: String,
    /// Where the certificate is kept.
    pub certificate_path: PathBuf,
    /// Where the key is kept.
    pub key_path: PathBuf,
}

impl std::fmt::Debug for CertifiedPair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CertifiedPair")
            .field("certificate_path", &self.certificate_path)
            .finish_non_exhaustive()
    }
}

/// The names a serving certificate must cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingNames {
    pub names: BTreeSet<String>,
    pub addresses: BTreeSet<IpAddr>,
}

impl ServingNames {
    /// What clients on this machine and in the cluster call the server, plus `listen` addresses,
    /// the first address of each service range, and `extra` names or addresses.
    pub fn new(listen: &[IpAddr], first_service_ips: &[IpAddr], extra: &[String]) -> Self {
        let fixed = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let mut names: BTreeSet<String> = fixed.map(str::to_owned).into();
        let loopback = [
            IpAddr::from([127, 0, 0, 1]),
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        let mut addresses: BTreeSet<IpAddr> = loopback.into();
        addresses.extend(
            listen
                .iter()
                .chain(first_service_ips)
                .filter(|address| !address.is_unspecified()),
        );
        for entry in extra {
            match entry.parse() {
                Ok(address) => drop(addresses.insert(address)),
                Err(_) => drop(names.insert(entry.clone())),
            }
        }
        Self { names, addresses }
    }
}

/// The certificate authority, ready to sign.
pub struct Pki {
    dir: PathBuf,
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    key_id: Vec<u8>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pki")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the authority in `dir`, or makes one where there is none.
    pub fn open(dir: &Path, now: SystemTime) -> Result<Self, PkiError> {
        files::private_dir(dir).map_err(at(dir))?;
        let authority = match Authority::read(dir)? {
            Some(authority) => authority,
            None => Authority::create(dir, now)?,
        };
        let ca_pem = authority.pem();
        let (certificate, facts) = &authority.bundle[authority.signer];
        if let Some(warning) = end_warning(&dir.join("ca.crt"), facts, now) {
            tracing::warn!("{warning}");
        }
        let key_id = facts.subject_key_id.clone().ok_or_else(|| PkiError::Authority {
            path: dir.join("ca.crt"),
            problem: "has no subject key identifier".into(),
        })?;
        let issuer = Issuer::from_ca_cert_pem(certificate, authority.key)?;
        Ok(Self {
            dir: dir.into(),
            ca_pem,
            issuer,
            key_id,
        })
    }

    /// The certificates of the authority, PEM: while it is replaced there are two.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Where they are kept.
    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The serving certificate in `apiserver.crt`, issued again if it does not do.
    pub fn serving(&self, names: &ServingNames, now: SystemTime) -> Result<CertifiedPair, PkiError> {
        self.shown("apiserver", &Identity::new("kube-apiserver", &[]), names, now)
    }

    /// The certificate in `node-<name>-serving.crt` that the agent of a node shows, issued again if it does not do.
    pub fn node_serving(
        &self,
        name: &str,
        addresses: &[IpAddr],
        now: SystemTime,
    ) -> Result<CertifiedPair, PkiError> {
        let names = ServingNames {
            names: [name.to_owned()].into(),
            addresses: addresses.iter().copied().collect(),
        };
        self.shown(
            &format!("node-{name}-serving"),
            &Identity::node(name),
            &names,
            now,
        )
    }

    fn shown(
        &self,
        stem: &str,
        identity: &Identity,
        names: &ServingNames,
        now: SystemTime,
    ) -> Result<CertifiedPair, PkiError> {
        let mut params = leaf_params(identity, now)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in &names.names {
            let invalid = |_| PkiError::Subject {
                subject: name.clone(),
                problem: "not a DNS name".into(),
            };
            params
                .subject_alt_names
                .push(SanType::DnsName(name.as_str().try_into().map_err(invalid)?));
        }
        params
            .subject_alt_names
            .extend(names.addresses.iter().map(|address| SanType::IpAddress(*address)));
        self.ensure(stem, params, now, |facts| {
            names.names.is_subset(&facts.names) && names.addresses.is_subset(&facts.addresses)
        })
    }

    /// The client certificate in `<stem>.crt` for `identity`, issued again if it does not do.
    pub fn client(
        &self,
        stem: &str,
        identity: &Identity,
        now: SystemTime,
    ) -> Result<CertifiedPair, PkiError> {
        if stem.is_empty() || stem.starts_with('.') || stem.contains(['/', '\0']) {
            return Err(PkiError::Subject {
                subject: stem.into(),
                problem: "cannot name a file".into(),
            });
        }
        let mut params = leaf_params(identity, now)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.ensure(stem, params, now, |facts| {
            facts.common_name.as_deref() == Some(identity.name.as_str())
                && facts.organizations == identity.groups
        })
    }

    fn ensure(
        &self,
        stem: &str,
        params: CertificateParams,
        now: SystemTime,
        does: impl Fn(&Facts) -> bool,
    ) -> Result<CertifiedPair, PkiError> {
        let certificate_path = self.dir.join(format!("{stem}.crt"));
        let key_path = self.dir.join(format!("{stem}.key"));
        let certificate = files::read_if_there(&certificate_path).map_err(at(&certificate_path))?;
        let key = files::read_if_there(&key_path).map_err(at(&key_path))?;
        if let (Some(certificate_pem), Some(key_pem)) = (certificate, key) {
            if self.is_good(&certificate_pem, &key_pem, now, does) {
                return Ok(CertifiedPair {
                    certificate_pem,
                    key_pem,
                    certificate_path,
                    key_path,
                });
            }
            tracing::info!(certificate = %certificate_path.display(), "issuing a certificate again");
        }
        let key = KeyPair::generate()?;
        let certificate_pem = params.signed_by(&key, &self.issuer)?.pem();
        let key_pem = key.serialize_pem();
        files::replace(&key_path, key_pem.as_bytes(), files::SECRET).map_err(at(&key_path))?;
        files::replace(&certificate_path, certificate_pem.as_bytes(), files::PUBLIC)
            .map_err(at(&certificate_path))?;
        Ok(CertifiedPair {
            certificate_pem,
            key_pem,
            certificate_path,
            key_path,
        })
    }

    fn is_good(&self, certificate: &str, key: &str, now: SystemTime, does: impl Fn(&Facts) -> bool) -> bool {
        let (Some(facts), Ok(key)) = (Facts::read(certificate), KeyPair::from_pem(key)) else {
            return false;
        };
        facts.public_key == key.public_key_raw()
            && facts.authority_key_id.as_ref() == Some(&self.key_id)
            && !facts.nears_its_end(now)
            && does(&facts)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PkiError + '_ {
    move |source| PkiError::File {
        path: path.into(),
        source,
    }
}

/// What an operator has to know about an authority that nears its end.
fn end_warning(path: &Path, facts: &Facts, now: SystemTime) -> Option<String> {
    let end = jiff::Timestamp::from_second(facts.not_after).unwrap_or(jiff::Timestamp::MAX);
    facts.nears_its_end(now).then(|| {
        format!(
            "the certificate authority {} ends at {end} and is not replaced by itself: replace it in three steps with \
             `pointsman ca rotate`",
            path.display()
        )
    })
}

/// What the files of an authority say.
struct Authority {
    /// Every certificate that is trusted, oldest first: as text, and what it says.
    bundle: Vec<(String, Facts)>,
    /// Which of them the key belongs to.
    signer: usize,
    key: KeyPair,
}

impl Authority {
    /// The authority in `dir`, if there is one.
    fn read(dir: &Path) -> Result<Option<Self>, PkiError> {
        let (certificate_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        let certificates = files::read_if_there(&certificate_path).map_err(at(&certificate_path))?;
        let key = files::read_if_there(&key_path).map_err(at(&key_path))?;
        let unusable = |path: &Path, problem: &str| PkiError::Authority {
            path: path.into(),
            problem: problem.into(),
        };
        let Some(certificates) = certificates else {
            return Ok(None);
        };
        // The key is written first, so a certificate without a key is not a crash's doing.
        let key = key.ok_or_else(|| unusable(&key_path, "the key is missing"))?;
        let key = KeyPair::from_pem(&key).map_err(|_| unusable(&key_path, "not a private key"))?;
        let bundle: Option<Vec<_>> = split_pem(&certificates)
            .map(|pem| Facts::read(&pem).map(|facts| (pem, facts)))
            .collect();
        let bundle = bundle.filter(|bundle| !bundle.is_empty());
        let bundle = bundle.ok_or_else(|| unusable(&certificate_path, "not a certificate"))?;
        let signer = bundle
            .iter()
            .rposition(|(_, facts)| facts.public_key == key.public_key_raw())
            .ok_or_else(|| unusable(&certificate_path, "does not belong to ca.key"))?;
        Ok(Some(Self { bundle, signer, key }))
    }

    /// Makes an authority of ten years, and writes its files.
    fn create(dir: &Path, now: SystemTime) -> Result<Self, PkiError> {
        let mut params = authority_params("pointsman-ca");
        set_life(&mut params, now, CA_LIFE);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let (certificate_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        files::replace(&key_path, key.serialize_pem().as_bytes(), files::SECRET).map_err(at(&key_path))?;
        files::replace(&certificate_path, certificate.as_bytes(), files::PUBLIC)
            .map_err(at(&certificate_path))?;
        Ok(Self::read(dir)?.expect("its files were written"))
    }

    /// All trusted certificates.
    fn pem(&self) -> String {
        self.bundle.iter().map(|(pem, _)| pem.as_str()).collect()
    }

    fn next_step(&self) -> rotation::Step {
        match (self.bundle.len(), self.signer + 1 == self.bundle.len()) {
            (1, _) => rotation::Step::Trust,
            (_, false) => rotation::Step::Issue,
            (_, true) => rotation::Step::Drop,
        }
    }
}

/// The certificates of a bundle, one by one.
fn split_pem(bundle: &str) -> impl Iterator<Item = String> {
    let parts = bundle.split_inclusive("-----END CERTIFICATE-----");
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| format!("{part}\n"))
}

/// The certificate of an authority that can vouch for nobody: its key is forgotten before anybody has seen it.
pub fn forgotten_authority(name: &str, now: SystemTime) -> Result<String, PkiError> {
    let mut params = authority_params(name);
    set_life(&mut params, now, CA_LIFE);
    Ok(params.self_signed(&KeyPair::generate()?)?.pem())
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    params
}

fn leaf_params(identity: &Identity, now: SystemTime) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // The library keeps one value per attribute type; the same type spelled as a bare identifier
    // is a second slot. More groups than that would need another encoder.
    let slots = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if identity.groups.len() > slots.len() {
        let problem = format!("{} groups, at most {} fit", identity.groups.len(), slots.len());
        return Err(PkiError::Subject {
            subject: identity.name.clone(),
            problem,
        });
    }
    for (slot, group) in slots.into_iter().zip(&identity.groups) {
        params.distinguished_name.push(slot, group.as_str());
    }
    params
        .distinguished_name
        .push(DnType::CommonName, identity.name.as_str());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    set_life(&mut params, now, LEAF_LIFE);
    Ok(params)
}

fn set_life(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(DAY);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + since_epoch + life;
    params.serial_number = Some(SerialNumber::from_slice(uuid::Uuid::new_v4().as_bytes()));
}

/// What we need to know about a certificate that is already there.
#[derive(Debug)]
struct Facts {
    common_name: Option<String>,
    organizations: Vec<String>,
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    public_key: Vec<u8>,
    subject_key_id: Option<Vec<u8>>,
    authority_key_id: Option<Vec<u8>>,
    not_after: i64,
}

impl Facts {
    fn read(pem: &str) -> Option<Self> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
        let mut facts = Self {
            common_name: super::authn::common_name(&certificate),
            organizations: super::authn::organizations(&certificate),
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
            subject_key_id: None,
            authority_key_id: None,
            not_after: certificate.validity().not_after.timestamp(),
        };
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(san) => {
                    san.general_names.iter().for_each(|name| facts.add_name(name));
                }
                ParsedExtension::SubjectKeyIdentifier(id) => facts.subject_key_id = Some(id.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    facts.authority_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
                }
                _ => {}
            }
        }
        Some(facts)
    }

    fn add_name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => drop(self.names.insert((*name).to_owned())),
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let sixteen = <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
                self.addresses.extend(four.or(sixteen));
            }
            _ => {}
        }
    }

    fn nears_its_end(&self, now: SystemTime) -> bool {
        let soon = now.duration_since(UNIX_EPOCH).unwrap_or_default() + RENEW_BEFORE;
        i64::try_from(soon.as_secs()).map_or(true, |soon| soon >= self.not_after)
    }
}

#[cfg(test)]
mod tests;
