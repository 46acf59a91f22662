//! Which iptables rules make the kernel do what the dataplane decided?
//!
//! Rules are typed values ([`rule`]). [`service`] makes the rules of one Service, [`top`] the fixed ones,
//! [`plan`] the edits that bring the kernel from the programmed to the desired state, [`render`] the input
//! of `iptables-restore`, and [`walk`] says what the rules do to a packet. Nothing here runs a program;
//! [`fake`] is a kernel that lives in memory.
//!
//! The README draws a packet's journey through the chains.

pub mod fake;
pub mod full;
pub mod ledger;
pub mod name;
pub mod plan;
pub mod render;
pub mod rule;
pub mod saved;
pub mod service;
pub mod top;
pub mod transaction;
pub mod walk;

pub use ledger::Ledger;
pub use name::{ChainName, Table};
pub use plan::{Plan, Planner};
pub use rule::{Match, Rule, Target};
pub use saved::Inventory;
pub use transaction::Transaction;
