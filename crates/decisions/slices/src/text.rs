//! How are names and labels kept without a heap block per word?
//!
//! A cluster repeats itself: node names, namespaces and whole label sets occur once per template and
//! thousands of times per cluster. Labels are one block of text, and an [`Interner`] lets equal blocks
//! share memory.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

/// Shared immutable text.
pub type Text = Arc<str>;

/// A sorted set of label pairs in one block of text.
///
/// Pairs with control characters are left out: no API server admits them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Text);

impl Labels {
    /// Packs the given pairs; the last of equal keys wins.
    pub fn new<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::pack(
            &pairs
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    fn pack(pairs: &BTreeMap<String, String>) -> Self {
        let mut block = String::with_capacity(pairs.iter().map(|(k, v)| k.len() + v.len() + 2).sum());
        for (key, value) in pairs {
            if key.contains(char::is_control) || value.contains(char::is_control) {
                continue;
            }
            block.push_str(key);
            block.push('\0');
            block.push_str(value);
            block.push('\0');
        }
        Self(block.into())
    }

    /// All pairs, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut words = self.0.split('\0');
        std::iter::from_fn(move || {
            let key = words.next()?;
            Some((key, words.next()?))
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
        self.0.len() + 16
    }
}

impl Default for Labels {
    fn default() -> Self {
        Self("".into())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = Option::<BTreeMap<String, Option<String>>>::deserialize(deserializer)?;
        Ok(Self::new(
            pairs
                .unwrap_or_default()
                .into_iter()
                .map(|(key, value)| (key, value.unwrap_or_default())),
        ))
    }
}

/// Makes equal texts share one block.
#[derive(Debug, Default)]
pub struct Interner(HashSet<Text>);

impl Interner {
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
        self.share(&mut labels.0);
    }

    /// Forgets blocks that nobody else holds. Worth calling after many objects went away.
    pub fn sweep(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }

    /// How many blocks are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no block is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads `null` as the default value: the API writes empty lists as `null`.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads an empty string as absent.
pub(crate) fn non_empty(text: Option<String>) -> Option<Text> {
    text.filter(|text| !text.is_empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
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
        let labels = Labels::new([("a", ""), ("b", "x")]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", ""), ("b", "x")]);
        assert_eq!(labels.get("a"), Some(""));
    }

    #[test]
    fn equal_blocks_are_shared_and_swept() {
        let mut interner = Interner::default();
        let (mut a, mut b) = (Labels::new([("app", "web")]), Labels::new([("app", "web")]));
        interner.share_labels(&mut a);
        interner.share_labels(&mut b);
        assert!(Arc::ptr_eq(&a.0, &b.0));
        drop((a, b));
        interner.sweep();
        assert!(interner.is_empty());
    }
}
