//! Whose token is this, and who gets one?
//!
//! A token of a service account is a signed statement: who, for whom, until when, bound to which pod, node or Secret.
//! Verifying one needs the signer's public key and a look into the cache whether everything it names is still there;
//! the store is not asked. Signatures that were good are remembered, what tokens are bound to is looked at each time.

pub mod claims;
pub mod issue;
pub mod keys;
#[cfg(test)]
mod tests;

use super::User;
use super::authn::AUTHENTICATED;
use super::keyring::{KeyError, Ring, Versions, sections, versions};
use crate::cache::Cache;
use crate::keys::local;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use claims::{Claims, Life, World, verified};
use jiff::Timestamp;
use keys::Keys;
use parking_lot::{Mutex, RwLock};
use pointsman_rules::value::str_at;
use pointsman_rules::{Kind, kinds};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// So many good signatures are remembered; beyond that, all are forgotten.
const REMEMBERED: usize = 8192;
/// How often is looked whether keys were replaced.
const LOOK: Duration = Duration::from_secs(1);
/// Where the keys are published.
pub const JWKS_PATH: &str = "/openid/v1/jwks";

/// What flags say about tokens of service accounts; the names are kube-apiserver's.
#[derive(Clone, Debug)]
pub struct AccountSettings {
    /// The first issues, all are believed.
    pub issuers: Vec<String>,
    /// Who tokens for this server are for; the issuers if empty.
    pub audiences: Vec<String>,
    /// The key that signs, instead of the one in `pki`.
    pub signing_key_file: Option<PathBuf>,
    /// Further keys whose signatures are believed.
    pub key_files: Vec<PathBuf>,
    /// Longer lives are shortened to this.
    pub max_expiration: Option<Duration>,
    /// Where clients outside find the keys; at this server if absent.
    pub jwks_uri: Option<String>,
}

impl Default for AccountSettings {
    fn default() -> Self {
        Self {
            issuers: vec!["https://kubernetes.default.svc".to_owned()],
            audiences: Vec::new(),
            signing_key_file: None,
            key_files: Vec::new(),
            max_expiration: None,
            jwks_uri: None,
        }
    }
}

/// Issues tokens of service accounts, and knows them again.
pub struct Accounts {
    pub settings: AccountSettings,
    pki: PathBuf,
    keys: RwLock<Arc<Keys>>,
    /// Which files they were read from; looked at before they were read.
    versions: Versions,
    remembered: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
    cache: Arc<Cache>,
    /// Where clients elsewhere reach this server.
    server: OnceLock<SocketAddr>,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl Accounts {
    /// Reads the keys; one that signs is made in `pki` if need be.
    pub fn new(mut settings: AccountSettings, pki: &Path, cache: Arc<Cache>) -> Result<Self, KeyError> {
        if settings.audiences.is_empty() {
            settings.audiences.clone_from(&settings.issuers);
        }
        Ring::Tokens.open(pki)?;
        let versions = versions(paths(&settings, pki).iter().map(PathBuf::as_path));
        let keys = read(&settings, pki)?;
        Ok(Self {
            versions,
            settings,
            pki: pki.into(),
            keys: RwLock::new(Arc::new(keys)),
            remembered: Mutex::default(),
            cache,
            server: OnceLock::new(),
        })
    }

    /// Says where clients elsewhere reach this server.
    pub fn reached_at(&self, server: SocketAddr) {
        let _ = self.server.set(server);
    }

    /// Takes up keys that were replaced. Works for ever.
    pub async fn keep_fresh(self: Arc<Self>) {
        let settings = &self.settings;
        let paths = paths(settings, &self.pki);
        let mut seen = self.versions.clone();
        loop {
            tokio::time::sleep(LOOK).await;
            let found = versions(paths.iter().map(PathBuf::as_path));
            if found == seen {
                continue;
            }
            match read(settings, &self.pki) {
                Ok(keys) => {
                    tracing::info!(
                        keys = keys.verifiers.len(),
                        "the keys of service accounts were changed"
                    );
                    *self.keys.write() = Arc::new(keys);
                    self.remembered.lock().clear();
                    seen = found;
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(
                        error,
                        "cannot read the keys of service accounts; the present ones stay in use"
                    );
                }
            }
        }
    }

    /// Whose token it is, and for which of `audiences`; nobody's if it is not to be believed now.
    pub fn authenticate(
        &self,
        token: &[u8],
        audiences: &[String],
        now: Timestamp,
    ) -> Option<(User, Vec<String>)> {
        let claims = self.read_token(token)?;
        let world = World {
            now: now.as_second(),
            issuers: &self.settings.issuers,
            audiences,
            own: &self.settings.audiences,
            find: &|kind, namespace, name| self.find(kind, namespace, name),
            holds: &|namespace, secret| self.holds(namespace, secret, token),
        };
        let (mut user, audiences) = claims.user(&world)?;
        user.add_group(AUTHENTICATED);
        Some((user, audiences))
    }

    fn read_token(&self, token: &[u8]) -> Option<Arc<Claims>> {
        // Others than signed statements are not worth a hash.
        if token.len() > claims::MAX_TOKEN || !token.starts_with(b"ey") {
            return None;
        }
        let hash: [u8; 32] = digest(&SHA256, token).as_ref().try_into().ok()?;
        if let Some(claims) = self.remembered.lock().get(&hash) {
            return Some(claims.clone());
        }
        let keys = self.keys.read().clone();
        let claims = Arc::new(verified(token, &keys.verifiers)?);
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        // What was good under keys that were replaced meanwhile is not to be remembered.
        if Arc::ptr_eq(&keys, &self.keys.read()) {
            remembered.insert(hash, claims.clone());
        }
        Some(claims)
    }

    fn find(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Life> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            uid: String,
            deletion_timestamp: Option<Timestamp>,
        }
        let object = self.cache.of(kind).get(&local(namespace, name))?;
        let meta: Meta = object.metadata()?;
        Some(Life {
            uid: meta.uid,
            deletion: meta.deletion_timestamp.map(Timestamp::as_second),
        })
    }

