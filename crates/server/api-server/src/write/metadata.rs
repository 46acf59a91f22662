//! Which metadata does the server set, and which does it keep from the stored version?

use super::stamp;
use jiff::Timestamp;
use pointsman_rules::status::Subject;
use pointsman_rules::value::{at, int_at, list_at, remove, set, str_at};
use pointsman_rules::{ApiError, Kind, kinds};
use serde_json::Value;

/// Fields that only the server may set.
const SERVER_OWNED: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];
/// Fields that are never stored.
const NEVER_STORED: &[&str] = &["resourceVersion", "selfLink", "managedFields"];

/// The time format of metadata: UTC, whole seconds.
pub fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Makes the body of a request name the object that its path names.
pub fn place(object: &mut Value, kind: &Kind, namespace: &str, name: Option<&str>) -> Result<(), ApiError> {
    let stated = str_at(object, &["metadata", "namespace"]);
    if !stated.is_empty() && stated != namespace {
        return Err(ApiError::BadRequest(if kind.namespaced() {
            format!(
                "the namespace of the provided object does not match the namespace sent on the request: {stated:?} is not {namespace:?}"
            )
        } else {
            format!(
                "namespace: {} are not namespaced, but the object names {stated:?}",
                kind.plural
            )
        }));
    }
    if let Some(name) = name {
        let stated = str_at(object, &["metadata", "name"]);
        if !stated.is_empty() && stated != name {
            let why =
                format!("the name of the object ({stated}) does not match the name on the URL ({name})");
            return Err(ApiError::BadRequest(why));
        }
        set(object, &["metadata", "name"], name);
    }
    if kind.namespaced() {
        set(object, &["metadata", "namespace"], namespace);
    } else {
        remove(object, &["metadata", "namespace"]);
    }
    set(object, &["kind"], kind.kind);
    set(object, &["apiVersion"], kind.api_version());
    Ok(())
}

/// Sets the metadata of a new object.
pub fn prepare_create(object: &mut Value, uid: String, generation: Option<i64>, now: Timestamp) {
    for field in SERVER_OWNED.iter().chain(NEVER_STORED) {
        remove(object, &["metadata", field]);
    }
    set(object, &["metadata", "uid"], uid);
    set(object, &["metadata", "creationTimestamp"], time(now));
    if let Some(generation) = generation {
        set(object, &["metadata", "generation"], generation);
    }
}

/// Checks the version and identity that the client claims, then restores server-owned metadata.
pub fn prepare_update(new: &mut Value, old: &Value, kind: &Kind, revision: &str) -> Result<(), ApiError> {
    let name = str_at(old, &["metadata", "name"]);
    let stated = str_at(new, &["metadata", "resourceVersion"]);
    if !stated.is_empty() && stated != revision {
        return Err(ApiError::modified(kind, name));
    }
    check_uid(str_at(new, &["metadata", "uid"]), old, kind)?;
    for field in SERVER_OWNED {
        match at(old, &["metadata", field]) {
            Some(value) => set(new, &["metadata", field], value.clone()),
            None => drop(remove(new, &["metadata", field])),
        }
    }
    for field in NEVER_STORED {
        remove(new, &["metadata", field]);
    }
    stamp::keep(kind, new, old);
    Ok(())
}

/// Refuses a request about an object of the same name but another identity.
pub fn check_uid(stated: &str, old: &Value, kind: &Kind) -> Result<(), ApiError> {
    let actual = str_at(old, &["metadata", "uid"]);
    if stated.is_empty() || stated == actual {
        return Ok(());
    }
    let subject = Subject::new(kind, str_at(old, &["metadata", "name"]));
    let why = format!("Precondition failed: UID in precondition: {stated}, UID in object meta: {actual}");
    Err(ApiError::Conflict { subject, why })
}

/// Counts one more generation.
pub fn bump_generation(object: &mut Value) {
    let generation = int_at(object, &["metadata", "generation"]).unwrap_or(0);
    set(object, &["metadata", "generation"], generation + 1);
}

/// Whether deletion of the object has started.
pub fn deleting(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some()
}

/// Whether a deletion that has started can now be completed: nothing holds the object any more.
pub fn deletion_complete(object: &Value, kind: &Kind) -> bool {
    deleting(object)
        && int_at(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
        && !held(object, kind)
}

/// Whether finalizers hold the object.
pub fn held(object: &Value, kind: &Kind) -> bool {
    !list_at(object, &["metadata", "finalizers"]).is_empty()
        || (kind == &kinds::NAMESPACE && !list_at(object, &["spec", "finalizers"]).is_empty())
}

/// A name from a prefix and five random letters that spell no words.
pub fn generate_name(prefix: &str, mut pick: impl FnMut(u64) -> u64) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const MAX_PREFIX: usize = 58;
    let mut end = prefix.len().min(MAX_PREFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let suffix = (0..5).map(|_| char::from(ALPHABET[pick(ALPHABET.len() as u64) as usize]));
    prefix[..end].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods() -> &'static Kind {
        &kinds::POD
    }

    #[test]
    fn clients_cannot_set_what_the_server_owns() {
        let mut object =
            json!({"metadata": {"name": "a", "uid": "mine", "generation": 9, "managedFields": []}});
        prepare_create(
            &mut object,
            "u1".into(),
            Some(1),
            "2026-01-02T03:04:05.6Z".parse().unwrap(),
        );
        assert_eq!(
            object["metadata"],
            json!({"name": "a", "uid": "u1", "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z"})
        );
        let mut new = json!({"metadata": {"name": "a", "generation": 7, "deletionTimestamp": "x"}});
        prepare_update(&mut new, &object, pods(), "5").unwrap();
        assert_eq!(new["metadata"], object["metadata"]);
    }

    #[test]
    fn stale_versions_and_foreign_identities_are_conflicts() {
        let old = json!({"metadata": {"name": "a", "uid": "u1"}});
        let mut stale = json!({"metadata": {"resourceVersion": "4"}});
        assert_eq!(
            prepare_update(&mut stale, &old, pods(), "5")
                .unwrap_err()
                .reason(),
            "Conflict"
        );
        let mut foreign = json!({"metadata": {"uid": "u2"}});
        assert_eq!(
            prepare_update(&mut foreign, &old, pods(), "5")
                .unwrap_err()
                .reason(),
            "Conflict"
        );
    }

    #[test]
    fn a_body_that_names_another_object_is_refused() {
        let mut other = json!({"metadata": {"namespace": "b"}});
        assert_eq!(place(&mut other, pods(), "a", None).unwrap_err().code(), 400);
        let mut other = json!({"metadata": {"name": "y"}});
        assert_eq!(place(&mut other, pods(), "a", Some("x")).unwrap_err().code(), 400);
    }

    #[test]
    fn generated_names_keep_the_prefix_within_the_limit() {
        let name = generate_name(&"ä".repeat(60), |n| n - 1);
        assert!(name.ends_with("99999") && name.len() <= 63);
        assert_eq!(generate_name("web-", |_| 0), "web-bbbbb");
    }
}
