//! Which objects has the caller been told of?

use std::collections::HashSet;
use std::fmt;

/// Namespace and name in one block of text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Box<str>);

impl ObjectKey {
    /// The key made of these two; objects without a namespace leave it empty.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self([namespace, "/", name].concat().into())
    }

    /// The namespace, empty for objects that have none.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_start_matches('/'))
    }
}

/// The objects told so far, and during a list those that it has shown.
#[derive(Debug, Default)]
pub(super) struct Known {
    told: HashSet<ObjectKey>,
    /// Objects from before the list that it has not shown yet; `None` outside of lists.
    unseen: Option<HashSet<ObjectKey>>,
}

impl Known {
    /// A list begins, or begins again.
    pub fn begin_list(&mut self) {
        if let Some(unseen) = self.unseen.take() {
            self.told.extend(unseen);
        }
        self.unseen = Some(std::mem::take(&mut self.told));
    }

    /// Whether a list is under way.
    pub fn listing(&self) -> bool {
        self.unseen.is_some()
    }

    /// The list is complete; returns what is gone, in order.
    pub fn end_list(&mut self) -> Vec<ObjectKey> {
        let mut gone: Vec<ObjectKey> = self.unseen.take().into_iter().flatten().collect();
        gone.sort();
        gone
    }

    /// An object was told.
    pub fn insert(&mut self, key: ObjectKey) {
        if let Some(unseen) = &mut self.unseen {
            unseen.remove(&key);
        }
        self.told.insert(key);
    }

    /// An object was told to be gone.
    pub fn remove(&mut self, key: &ObjectKey) {
        if let Some(unseen) = &mut self.unseen {
            unseen.remove(key);
        }
        self.told.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_list_tells_what_is_gone_even_if_it_had_to_begin_twice() {
        let mut known = Known::default();
        known.begin_list();
        known.insert(key("a"));
        known.insert(key("b"));
        assert_eq!(known.end_list(), []);
        known.begin_list();
        known.insert(key("c"));
        known.begin_list();
        known.insert(key("b"));
        assert_eq!(known.end_list(), [key("a"), key("c")]);
        assert!(!known.listing());
    }

    #[test]
    fn keys_keep_namespace_and_name_apart() {
        assert_eq!((key("a").namespace(), key("a").name()), ("ns", "a"));
        let node = ObjectKey::new("", "n1");
        assert_eq!(
            (node.namespace(), node.name(), node.to_string()),
            ("", "n1", "n1".into())
        );
    }
}
