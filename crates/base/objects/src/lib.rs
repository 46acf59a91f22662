//! What do the Kubernetes objects that we watch say?
//!
//! Every watched kind has one type here, with the only serde of it in the tree. A field that no role
//! reads is skipped while parsing; `null` reads as absent, as Go writes it; a field that cannot be read
//! costs itself and not the object, unless its doc says otherwise. Where a field may be absent, what its
//! absence means is decided by a method of the type and nowhere else.
//!
//! A role that has to keep or parse less than the whole reads a *projection*, defined beside the type
//! ([`compact`] for the proxy, [`pod_manifest`] for the node that runs a pod), and a law in `tests/` says
//! that both agree on every field they share.

pub mod compact;
pub mod condition;
pub mod config_map;
pub mod config_node;
pub mod disruption;
pub mod endpoint_slice;
pub mod endpoints;
pub mod event;
pub mod interner;
pub mod job;
pub mod lease;
pub mod metadata;
pub mod names;
pub mod node;
pub mod pod;
pub mod pod_manifest;
pub mod pod_status;
pub mod port;
pub mod probe;
mod read;
pub mod service;
pub mod slice_body;
pub mod stateful_set;
pub mod taint;
pub mod template;
pub mod value;
pub mod workload;
pub mod write_time;

pub use condition::{Condition, ConditionStatus};
pub use config_map::ConfigMap;
pub use config_node::ConfigNode;
pub use disruption::PodDisruptionBudget;
pub use endpoint_slice::EndpointSlice;
pub use event::Event;
pub use interner::Interner;
pub use job::Job;
pub use lease::Lease;
pub use metadata::{Metadata, OwnerReference};
pub use node::Node;
pub use pod::Pod;
pub use read::nullable;
pub use service::Service;
pub use stateful_set::{ControllerRevision, StatefulSet};
pub use workload::{DaemonSet, Deployment, ReplicaSet};
pub use write_time::WriteTimes;
