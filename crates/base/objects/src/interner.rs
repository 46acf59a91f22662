//! How do many objects of one template share what they have in common?

use std::collections::HashSet;
use std::sync::Arc;

use crate::metadata::Metadata;
use crate::pod::Common;

/// Makes equal texts, and what pods have in common, share one block. One per cache of a kind.
#[derive(Debug, Default)]
pub struct Interner {
    pub texts: pointsman_model::Interner,
    pods: HashSet<Arc<Common>>,
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

    pub(crate) fn share_common(&mut self, common: &mut Arc<Common>) {
        match self.pods.get(common) {
            Some(known) => *common = known.clone(),
            None => {
                self.pods.insert(common.clone());
            }
        }
    }

    /// Forgets blocks that nobody else holds. Worth calling after many objects went away.
    pub fn sweep(&mut self) {
        self.texts.sweep();
        self.pods.retain(|common| Arc::strong_count(common) > 1);
    }

    /// Sweeps if as many blocks came since the last sweep as it left, so that memory follows what is held.
    pub fn sweep_if_grown(&mut self) {
        if self.len() > 2 * self.swept.max(FEW) {
            self.sweep();
            self.swept = self.len();
        }
    }

    pub fn len(&self) -> usize {
        self.texts.len() + self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
