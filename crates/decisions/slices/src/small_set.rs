//! How are sets kept of which nearly every one has a few items?
//!
//! A cluster has two or three sets for each Service, most of them of one item. The table of a `HashSet` has room for at
//! least three, and its own part of a map's entry is twice as large.

use std::collections::HashSet;
use std::hash::Hash;

/// Up to so many items are looked through one by one.
const FEW: usize = 8;

/// A set that is small as long as it has few items.
#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "in place it would make every small set twice as large"
)]
pub(crate) enum SmallSet<T> {
    Few(Vec<T>),
    Many(Box<HashSet<T>>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<T: Eq + Hash> SmallSet<T> {
    pub fn insert(&mut self, item: T) {
        match self {
            Self::Few(items) if items.contains(&item) => {}
            Self::Few(items) if items.len() < FEW => {
                items.reserve_exact(1);
                items.push(item);
            }
            Self::Few(items) => *self = Self::Many(Box::new(items.drain(..).chain([item]).collect())),
            Self::Many(items) => {
                items.insert(item);
            }
        }
    }

    pub fn remove(&mut self, item: &T) {
        match self {
            Self::Few(items) => items.retain(|known| known != item),
            Self::Many(items) => {
                items.remove(item);
            }
        }
    }

    pub fn contains(&self, item: &T) -> bool {
        match self {
            Self::Few(items) => items.contains(item),
            Self::Many(items) => items.contains(item),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (few, many) = match self {
            Self::Few(items) => (Some(items.iter()), None),
            Self::Many(items) => (None, Some(items.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Few(items) => items.len(),
            Self::Many(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Eq + Hash> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = Self::default();
        items.into_iter().for_each(|item| set.insert(item));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_same_set_whatever_its_size(steps in proptest::collection::vec((any::<bool>(), 0..16u8), 0..60)) {
            let (mut small, mut plain) = (SmallSet::default(), HashSet::new());
            for (insert, item) in steps {
                if insert {
                    small.insert(item);
                    plain.insert(item);
                } else {
                    small.remove(&item);
                    plain.remove(&item);
                }
                prop_assert_eq!((small.len(), small.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert!((0..16).all(|item| small.contains(&item) == plain.contains(&item)));
                prop_assert_eq!(small.iter().copied().collect::<HashSet<u8>>(), plain.clone());
            }
        }
    }
}
