//! Which objects does the caller know of?

mod names;

use names::Names;
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

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_start_matches('/'))
    }
}

/// The objects reported so far, and during a list those that it has shown.
#[derive(Debug, Default)]
pub(super) struct Known {
    reported: Names,
    /// Objects from before the list that it has not shown yet; `None` outside of lists.
    unseen: Option<Names>,
}

impl Known {
    /// A list begins, or begins again.
    pub fn begin_list(&mut self) {
        let mut unseen = std::mem::take(&mut self.reported);
        // What an earlier attempt has not shown either.
        for (namespace, name) in self.unseen.take().iter().flat_map(Names::iter) {
            unseen.insert(namespace, name);
        }
        self.unseen = Some(unseen);
    }

    /// Whether a list is under way.
    pub fn listing(&self) -> bool {
        self.unseen.is_some()
    }

    /// The list is complete; returns what is gone, in order.
    pub fn end_list(&mut self) -> Vec<ObjectKey> {
        let unseen = self.unseen.take().unwrap_or_default();
        let keys = unseen
            .iter()
            .map(|(namespace, name)| ObjectKey::new(namespace, name));
        let mut gone: Vec<ObjectKey> = keys.collect();
        gone.sort();
        self.reported.shrink();
        gone
    }

    /// An object was reported.
    pub fn insert(&mut self, namespace: &str, name: &str) {
        if let Some(unseen) = &mut self.unseen {
            unseen.remove(namespace, name);
        }
        self.reported.insert(namespace, name);
    }

    /// An object was reported as gone.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(unseen) = &mut self.unseen {
            unseen.remove(namespace, name);
        }
        self.reported.remove(namespace, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_list_shows_what_is_gone_even_if_it_had_to_begin_twice() {
        let mut known = Known::default();
        known.begin_list();
        known.insert("ns", "a");
        known.insert("ns", "b");
        assert_eq!(known.end_list(), []);
        known.begin_list();
        known.insert("ns", "c");
        known.begin_list();
        known.insert("ns", "b");
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
