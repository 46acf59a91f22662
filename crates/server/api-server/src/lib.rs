//! A Kubernetes-compatible API server over a revisioned store.
//!
//! The flow of a write: [`dispatch`] routes, authenticates and authorizes it; [`mod@write`] computes the
//! next version by the rules of `pointsman-rules` and commits it; the store's watch brings it back into
//! the [`cache`], encoded once, from where [`read`] serves `get`, `list` and every watcher.

pub mod access;
pub mod admit;
pub mod audit;
pub mod auth;
pub mod background;
pub mod cache;
pub mod config;
pub mod connect;
pub mod dispatch;
pub mod documents;
pub mod encryption;
pub mod health;
pub mod http;
pub mod identities;
pub mod keys;
pub mod listen;
pub mod metrics;
pub mod node_client;
pub mod read;
pub mod reply;
pub mod request;
pub mod run;
pub mod server;
pub mod settings;
pub mod stored;
pub mod version;
pub mod work;
pub mod write;

pub use config::{Config, StoreChoice};
pub use run::{Running, StartError, start};
