//! What does a token say, and is it to be believed now?
//!
//! Pure: the signature's keys, the time and what is known of objects are arguments. Work is bounded by [`MAX_TOKEN`]
//! and the number of keys, whatever somebody sends.

use super::keys::{Algorithm, Verifier};
use crate::auth::User;
use crate::auth::authn::service_account_user;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use pointsman_rules::{Kind, kinds};
use serde::{Deserialize, Serialize};

/// The longest token that is looked at, in bytes. Ours have about 1,000.
pub const MAX_TOKEN: usize = 16 << 10;
/// How far clocks may be apart, and how long a deleted object's tokens stay good, in seconds. Upstream's number.
const LEEWAY: i64 = 60;
/// Who issued tokens that kube-controller-manager puts into Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The group of all service accounts.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// An object that a token names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// What a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub namespace: String,
    pub serviceaccount: Named,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Named>,
}

/// What a token says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default)]
    pub aud: Audiences,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    pub iss: String,
    #[serde(default)]
    pub jti: String,
    #[serde(rename = "kubernetes.io", skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    pub sub: String,
    #[serde(flatten, skip_serializing)]
    pub(super) legacy: Legacy,
}

/// What a token in a Secret says instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Legacy {
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

/// Who a token is for: one name or several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct Audiences(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Audiences {
    fn from(read: OneOrMany) -> Self {
        Self(match read {
            OneOrMany::One(name) => vec![name],
            OneOrMany::Many(names) => names,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// The token that says `claims`, but for its signature.
pub fn unsigned(claims: &Claims, key: &Verifier) -> String {
    let header = Header {
        alg: key.algorithm.name().to_owned(),
        kid: key.id.clone(),
    };
    let part = |json: serde_json::Result<Vec<u8>>| BASE64_URL_SAFE_NO_PAD.encode(json.unwrap_or_default());
    let header = part(serde_json::to_vec(&header));
    format!("{header}.{}", part(serde_json::to_vec(claims)))
}

/// What a token says, if one of `keys` has signed it.
pub fn verified(token: &[u8], keys: &[Verifier]) -> Option<Claims> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let mut parts = token.split(|byte| *byte == b'.');
    let [header, claims, signature] = [parts.next()?, parts.next()?, parts.next()?];
    if parts.next().is_some() {
        return None;
    }
    let decode = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
    let message = &token[..header.len() + 1 + claims.len()];
    let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
    // Only algorithms with public keys have a name here: none of them can be made without the secret half.
    let algorithm = Algorithm::ALL
        .into_iter()
        .find(|known| known.name() == header.alg)?;
    let signature = decode(signature)?;
    let meant =
        |key: &&Verifier| key.algorithm == algorithm && (header.kid.is_empty() || header.kid == key.id);
    let mut keys = keys.iter().filter(meant);
    keys.any(|key| key.verify(message, &signature))
        .then(|| serde_json::from_slice(&decode(claims)?).ok())?
}

/// What is known of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    pub uid: String,
    /// When it was or will be deleted, in seconds.
    pub deletion: Option<i64>,
}

/// What validity depends on besides the token.
pub struct World<'a> {
    /// Seconds since 1970, as in the claims.
    pub now: i64,
    pub issuers: &'a [String],
    /// Who the token has to be for: one of them.
    pub audiences: &'a [String],
    /// Who tokens for this server are for.
    pub own: &'a [String],
    pub find: &'a dyn Fn(&'static Kind, &str, &str) -> Option<Life>,
    /// Whether a Secret holds this very token.
    pub holds: &'a dyn Fn(&str, &str) -> bool,
}

impl Claims {
    /// The caller that a token with a good signature stands for, and for which of the audiences.
    pub fn user(&self, world: &World<'_>) -> Option<(User, Vec<String>)> {
        let limits = [self.nbf, self.iat];
        if self.exp.is_some_and(|end| end < world.now.saturating_sub(LEEWAY))
            || limits
                .iter()
                .flatten()
                .any(|begin| *begin > world.now.saturating_add(LEEWAY))
        {
            return None;
        }
        if self.iss == LEGACY_ISSUER {
            let legacy = &self.legacy;
            // It names nobody that it is for, and so is for this server alone.
            let wanted = |own: &&String| world.audiences.contains(own);
            let audiences: Vec<String> = world.own.iter().filter(wanted).cloned().collect();
            if audiences.is_empty() {
                return None;
            }
            let bound = self.legacy_bound(world)?;
            let user = self.named(&bound, world)?;
            return (legacy.uid == user.uid).then_some((user, audiences));
        }
        let wanted = |audience: &&String| self.aud.0.contains(audience);
        let audiences: Vec<String> = world.audiences.iter().filter(wanted).cloned().collect();
        // Only tokens in Secrets are without an end.
        if !world.issuers.contains(&self.iss) || audiences.is_empty() || self.exp.is_none() {
            return None;
        }
        Some((self.named(self.bound.as_ref()?, world)?, audiences))
    }

    /// What a token in a Secret is bound to: it is good as long as that Secret holds it.
    fn legacy_bound(&self, world: &World<'_>) -> Option<Bound> {
        let Legacy {
            namespace,
            secret,
            account,
            uid,
        } = &self.legacy;
        let found = (world.find)(&kinds::SECRET, namespace, secret)?;
        (world.holds)(namespace, secret).then(|| Bound {
            namespace: namespace.clone(),
            serviceaccount: Named {
                name: account.clone(),
                uid: uid.clone(),
            },
            secret: Some(Named {
                name: secret.clone(),
                uid: found.uid,
            }),
            ..Bound::default()
        })
    }

    /// The account, if it and everything that the token is bound to are still there.
    fn named(&self, bound: &Bound, world: &World<'_>) -> Option<User> {
        let (namespace, account) = (&bound.namespace, &bound.serviceaccount);
        let name = service_account_user(namespace, &account.name);
        if name != self.sub {
            return None;
        }
        let lives = |kind: &'static Kind, namespace: &str, named: &Named| {
            let found = (world.find)(kind, namespace, &named.name);
            found.is_some_and(|found| {
                let gone = found
                    .deletion
                    .is_some_and(|at| at < world.now.saturating_sub(LEEWAY));
                found.uid == named.uid && !gone
            })
        };
        // Of a pod's node only the name is passed on: the pod may outlive the object.
        let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
        let all = lives(&kinds::SERVICE_ACCOUNT, namespace, account)
            && bound
                .secret
                .as_ref()
                .is_none_or(|secret| lives(&kinds::SECRET, namespace, secret))
            && bound
                .pod
                .as_ref()
                .is_none_or(|pod| lives(&kinds::POD, namespace, pod))
            && node.is_none_or(|node| lives(&kinds::NODE, "", node));
        if !all {
            return None;
        }
        let of_namespace = format!("{SERVICE_ACCOUNTS}:{namespace}");
        let mut user = User::new(name, &[SERVICE_ACCOUNTS, &of_namespace]);
        user.uid.clone_from(&account.uid);
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                let key = format!("authentication.kubernetes.io/{key}");
                user.extra.insert(key, vec![value.to_owned()]);
            }
        };
        for (kind, named) in [("pod", &bound.pod), ("node", &bound.node)] {
            let Some(named) = named else { continue };
            add(&format!("{kind}-name"), &named.name);
            add(&format!("{kind}-uid"), &named.uid);
        }
        if !self.jti.is_empty() {
            add("credential-id", &format!("JTI={}", self.jti));
        }
        Some(user)
    }
}
