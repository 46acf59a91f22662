//! How do typed packet-filter values become netlink messages, and back?
//!
//! Three layers, each usable alone:
//!
//! - [`netlink`]: attributes and messages as bytes, error replies, and (feature `socket`) a raw socket;
//! - [`nft`]: tables, chains, rules, sets and elements of nf_tables. A [`nft::Transaction`] is a value that
//!   can be printed and compared; [`nft::Batch`] is its bytes; [`nft::Client`] commits them as one;
//! - [`conntrack`]: finding and deleting flows whose address translation went stale.
//!
//! Encoding never talks to the kernel and decoding never panics, whatever the bytes.

#[cfg(feature = "socket")]
pub mod conntrack;
pub mod netlink;
pub mod nft;
