//! Which pods and ReplicaSets should there be, where should pods run, and which are leftovers?
//!
//! The loops that a rolling update and a daemon need, as decisions: values in, values out, with `now` as an
//! argument. The controllers crate carries them to an API server.

pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod expectations;
pub mod gc;
pub mod job;
pub mod ownership;
pub mod replicaset;
pub mod scheduler;
pub mod statefulset;
