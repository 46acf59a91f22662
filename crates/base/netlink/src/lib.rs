//! How do typed packet-filter values become netlink messages, and back?
//!
//! - [`netlink`]: attributes, messages and error replies as bytes;
//! - [`nft`]: tables, chains, rules, sets and elements of nf_tables. A [`nft::Transaction`] is a value that
//!   can be printed and compared; [`nft::Batch`] is its bytes;
//! - [`conntrack`]: tracked flows;
//! - [`xtables`]: tables of the older iptables interface.
//!
//! Pure: there is no socket here (`pointsman-netlink-io` has it), so decisions may use these types. Decoding
//! never panics, whatever the bytes.

pub mod accounting;
pub mod conntrack;
pub mod ipvs;
pub mod netlink;
pub mod nft;
pub mod xtables;
