//! Runs an object through a strategy as the server does.

use super::{ClusterSettings, Context, IpRange, Part, Strategy};
use crate::net;
use jiff::Timestamp;
use pointsman_model::{Feature, FeatureGates};
use serde_json::Value;

/// A cluster with these Service ranges.
pub(crate) fn cluster(ranges: &[&str]) -> ClusterSettings {
    let range = |text: &&str| {
        let (network, prefix) = net::valid_cidr("range", text).expect("tests give well-formed ranges");
        IpRange { network, prefix }
    };
    ClusterSettings {
        service_ranges: ranges.iter().map(range).collect(),
        node_ports: (30000, 32767),
    }
}

/// What a test server is like.
pub(crate) struct World {
    pub gates: FeatureGates,
    pub cluster: ClusterSettings,
}

impl Default for World {
    fn default() -> Self {
        Self {
            gates: FeatureGates::default(),
            cluster: cluster(&["10.0.0.0/24"]),
        }
    }
}

impl World {
    /// A single-stack world with one gate set.
    pub fn with_gate(gate: Feature, on: bool) -> Self {
        Self {
            gates: FeatureGates::default().with(gate, on),
            ..Self::default()
        }
    }

    /// A world with these Service ranges.
    pub fn with_ranges(ranges: &[&str]) -> Self {
        Self {
            cluster: cluster(ranges),
            ..Self::default()
        }
    }

    fn context(&self) -> Context<'_> {
        Context {
            now: Timestamp::UNIX_EPOCH,
            gates: &self.gates,
            cluster: &self.cluster,
        }
    }

    /// The object as it would be stored by a create, and what is wrong with it.
    pub fn created(&self, strategy: &dyn Strategy, mut object: Value) -> (Value, Vec<String>) {
        let context = self.context();
        strategy.default(&mut object, &context);
        strategy.prepare_create(&mut object, &context);
        let errors = strategy.validate_create(&object, &context);
        (object, errors.iter().map(ToString::to_string).collect())
    }

    /// The object as it would be stored by an update, and what is wrong with it.
    pub fn updated(
        &self,
        strategy: &dyn Strategy,
        mut new: Value,
        old: &Value,
        part: Part,
    ) -> (Value, Vec<String>) {
        let context = self.context();
        strategy.default(&mut new, &context);
        strategy.prepare_update(&mut new, old, part, &context);
        let errors = strategy.validate_update(&new, old, part, &context);
        (new, errors.iter().map(ToString::to_string).collect())
    }
}

/// [`World::created`] in the default world.
pub(crate) fn created(strategy: &dyn Strategy, object: Value) -> (Value, Vec<String>) {
    World::default().created(strategy, object)
}

/// [`World::updated`] in the default world.
pub(crate) fn updated(strategy: &dyn Strategy, new: Value, old: &Value, part: Part) -> (Value, Vec<String>) {
    World::default().updated(strategy, new, old, part)
}
