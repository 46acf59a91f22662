//! What were the objects at revision R, and what changed after it?

use crate::history::{Content, Key, Revision};
use crate::linearize::Change;

/// All changes in their order.
pub struct Timeline {
    keys: usize,
    changes: Vec<Change>,
    /// Those whose revision is known, by revision.
    known: Vec<Change>,
}

impl Timeline {
    pub fn new(keys: usize, changes: Vec<Change>) -> Self {
        let known = changes.iter().filter(|change| change.revision.is_some());
        let known = known.copied().collect();
        Self { keys, changes, known }
    }

    pub fn known(&self) -> &[Change] {
        &self.known
    }

    /// The position of the first known change after a revision.
    pub fn after(&self, revision: Revision) -> usize {
        let past = |change: &Change| change.revision.is_some_and(|own| own <= revision);
        self.known.partition_point(past)
    }

    /// What an object may have been at a revision; more than one thing if nobody saw a change of it.
    fn at(&self, revision: Revision, key: Key) -> Vec<Option<Content>> {
        let mut possible = vec![None];
        for change in self.changes.iter().filter(|change| change.key == key) {
            match change.revision {
                Some(own) if own > revision => break,
                Some(_) => possible = vec![change.after],
                None => possible.push(change.after),
            }
        }
        possible
    }

    /// Whether these were all the objects at a revision, of those that are covered.
    pub fn was(
        &self,
        revision: Revision,
        covered: impl Fn(Content) -> bool,
        shown: impl Fn(Key) -> Option<Content>,
    ) -> bool {
        (0..self.keys).map(Key).all(|key| {
            let possible = self.at(revision, key).into_iter();
            let mut possible = possible.map(|content| content.filter(|content| covered(*content)));
            possible.any(|content| content == shown(key))
        })
    }
}
