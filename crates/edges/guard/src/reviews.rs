//! What does the API server say of a token, and of a user?

use http::{HeaderMap, header};
use pointsman_api_client::{Client, Resource};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long an answer is believed (the kubelet's numbers): whose a token is, that somebody may, that they may not.
const TOKEN: Duration = Duration::from_secs(120);
const YES: Duration = Duration::from_secs(300);
const NO: Duration = Duration::from_secs(30);
/// Answers that are remembered, of each kind.
const MOST: usize = 1024;
/// Longer ones are nobody's token.
const LONGEST_TOKEN: usize = 16 << 10;

/// Somebody who was recognized, with everything that rights may depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default)]
pub struct User {
    #[serde(rename(deserialize = "username", serialize = "user"))]
    pub name: String,
    pub groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user a verified certificate speaks for; nobody without a common name.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization();
        let groups = groups.filter_map(|group| Some(group.as_str().ok()?.to_owned()));
        let groups = groups.chain(["system:authenticated".to_owned()]).collect();
        let (uid, extra) = Default::default();
        let user = Self {
            name,
            groups,
            uid,
            extra,
        };
        (!user.name.is_empty()).then_some(user)
    }
}

/// What a user may or may not do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Path {
        verb: String,
        path: String,
    },
    /// To a part of a node's agent.
    Node {
        verb: &'static str,
        subresource: &'static str,
        name: String,
    },
}

impl Right {
    /// What a SubjectAccessReview asks about it.
    fn attributes(&self) -> (&'static str, Value) {
        match self {
            Self::Path { verb, path } => ("nonResourceAttributes", json!({ "verb": verb, "path": path })),
            Self::Node {
                verb,
                subresource,
                name,
            } => (
                "resourceAttributes",
                json!({
                    "verb": verb, "version": "v1", "resource": "nodes",
                    "subresource": subresource, "name": name,
                }),
            ),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { verb, path } => write!(f, "{verb} {path}"),
            Self::Node {
                verb,
                subresource,
                name,
            } => write!(f, "{verb} nodes/{subresource} of node {name:?}"),
        }
    }
}

/// Asks, and remembers for a while.
pub struct Reviews {
    client: Client,
    audience: Option<&'static str>,
    /// By their digest: a token is long, and nothing to keep.
    users: Memory<[u8; 32], Option<User>>,
    rights: Memory<(User, Right), bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenReview {
    status: TokenStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessReview {
    status: AccessStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
}

impl Reviews {
    /// Besides tokens for the API server, those for an audience of its own are accepted.
    pub fn new(client: Client, audience: Option<&'static str>) -> Self {
        Self {
            client,
            audience,
            users: Memory::default(),
            rights: Memory::default(),
        }
    }

    /// Who asks: the user of the connection's certificate, or of the request's token.
    pub async fn who(&self, certificate: Option<&User>, head: &HeaderMap) -> Option<User> {
        match (certificate, bearer(head)) {
            (Some(user), _) => Some(user.clone()),
            (None, Some(token)) => self.user(token).await,
            (None, None) => None,
        }
    }

    /// Whose token it is.
    async fn user(&self, token: &str) -> Option<User> {
        if token.len() > LONGEST_TOKEN {
            return None;
        }
        let digest = Sha256::digest(token).into();
        if let Some(known) = self.users.get(&digest, Instant::now()) {
            return known;
        }
        // Tokens that are made for us come first; others are for the API server itself.
        let own = match self.audience {
            Some(audience) => self.review_token(token, &[audience]).await?,
            None => None,
        };
        let user = match own {
            Some(user) => Some(user),
            None => self.review_token(token, &[]).await?,
        };
        let keep = if user.is_some() { TOKEN } else { NO };
        self.users.put(digest, user.clone(), Instant::now() + keep);
        user
    }

    /// Nothing if nobody could be asked, which is not remembered.
    async fn review_token(&self, token: &str, audiences: &[&str]) -> Option<Option<User>> {
        let spec = json!({ "token": token, "audiences": audiences });
        let review: TokenReview = self.ask("authentication.k8s.io", "TokenReview", spec).await?;
        let status = review.status;
        let fits = audiences.is_empty()
            || status
                .audiences
                .iter()
                .any(|found| audiences.contains(&found.as_str()));
        Some((status.authenticated && fits && !status.user.name.is_empty()).then_some(status.user))
    }

    /// Whether a user has a right.
    pub async fn allows(&self, user: &User, right: &Right) -> bool {
        let question = (user.clone(), right.clone());
        if let Some(known) = self.rights.get(&question, Instant::now()) {
            return known;
        }
        let (field, attributes) = right.attributes();
        let mut spec = json!(user);
        spec[field] = attributes;
        let review = self.ask("authorization.k8s.io", "SubjectAccessReview", spec);
        let Some(AccessReview { status }) = review.await else {
            return false;
        };
        let keep = if status.allowed { YES } else { NO };
        self.rights.put(question, status.allowed, Instant::now() + keep);
        status.allowed
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        group: &'static str,
        kind: &'static str,
        spec: Value,
    ) -> Option<T> {
        let plural = match kind {
            "TokenReview" => "tokenreviews",
            _ => "subjectaccessreviews",
        };
        let body = json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "spec": spec });
        let api = self.client.api(Resource::new(group, "v1", plural), None);
        match api.create::<T>(body.to_string().into_bytes()).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(kind, %error, "cannot ask the API server, so it is refused");
                None
            }
        }
    }
}

/// The token in a request's head.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// What was answered, until it is asked again.
struct Memory<K, V>(Mutex<BTreeMap<K, (V, Instant)>>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, V: Clone> Memory<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = known.get(key)?;
        (now < *until).then(|| value.clone())
    }

    fn put(&self, key: K, value: V, until: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_believed_for_a_while_and_only_so_many_are_kept() {
        let memory = Memory::default();
        let now = Instant::now();
        memory.put(1, true, now + YES);
        assert_eq!(memory.get(&1, now), Some(true));
        assert_eq!(memory.get(&2, now), None);
        assert_eq!(memory.get(&1, now + YES), None);
        for key in 0..10 * MOST {
            memory.put(key, true, now + YES);
        }
        assert!(memory.0.lock().unwrap().len() <= MOST);
    }

    #[test]
    fn only_bearer_tokens_are_taken_for_tokens() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer abc").as_deref(), Some("abc"));
        for none in ["Bearer", "Bearer ", "Basic abc", "abc"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