    fn holds(&self, namespace: &str, secret: &str, token: &[u8]) -> bool {
        let object = self.cache.of(&kinds::SECRET).get(&local(namespace, secret));
        object.is_some_and(|object| {
            let held = BASE64_STANDARD.decode(str_at(&object.value(), &["data", "token"]));
            // Its signature was good: there is nothing left to guess.
            held.is_ok_and(|held| held == token)
        })
    }

    /// What clients outside have to know to verify tokens.
    pub fn discovery(&self) -> Value {
        let keys = self.keys.read().clone();
        let mut algorithms: Vec<&str> = keys.verifiers.iter().map(|key| key.algorithm.name()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let server = self
            .server
            .get()
            .map_or("kubernetes.default.svc".to_owned(), SocketAddr::to_string);
        let uri = self.settings.jwks_uri.clone();
        json!({
            "issuer": self.settings.issuers.first(),
            "jwks_uri": uri.unwrap_or_else(|| format!("https://{server}{JWKS_PATH}")),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }

    /// The public keys.
    pub fn jwks(&self) -> Value {
        let keys = self.keys.read().clone();
        json!({"keys": keys.verifiers.iter().map(keys::Verifier::to_jwk).collect::<Vec<_>>()})
    }
}

/// Every file that keys are read from.
fn paths(settings: &AccountSettings, pki: &Path) -> Vec<PathBuf> {
    let signing = settings.signing_key_file.clone();
    let signing = signing.unwrap_or_else(|| Ring::Tokens.path(pki));
    [signing].into_iter().chain(settings.key_files.clone()).collect()
}

fn read(settings: &AccountSettings, pki: &Path) -> Result<Keys, KeyError> {
    let others: Vec<&Path> = settings.key_files.iter().map(PathBuf::as_path).collect();
    let Some(path) = &settings.signing_key_file else {
        let path = Ring::Tokens.path(pki);
        return Keys::read((&path, &Ring::Tokens.open(pki)?), &others);
    };
    let text = std::fs::read_to_string(path).map_err(super::keyring::at(path))?;
    let own = sections(&text).map_err(|problem| KeyError::Unusable {
        path: path.clone(),
        problem: problem.into(),
    })?;
    Keys::read((path, &own), &others)
}
