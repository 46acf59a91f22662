//! What does each kind do to an object on its way in?
//!
//! The server runs, for every write: decode and schema check, [`Strategy::default`], [`Strategy::admit`],
//! [`Strategy::prepare_create`] or [`Strategy::prepare_update`], then validation. All of it is pure.

pub mod budget;
pub(crate) mod config_map;
pub(crate) mod config_node;
pub(crate) mod daemon_set;
pub(crate) mod declared;
pub(crate) mod deployment;
pub(crate) mod endpoint_slice;
pub(crate) mod endpoints;
pub mod equality;
pub(crate) mod event;
pub(crate) mod job;
pub(crate) mod lease;
#[cfg(test)]
pub(crate) mod mangled;
pub mod namespace;
pub(crate) mod network_policy;
pub(crate) mod node;
pub mod pod;
mod pod_template;
pub(crate) mod rbac;
pub(crate) mod replica_set;
pub mod secret;
pub(crate) mod service;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod workload_tests;

use crate::admission::tolerations::TolerationSeconds;
use crate::decode::StrictError;
use crate::field_error::FieldErrors;
use jiff::Timestamp;
use pointsman_model::FeatureGates;
use serde_json::Value;
use std::net::IpAddr;

/// What rules may depend on besides the objects themselves.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// The time of the request.
    pub now: Timestamp,
    /// Which gates are on.
    pub gates: &'a FeatureGates,
    /// What this cluster offers.
    pub cluster: &'a ClusterSettings,
}

/// Properties of the cluster that defaulting and validation depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Service ranges in order of preference: one per family, at most two, and then those that ServiceCIDRs add.
    pub service_ranges: Vec<IpRange>,
    /// First and last node port, inclusive.
    pub node_ports: (u16, u16),
}

/// A CIDR from which Services get their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpRange {
    /// The network address.
    pub network: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

impl std::fmt::Display for IpRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// Which half of an object a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself; status is kept from the stored one where the kind has a status subresource.
    Main,
    /// The status subresource; everything but status (and some metadata) is kept from the stored one.
    Status,
}

/// How a delete request takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// The object goes at once (finalizers aside).
    Now,
    /// The object stays, marked, for so many seconds.
    Seconds(i64),
}

/// The rules of one kind. Defaults suit a kind without status, grace or generation.
pub trait Strategy: Sync {
    /// Fills in what the client left out. Runs on every decoded object, before admission.
    fn default(&self, _object: &mut Value, _context: &Context<'_>) {}

    /// Drops the fields that the kind does not have, where it keeps no others, and names them.
    fn prune(&self, _object: &mut Value) -> Vec<StrictError> {
        Vec::new()
    }

    /// Adds what the cluster decides about a new object that its author left open.
    fn admit(&self, _object: &mut Value, _tolerations: TolerationSeconds) {}

    /// Clears what clients may not set on create (status, mostly) and drops gated fields.
    fn prepare_create(&self, _object: &mut Value, _context: &Context<'_>) {}

    /// Restores what this write may not change from `old`, and drops gated fields that `old` does
    /// not use. Metadata that no client may change is already restored by the server.
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _part: Part, _context: &Context<'_>) {}

    /// What is wrong with a new object, besides its metadata.
    fn validate_create(&self, _object: &Value, _context: &Context<'_>) -> FieldErrors {
        Vec::new()
    }

    /// What is wrong with a changed object, besides its metadata.
    fn validate_update(
        &self,
        _new: &Value,
        _old: &Value,
        _part: Part,
        _context: &Context<'_>,
    ) -> FieldErrors {
        Vec::new()
    }

    /// Which names are acceptable.
    fn name_rule(&self) -> crate::meta::NameRule {
        crate::meta::NameRule::DnsSubdomain
    }

    /// Whether PUT to a missing name creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// Whether PUT must carry a resourceVersion.
    fn update_needs_resource_version(&self) -> bool {
        false
    }

    /// The generation of a new object; `None` where the kind keeps no generation.
    fn first_generation(&self) -> Option<i64> {
        None
    }

    /// Whether the change from `old` to `new` counts as a new generation.
    fn bumps_generation(&self, _new: &Value, _old: &Value) -> bool {
        false
    }

    /// How a delete with an optional requested grace period takes effect on `object`.
    fn grace(&self, _object: &Value, _requested_seconds: Option<i64>) -> Grace {
        Grace::Now
    }

    /// The value of a selectable field, for field selectors; `None` if the kind does not know the
    /// field. `metadata.name` and `metadata.namespace` are answered by the server.
    fn selectable<'a>(&self, _object: &'a Value, _field: &str) -> Option<std::borrow::Cow<'a, str>> {
        None
    }

    /// Whether defaults and required fields are those of the schema.
    fn by_schema(&self) -> bool {
        false
    }

    /// Advice for the client that does not stop the write; sent as `Warning` headers.
    fn warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }
}

/// Replaces the top-level `field` of `new` by that of `old`, absence included.
pub(crate) fn keep(new: &mut Value, old: &Value, field: &str) {
    match crate::value::at(old, &[field]) {
        Some(value) => crate::value::set(new, &[field], value.clone()),
        None => drop(crate::value::remove(new, &[field])),
    }
}

/// The rules of a kind that has none of its own.
pub(crate) struct Plain;

impl Strategy for Plain {}
