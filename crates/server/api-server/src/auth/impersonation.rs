//! May the caller act as somebody else, and who is that?
//!
//! Each header asks for one thing (a user, a group, an extra, a uid), and the caller needs the verb
//! `impersonate` on every one of them before the request continues as the other.

use super::authn::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User, split_service_account};
use super::rbac::{Attributes, Decision, forbidden};
use http::HeaderMap;
use pointsman_rules::ApiError;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// The user the request continues as, or nothing if it does not ask for another. `authorize` says
/// what `caller` may do.
pub fn impersonate(
    caller: &User,
    headers: &HeaderMap,
    authorize: impl Fn(&Attributes<'_>) -> Decision,
) -> Result<Option<User>, ApiError> {
    let Some(mut wanted) = requested(headers)? else {
        return Ok(None);
    };
    let permit = |attributes: Attributes<'_>| match authorize(&attributes) {
        Decision::Allow => Ok(()),
        Decision::NoOpinion { reason } => Err(forbidden(&attributes, &reason)),
    };
    let ask =
        |group, resource, name| Attributes::resource(caller, "impersonate", group, resource).named(name);
    match split_service_account(&wanted.name) {
        Some((namespace, name)) => permit(ask("", "serviceaccounts", name).in_namespace(namespace))?,
        None => permit(ask("", "users", &wanted.name))?,
    }
    for group in &wanted.groups {
        permit(ask("", "groups", group))?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            permit(ask(AUTHENTICATION_GROUP, "userextras", value).subresource(key))?;
        }
    }
    if !wanted.uid.is_empty() {
        permit(ask(AUTHENTICATION_GROUP, "uids", &wanted.uid))?;
    }
    add_implied_groups(&mut wanted);
    Ok(Some(wanted))
}

fn add_implied_groups(wanted: &mut User) {
    if wanted.groups.is_empty()
        && let Some((namespace, _)) = split_service_account(&wanted.name)
    {
        let of_namespace = format!("system:serviceaccounts:{namespace}");
        wanted.groups = vec!["system:serviceaccounts".to_owned(), of_namespace];
    }
    if wanted.name == ANONYMOUS {
        wanted.add_group(UNAUTHENTICATED);
    } else if !wanted.in_group(UNAUTHENTICATED) {
        wanted.add_group(AUTHENTICATED);
    }
}

/// What the headers ask for, unchecked.
fn requested(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let text = |value: &http::HeaderValue| {
        let readable = value.to_str().map(str::to_owned);
        readable.map_err(|_| ApiError::BadRequest("an impersonation header is not readable text".into()))
    };
    let mut wanted = User::default();
    if let Some(name) = headers.get(USER) {
        wanted.name = text(name)?;
    }
    for group in headers.get_all(GROUP) {
        wanted.groups.push(text(group)?);
    }
    if let Some(uid) = headers.get(UID) {
        wanted.uid = text(uid)?;
    }
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) {
            wanted
                .extra
                .entry(percent_decode(key))
                .or_default()
                .push(text(value)?);
        }
    }
    if wanted == User::default() {
        return Ok(None);
    }
    if wanted.name.is_empty() {
        let message = "groups, extras or a uid were requested without impersonating a user";
        return Err(ApiError::BadRequest(message.into()));
    }
    Ok(Some(wanted))
}

/// Decodes `%2f`-style bytes; a key with a malformed escape is taken as it is.
fn percent_decode(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.push(byte),
            None => return key.to_owned(),
        }
        rest = &after[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        headers
    }

    fn allow_all(_: &Attributes<'_>) -> Decision {
        Decision::Allow
    }

    #[test]
    fn every_requested_thing_needs_its_own_permission() {
        let headers = headers(&[
            ("Impersonate-User", "bob"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-example.com%2Fscope", "view"),
        ]);
        let caller = User::new("alice", &[]);
        let asked = RefCell::new(Vec::new());
        let user = impersonate(&caller, &headers, |attributes| {
            asked.borrow_mut().push(format!(
                "{} {}/{} {}",
                attributes.verb, attributes.resource, attributes.subresource, attributes.name
            ));
            Decision::Allow
        });
        let user = user.unwrap().unwrap();
        assert_eq!(user.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(user.extra["example.com/scope"], ["view"]);
        assert_eq!(
            asked.into_inner(),
            [
                "impersonate users/ bob",
                "impersonate groups/ dev",
                "impersonate groups/ ops",
                "impersonate userextras/example.com/scope view",
                "impersonate uids/ 7",
            ]
        );
        for denied in ["users", "groups", "userextras", "uids"] {
            let answer = impersonate(&caller, &headers, |attributes| {
                if attributes.resource == denied {
                    Decision::NoOpinion {
                        reason: String::new(),
                    }
                } else {
                    Decision::Allow
                }
            });
            assert_eq!(answer.unwrap_err().code(), 403, "{denied}");
        }
    }

    #[test]
    fn service_accounts_and_anonymous_get_the_groups_they_would_have() {
        let caller = User::new("alice", &[]);
        let become_user = |name| {
            impersonate(&caller, &headers(&[("Impersonate-User", name)]), allow_all)
                .unwrap()
                .unwrap()
                .groups
        };
        assert_eq!(
            become_user("system:serviceaccount:ns:robot"),
            [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                AUTHENTICATED
            ]
        );
        assert_eq!(become_user("system:anonymous"), [UNAUTHENTICATED]);
    }

    #[test]
    fn nothing_requested_changes_nothing_and_groups_need_a_user() {
        let caller = User::new("alice", &[]);
        assert_eq!(impersonate(&caller, &HeaderMap::new(), allow_all), Ok(None));
        let only_group = headers(&[("Impersonate-Group", "system:masters")]);
        assert_eq!(
            impersonate(&caller, &only_group, allow_all).unwrap_err().code(),
            400
        );
        assert_eq!(percent_decode("a%zz"), "a%zz");
        assert_eq!(percent_decode("a%2"), "a%2");
    }
}
