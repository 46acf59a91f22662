//! How are namespaces made, connected and entered?
//!
//! [`Netns`] is a network namespace; [`Network`] is a connection to the kernel's routing tables in one.
//! All calls are synchronous and short. They need the capabilities SYS_ADMIN and NET_ADMIN over the
//! namespaces concerned.
//!
//! Invariant: no call changes the namespace of the calling thread. Work inside a namespace happens on a
//! thread made for it, or in a child between fork and exec.

mod claims;
mod error;
mod netns;
mod network;
mod prefix;
mod routes;
mod socket;

pub use claims::{Claim, Disbelief, settle};
pub use error::FabricError;
pub use netns::{Netns, RUN_DIR};
pub use network::{Link, Network};
pub use prefix::{ParsePrefixError, Prefix};
pub use routes::Route;
