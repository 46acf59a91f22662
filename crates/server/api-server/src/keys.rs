//! Under which key does the store keep an object?
//!
//! `/registry/<group>/<plural>/[<namespace>/]<name>`, `core` standing for the empty group. Claims of
//! Services on addresses and ports live beside them under `/claims/`.

use pointsman_rules::Kind;

/// The prefix of everything this server keeps.
pub const ROOT: &str = "/";
/// The prefix of claims on Service addresses and node ports.
pub const CLAIMS: &str = "/claims/";
/// Written when a start needs an event to see that it is up to date.
pub const STARTED: &str = "/started";
/// The time of a Service's removal, written in the same transaction: nothing else of it is left to carry it.
pub const REMOVED: &str = "/service-removed";
const OBJECTS: &str = "/registry/";

/// The prefix of all objects of `kind`, ending in a slash.
pub fn collection(kind: &Kind) -> String {
    let group = match kind.stored_as.unwrap_or(kind).group {
        "" => "core",
        group => group,
    };
    of_group(group, kind.plural)
}

/// The same for a kind that may not be known.
pub fn of_group(group: &str, plural: &str) -> String {
    format!("{OBJECTS}{group}/{plural}/")
}

/// The part of a key below its collection: `namespace/name` or `name`.
pub fn local(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// The store key of an object.
pub fn object(kind: &Kind, namespace: &str, name: &str) -> String {
    collection(kind) + &local(namespace, name)
}

/// The kind and local key that a store key belongs to; `None` for keys that hold no object.
pub fn parse(key: &str) -> Option<(&'static Kind, &str)> {
    let rest = key.strip_prefix(OBJECTS)?;
    let (group, rest) = rest.split_once('/')?;
    let (plural, local) = rest.split_once('/')?;
    let group = if group == "core" { "" } else { group };
    Some((Kind::by_store_key(group, plural)?, local))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_rules::kinds;

    #[test]
    fn keys_parse_back_to_what_they_were_made_from() {
        for kind in kinds::ALL.iter().copied().filter(|kind| kind.stored_as.is_none()) {
            let namespace = if kind.namespaced() { "ns" } else { "" };
            let key = object(kind, namespace, "n");
            let (parsed, rest) = parse(&key).unwrap();
            assert_eq!((parsed, rest), (kind, local(namespace, "n").as_str()));
        }
        assert_eq!(parse("/claims/ip/10.0.0.1"), None);
        assert_eq!(object(&kinds::EVENT_VIEW, "a", "b"), "/registry/core/events/a/b");
    }
}
