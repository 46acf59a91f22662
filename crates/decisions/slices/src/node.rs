//! What do slices show of a node?

use std::collections::HashMap;

use pointsman_model::{Interner, Text};
use pointsman_objects::Node;

/// The part of a node that endpoints and hints show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub zone: Option<Text>,
    /// Allocatable CPU in thousandths; 0 when unknown.
    pub cpu_millis: u64,
    pub ready: bool,
    /// Does not count for hints.
    pub control_plane: bool,
    /// Other nodes do not reach it: its endpoints get no traffic as long as there are others.
    pub withdrawn: bool,
}

/// All nodes by name.
pub type Nodes = HashMap<Text, NodeFacts>;

impl NodeFacts {
    pub fn of(node: &Node, interner: &mut Interner) -> Self {
        Self {
            zone: node.zone().map(|zone| interner.intern(zone)),
            cpu_millis: node.cpu_millis,
            ready: node.is_ready(),
            control_plane: node.is_control_plane(),
            withdrawn: false,
        }
    }
}
