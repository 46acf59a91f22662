//! Who is calling, may they, and how many at once?
//!
//! Credentials become a [`User`] ([`authn`]), a request becomes [`rbac::Attributes`], and three
//! pure decisions follow: does a rule allow it ([`rbac`]), does it stay within the caller's own
//! node ([`node_restriction`]), and which share of the server may it use ([`flow`]). The key
//! material behind all this is made by [`pki`] and handed out as kubeconfig files.
//!
//! Invariants:
//! - Nothing here reads a clock: `now` is an argument. Only `pki`, `kubeconfig` and `tls` touch
//!   files, and only `flow` waits.
//! - Private keys and tokens appear in no log line and no `Debug` output.

pub mod accounts;
pub mod authn;
pub mod bootstrap;
pub mod files;
pub mod flow;
pub mod impersonation;
pub mod keyring;
pub mod kubeconfig;
pub mod node_graph;
pub mod node_restriction;
mod node_volumes;
pub mod pki;
pub mod rbac;
pub mod reviews;
mod roles;
pub mod tls;
pub mod tokens;

pub use authn::{Authenticator, User};
pub use rbac::{Attributes, Decision, Policy};
