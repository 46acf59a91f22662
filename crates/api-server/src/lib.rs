//! The embedded, Kubernetes-compatible API server.

pub mod auth;
