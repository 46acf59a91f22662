//! How do decided rules reach the Linux kernel?
//!
//! The edge below the proxy: [`Mode::open`] gives a `pointsman_dataplane::Programmer` that runs programs
//! ([`iptables_backend`]) or talks netlink ([`nftables_backend`]). It decides nothing. Errors are interpreted here once,
//! so that nobody above has to read a tool's messages.

pub mod compare;
pub mod conntrack;
pub mod counters;
pub mod features;
pub mod interfaces;
pub mod iptables;
pub mod iptables_backend;
pub mod ipvs;
pub mod memory;
pub mod nftables_backend;
pub mod observed;
pub mod others;
pub mod resets;
pub mod sysctl;

mod clean_up;
mod commits;
mod mode;
mod outside;
mod program;
mod variant;

#[cfg(test)]
mod tests;

pub use clean_up::{OwnRules, clean_up, clean_up_own};
pub use commits::Commits;
pub use mode::Mode;
