//! What does a node's lease say?

use pointsman_model::{Moment, Text};
use pointsman_objects::Lease;

/// A node's lease, renewed or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The node's name.
    pub node: Text,
    /// Resource version, 0 when it is not a number.
    pub revision: u64,
    /// Renewal time by the node's clock; only compared, never read.
    pub renewed: Option<Moment>,
}

impl Renewal {
    pub fn of(lease: &Lease) -> Self {
        Self {
            node: lease.metadata.name.clone(),
            revision: lease.metadata.revision().0,
            renewed: lease.spec.renew_time.map(|time| Moment::from(time.0)),
        }
    }
}
