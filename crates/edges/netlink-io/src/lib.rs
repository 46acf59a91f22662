//! How do netlink messages reach the kernel, and what did it answer?
//!
//! The sockets behind `pointsman-netlink`, whose types say what is sent: [`Client`] commits and lists nf_tables, [`Notices`] follows
//! what others commit,
//! [`Conntrack`] lists and deletes flows, [`Accounting`] reads counters, [`ipvs`] removes what kube-proxy's IPVS mode made,
//! and [`Tables`] reads what was written by the older iptables interface.

mod accounting;
mod conntrack;
pub mod ipvs;
mod nft;
mod notices;
mod socket;
mod xtables;

pub use accounting::Accounting;
pub use conntrack::Conntrack;
pub use nft::{Client, CommitError};
pub use notices::Notices;
pub use socket::{Buffers, RequestError, SocketError};
pub use xtables::{Read, Tables};
