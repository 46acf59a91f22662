//! How are texts and labels kept without a heap block per word?
//!
//! A cluster repeats itself: node names, namespaces and whole label sets occur once per template and
//! thousands of times per cluster. Labels are one block of text, and an [`Interner`] lets equal blocks
//! share memory.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Shared immutable text.
pub type Text = Arc<str>;

/// A sorted set of label or annotation pairs in one block of text; an empty set owns no memory.
///
/// Pairs with NUL characters are left out: no API server admits them.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Option<Text>);

impl Labels {
    /// Packs the given pairs; the last of equal keys wins.
    pub fn new<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let pairs: BTreeMap<String, String> = pairs
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        let mut block = String::with_capacity(pairs.iter().map(|(k, v)| k.len() + v.len() + 2).sum());
        for (key, value) in &pairs {
            if !key.contains('\0') && !value.contains('\0') {
                block.extend([key, "\0", value, "\0"]);
            }
        }
        Self((!block.is_empty()).then(|| block.into()))
    }

    /// All pairs, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut words = self.0.as_deref().unwrap_or_default().split_terminator('\0');
        std::iter::from_fn(move || Some((words.next()?, words.next()?)))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| value)
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether every pair of `self`, read as a selector, is among `labels`.
    pub fn selects(&self, labels: &Labels) -> bool {
        // Both sides are sorted, so one walk is enough.
        let mut have = labels.iter();
        self.iter()
            .all(|want| have.by_ref().find(|pair| pair.0 >= want.0) == Some(want))
    }

    /// Bytes on the heap, for memory accounting.
    pub fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |block| block.len() + 16)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Makes equal texts share one block.
///
/// Blocks that nobody else holds any more stay until [`Interner::sweep`]; whoever feeds it names that
/// come and go has to call that now and then.
#[derive(Debug, Default)]
pub struct Interner(HashSet<Text>);

impl Interner {
    /// The shared copy of `text` as the wanted name type.
    pub fn intern<N: From<Text>>(&mut self, text: &str) -> N {
        if let Some(known) = self.0.get(text) {
            return N::from(Arc::clone(known));
        }
        let fresh = Text::from(text);
        self.0.insert(Arc::clone(&fresh));
        N::from(fresh)
    }

    /// Replaces `text` by the block already known for it, or remembers it.
    pub fn share(&mut self, text: &mut Text) {
        match self.0.get(text) {
            Some(known) => *text = known.clone(),
            None => {
                self.0.insert(text.clone());
            }
        }
    }

    /// As [`Interner::share`], for a text that may be absent.
    pub fn share_option(&mut self, text: &mut Option<Text>) {
        if let Some(text) = text {
            self.share(text);
        }
    }

    /// As [`Interner::share`], for a whole label set.
    pub fn share_labels(&mut self, labels: &mut Labels) {
        self.share_option(&mut labels.0);
    }

    /// Forgets blocks that nobody else holds. Worth calling after many objects went away.
    pub fn sweep(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_selector_needs_every_pair() {
        let labels = Labels::new([("app", "web"), ("tier", "front"), ("zone", "a")]);
        assert!(Labels::new([("app", "web"), ("zone", "a")]).selects(&labels));
        assert!(Labels::default().selects(&labels));
        assert!(!Labels::new([("app", "web"), ("zone", "b")]).selects(&labels));
        assert!(!Labels::new([("b", "")]).selects(&labels));
    }

    #[test]
    fn empty_values_survive_packing() {
        let labels = Labels::new([("a", ""), ("b", "x"), ("c", "")]);
        assert_eq!(
            labels.iter().collect::<Vec<_>>(),
            [("a", ""), ("b", "x"), ("c", "")]
        );
        assert_eq!(labels.get("c"), Some(""));
    }

    #[test]
    fn equal_blocks_are_shared_and_swept() {
        let mut interner = Interner::default();
        let (mut a, mut b) = (Labels::new([("app", "web")]), Labels::new([("app", "web")]));
        interner.share_labels(&mut a);
        interner.share_labels(&mut b);
        assert!(Arc::ptr_eq(a.0.as_ref().unwrap(), b.0.as_ref().unwrap()));
        let first: Text = interner.intern("http");
        let second: Text = interner.intern("http");
        assert!(Arc::ptr_eq(&first, &second));
        drop((a, b, first, second));
        interner.sweep();
        assert!(interner.is_empty());
    }

    proptest! {
        #[test]
        fn labels_are_a_sorted_map(pairs in proptest::collection::btree_map("[a-c]{0,2}", "[x-z]{0,2}", 0..5)) {
            let labels = Labels::new(pairs.clone());
            let read: BTreeMap<String, String> = labels.iter().map(|(k, v)| (k.into(), v.into())).collect();
            prop_assert_eq!(read, pairs);
        }
    }
}
