//! How do our keys lie in an etcd that others use too?

use super::messages::KeyValue;
use crate::{Entry, Revision, StoreError};
use bytes::Bytes;
use std::sync::Arc;

/// A part of etcd's key space that is ours.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The keys that start with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// A key as etcd knows it.
    pub fn wrap(&self, key: &str) -> Bytes {
        [self.0.as_bytes(), key.as_bytes()].concat().into()
    }

    /// The half-open range of etcd keys below a prefix, after a key.
    pub fn span(&self, prefix: &str, after: Option<&str>) -> (Bytes, Bytes) {
        let start = match after {
            Some(after) if after >= prefix => [&self.wrap(after)[..], b"\0"].concat().into(),
            _ => self.wrap(prefix),
        };
        // In etcd an empty key is not a key, and the end "\0" means the end of all keys.
        let start = if start.is_empty() {
            Bytes::from_static(b"\0")
        } else {
            start
        };
        (start, end_of(&self.wrap(prefix)))
    }

    /// An entry as we know it.
    pub fn entry(&self, kv: KeyValue) -> Result<Entry, StoreError> {
        let key = std::str::from_utf8(&kv.key)
            .ok()
            .and_then(|key| key.strip_prefix(&*self.0))
            .ok_or_else(|| StoreError::Damaged(format!("etcd answered with foreign key {:?}", kv.key)))?;
        Ok(Entry {
            key: key.into(),
            revision: revision(kv.mod_revision),
            created: revision(kv.create_revision),
            value: kv.value,
        })
    }
}

/// A revision as we count it; etcd's are never negative.
pub fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// A revision as etcd counts it.
pub fn wire_revision(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// The first key after all keys that start with `prefix`.
fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_lacks_it() {
        assert_eq!(end_of(b"/a/"), "/a0");
        assert_eq!(&end_of(b"a\xff")[..], b"b");
        assert_eq!(&end_of(b"\xff")[..], b"\0");
        assert_eq!(&end_of(b"")[..], b"\0");
    }

    #[test]
    fn reading_on_starts_right_after_the_key() {
        let (start, end) = Namespace::new("/ns").span("/p/", Some("/p/a"));
        assert_eq!((&start[..], &end[..]), (&b"/ns/p/a\0"[..], &b"/ns/p0"[..]));
        let (start, _) = Namespace::new("/ns").span("/p/", Some("/o"));
        assert_eq!(start, "/ns/p/", "a key before the prefix changes nothing");
    }

    #[test]
    fn a_key_outside_the_namespace_is_not_ours() {
        let foreign = KeyValue {
            key: Bytes::from_static(b"/other/a"),
            ..KeyValue::default()
        };
        assert!(matches!(
            Namespace::new("/ns").entry(foreign),
            Err(StoreError::Damaged(_))
        ));
    }
}
