//! How do pods of a cluster that has kubelets get sub-second readiness?
//!
//! A pod that lists the readiness gate [`GATE`] and says in its annotation [`ANNOTATION`] how it is to
//! be probed is probed by us, beside the kubelet of its node. We own one condition of the pod's
//! status, that of the gate, and write nothing else; the kubelet makes the pod ready when that
//! condition and its own are true.
//!
//! Invariants:
//! - A patch holds our condition and the pod's UID, nothing more.
//! - A pod that was ready when we started stays so until its probe says otherwise.
//! - Of several changes while a patch is under way, only the last is sent.

pub mod annotation;
mod metrics;
mod run;
mod tracked;
mod view;

pub use annotation::{ANNOTATION, BadAnnotation};
pub use metrics::describe as describe_metrics;
pub use run::{Config, Error, run};
pub use view::GATE;
