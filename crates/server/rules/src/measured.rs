//! What is served that is measured at the moment of the question?
//!
//! Kinds that can be read and are never stored. Each is about the objects of a kind that is.

use crate::kind::{Kind, Scope};
use crate::kinds;

/// A kind of measurements.
#[derive(Debug, PartialEq, Eq)]
pub struct Measured {
    /// The `kind` field.
    pub kind: &'static str,
    /// The resource name in URLs: that of what is measured.
    pub plural: &'static str,
    pub scope: Scope,
}

/// Every kind of measurements.
pub static MEASURED: [Measured; 2] = [
    Measured {
        kind: "NodeMetrics",
        plural: "nodes",
        scope: Scope::Cluster,
    },
    Measured {
        kind: "PodMetrics",
        plural: "pods",
        scope: Scope::Namespaced,
    },
];

impl Measured {
    pub const GROUP: &str = "metrics.k8s.io";
    pub const VERSION: &str = "v1beta1";
    pub const VERBS: [&str; 2] = ["get", "list"];

    /// The kind of what is measured.
    pub fn of(&self) -> &'static Kind {
        match self.scope {
            Scope::Cluster => &kinds::NODE,
            Scope::Namespaced => &kinds::POD,
        }
    }

    /// Those of one group and version.
    pub fn of_group(group: &str, version: &str) -> impl Iterator<Item = &'static Measured> {
        let served = group == Self::GROUP && version == Self::VERSION;
        MEASURED.iter().filter(move |_| served)
    }
}
