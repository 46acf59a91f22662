//! How do our roles talk to a Kubernetes API server, ours or a real one?
//!
//! Requests carry bytes and answers are read into whatever slim type the caller has: nothing here
//! knows a Pod. [`watch::Watcher`] keeps a caller's own store up to date through restarts and gaps,
//! [`Reflector`] does so for several readers in one process with one watch,
//! [`election`] lets one of several replicas lead, [`events`] tells people what happened.

pub mod backoff;
pub mod client;
pub mod connect;
pub mod election;
pub mod error;
pub mod events;
pub mod kubeconfig;
pub mod lease;
mod list;
pub mod reflector;
mod request_metrics;
pub mod resource;
pub mod rights;
#[cfg(test)]
mod script;
pub mod watch;

pub use client::{Api, Client, DeleteOptions, Patch};
pub use connect::{ConnectError, Source};
pub use error::{ApiError, Recovery, Status};
pub use reflector::Reflector;
pub use request_metrics::RequestMetrics;
pub use resource::Resource;
pub use rights::Rights;
pub use watch::{Event, ObjectKey, Scope, Watcher};
