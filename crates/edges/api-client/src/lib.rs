//! How do our roles talk to a Kubernetes API server, ours or a real one?
//!
//! Requests carry bytes and answers are read into whatever slim type the caller has: nothing here
//! knows a Pod. [`watch::Watcher`] keeps a caller's own store up to date through restarts and gaps,
//! [`election`] lets one of several replicas lead, [`events`] tells people what happened.

pub mod backoff;
pub mod client;
pub mod connect;
pub mod election;
pub mod error;
pub mod events;
pub mod lease;
mod list;
pub mod resource;
pub mod watch;

pub use client::{Api, Client, DeleteOptions, Patch};
pub use connect::{ConnectError, Source};
pub use error::{ApiError, Recovery, Status};
pub use resource::Resource;
pub use watch::{Event, ObjectKey, Scope, Watcher};
