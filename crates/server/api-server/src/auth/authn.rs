//! Who is calling?
//!
//! A client certificate answers first, then a bearer token. A request without any credential is
//! anonymous, if that is allowed; a credential that is not believed is refused even then.

use super::accounts::Accounts;
use super::tokens::Tokens;
use http::HeaderValue;
use jiff::Timestamp;
use pointsman_rules::ApiError;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group whose members may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of node agents.
pub const NODES: &str = "system:nodes";
/// The group of everybody with a valid credential.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody without one.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of everybody without a credential.
pub const ANONYMOUS: &str = "system:anonymous";

const NODE_PREFIX: &str = "system:node:";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Who a request is made by, or on behalf of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The unique name.
    pub name: String,
    /// The groups, in the order the credential gave them.
    pub groups: Vec<String>,
    /// An identifier that outlives renames; often empty.
    pub uid: String,
    /// Whatever else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user in `groups`.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self {
            name: name.into(),
            groups,
            ..Self::default()
        }
    }

    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// Whether the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }

    /// Whether the user may do everything.
    pub fn is_master(&self) -> bool {
        self.in_group(MASTERS)
    }

    /// The node whose agent this is. A member of the node group without a node's name has none.
    pub fn node_name(&self) -> Option<&str> {
        let name = self
            .name
            .strip_prefix(NODE_PREFIX)
            .filter(|name| !name.is_empty())?;
        self.in_group(NODES).then_some(name)
    }

    pub(crate) fn add_group(&mut self, group: &str) {
        if !self.in_group(group) {
            self.groups.push(group.to_owned());
        }
    }
}

/// The namespace and name in a service account's user name.
pub(crate) fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// The user name of a service account.
pub(crate) fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// Decides who a request is made by.
#[derive(Debug, Default)]
pub struct Authenticator {
    tokens: Tokens,
    anonymous: bool,
    accounts: Option<Arc<Accounts>>,
}

impl Authenticator {
    /// Believes `tokens`; `anonymous` says whether requests without a credential are served at all.
    pub fn new(tokens: Tokens, anonymous: bool, accounts: Arc<Accounts>) -> Self {
        Self {
            tokens,
            anonymous,
            accounts: Some(accounts),
        }
    }

    /// Whose bearer token it is, and which of `audiences` it is for; without any, the server's own count.
    pub fn token(&self, token: &[u8], audiences: &[String], now: Timestamp) -> Option<(User, Vec<String>)> {
        let accounts = self.accounts.as_deref();
        let own = accounts.map_or(&[][..], |accounts| &accounts.settings.audiences);
        let wanted = if audiences.is_empty() { own } else { audiences };
        if let Some(user) = self.tokens.find(token) {
            // Tokens of the file are for this server.
            let both: Vec<String> = own.iter().filter(|own| wanted.contains(own)).cloned().collect();
            let mut user = user.clone();
            user.add_group(AUTHENTICATED);
            return (audiences.is_empty() || !both.is_empty()).then_some((user, both));
        }
        accounts?.authenticate(token, wanted, now)
    }

    /// The caller, from the connection's certificate user and the `Authorization` header.
    pub fn authenticate(
        &self,
        certificate: Option<&User>,
        authorization: Option<&HeaderValue>,
        now: Timestamp,
    ) -> Result<User, ApiError> {
        match (certificate, authorization) {
            (Some(user), _) => Ok(user.clone()),
            (None, Some(header)) => {
                let token = bearer_token(header).ok_or(ApiError::Unauthorized)?;
                let found = self.token(token, &[], now);
                found.map(|(user, _)| user).ok_or(ApiError::Unauthorized)
            }
            (None, None) if self.anonymous => Ok(User::anonymous()),
            (None, None) => Err(ApiError::Unauthorized),
        }
    }
}

fn bearer_token(header: &HeaderValue) -> Option<&[u8]> {
    let bytes = header.as_bytes().trim_ascii();
    let (scheme, rest) = bytes.split_at_checked(b"bearer".len())?;
    let token = rest.trim_ascii_start();
    let separated = token.len() < rest.len();
    (scheme.eq_ignore_ascii_case(b"bearer") && separated && !token.is_empty()).then_some(token)
}

/// The user a verified client certificate speaks for; nobody without a common name.
pub fn user_from_certificate(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = common_name(&certificate).filter(|name| !name.is_empty())?;
    let mut user = User {
        name,
        groups: organizations(&certificate),
        ..User::default()
    };
    user.add_group(AUTHENTICATED);
    let uid = Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).ok()?;
    let mut uids = certificate.subject().iter_by_oid(&uid);
    if let Some(uid) = uids.next() {
        user.uid = uid.as_str().ok()?.to_owned();
    }
    // Two identifiers contradict each other, so neither is believed.
    uids.next().is_none().then_some(user)
}

pub(crate) fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate
        .subject()
        .iter_common_name()
        .next()?
        .as_str()
        .ok()
        .map(str::to_owned)
}

pub(crate) fn organizations(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject().iter_organization();
    names
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authenticator(anonymous: bool) -> Authenticator {
        Authenticator {
            tokens: Tokens::parse("secret,alice,u1,\"dev,ops\"\n").unwrap(),
            anonymous,
            accounts: None,
        }
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn header(value: &str) -> HeaderValue {
        HeaderValue::from_str(value).unwrap()
    }

    #[test]
    fn a_token_names_its_user_whatever_the_case_of_the_scheme() {
        for scheme in ["Bearer", "bearer", "BEARER "] {
            let user = authenticator(false)
                .authenticate(None, Some(&header(&format!("{scheme} secret"))), NOW)
                .unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str()), ("alice", "u1"));
            assert_eq!(user.groups, ["dev", "ops", AUTHENTICATED]);
        }
    }

    #[test]
    fn a_credential_that_is_not_believed_is_refused_even_where_none_is_needed() {
        for value in [
            "Bearer wrong",
            "Bearer",
            "Bearer ",
            "Bearersecret",
            "Basic c2VjcmV0",
            "",
            "Bearer secret x",
        ] {
            let answer = authenticator(true).authenticate(None, Some(&header(value)), NOW);
            assert_eq!(answer, Err(ApiError::Unauthorized), "{value:?}");
        }
    }

    #[test]
    fn no_credential_is_anonymous_or_refused() {
        let user = authenticator(true).authenticate(None, None, NOW).unwrap();
        assert_eq!(user, User::new("system:anonymous", &["system:unauthenticated"]));
        assert_eq!(
            authenticator(false).authenticate(None, None, NOW),
            Err(ApiError::Unauthorized)
        );
    }

    #[test]
    fn only_the_node_group_makes_a_node() {
        assert_eq!(User::new("system:node:n1", &[NODES]).node_name(), Some("n1"));
        assert_eq!(User::new("system:node:n1", &[]).node_name(), None);
        assert_eq!(User::new("system:node:", &[NODES]).node_name(), None);
        assert_eq!(User::new("n1", &[NODES]).node_name(), None);
    }
}
