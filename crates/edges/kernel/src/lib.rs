//! How do decided rules reach the Linux kernel?
//!
//! The edge below the proxy: it runs programs and talks to the kernel, and decides nothing. Errors are
//! interpreted here once, so that nobody above has to read a tool's messages.

pub mod compare;
pub mod conntrack;
pub mod features;
pub mod interfaces;
pub mod iptables;
pub mod iptables_backend;
pub mod memory;
pub mod nft_kernel;
pub mod nftables_backend;
pub mod sysctl;

mod program;
mod witness;
