//! How do many objects of one template share what they have in common?

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use crate::metadata::Metadata;
use crate::pod::{NamedPort, NodeSelectorTerm};
use crate::taint::Toleration;

/// Makes equal texts and lists share one block. One per cache of a kind.
#[derive(Debug, Default)]
pub struct Interner {
    pub texts: pointsman_model::Interner,
    pub(crate) tolerations: Lists<Toleration>,
    pub(crate) ports: Lists<NamedPort>,
    pub(crate) terms: Lists<NodeSelectorTerm>,
    /// How many blocks the last sweep left.
    swept: usize,
}

/// Fewer blocks are not worth a sweep.
const FEW: usize = 1024;

impl Interner {
    pub fn share_metadata<K>(&mut self, metadata: &mut Metadata<K>) {
        self.texts.share(&mut metadata.namespace);
        self.texts.share_labels(&mut metadata.labels);
        for owner in &mut metadata.owner_references {
            self.texts.share(&mut owner.api_version);
            self.texts.share(&mut owner.kind);
            self.texts.share(&mut owner.name);
            self.texts.share(&mut owner.uid);
        }
    }

    /// Forgets blocks that nobody else holds. Worth calling after many objects went away.
    pub fn sweep(&mut self) {
        self.texts.sweep();
        self.tolerations.sweep();
        self.ports.sweep();
        self.terms.sweep();
    }

    /// Sweeps if as many blocks came since the last sweep as it left, so that memory follows what is held.
    pub fn sweep_if_grown(&mut self) {
        if self.len() > 2 * self.swept.max(FEW) {
            self.sweep();
            self.swept = self.len();
        }
    }

    pub fn len(&self) -> usize {
        self.texts.len() + self.tolerations.0.len() + self.ports.0.len() + self.terms.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Lists of which equal ones share memory.
#[derive(Debug)]
pub(crate) struct Lists<T>(HashSet<Arc<[T]>>);

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: Eq + Hash> Lists<T> {
    pub fn share(&mut self, list: &mut Arc<[T]>) {
        match self.0.get(list) {
            Some(known) => *list = known.clone(),
            None => {
                self.0.insert(list.clone());
            }
        }
    }

    fn sweep(&mut self) {
        self.0.retain(|list| Arc::strong_count(list) > 1);
    }
}
