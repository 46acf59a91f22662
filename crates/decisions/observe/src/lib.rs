//! Do the rules that another program writes say what they must?
//!
//! kube-proxy writes them, and we only look. [`nftables`] and [`iptables`] say for each Service what its rules
//! say once a state is in force, as a [`Statement`]: what is found at which [`Place`]. A [`Tracker`] holds the states that rules
//! have yet to say, compares them with what was read, and hands out how far all rules are.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests need a first `now` to count from")
)]

pub mod alarm;
pub mod iptables;
pub mod nftables;
pub mod pace;
pub mod place;
mod said;
pub mod tracker;

pub use place::{Chain, Content, Key, Map, Place, Statement};
pub use tracker::{Behind, Step, Tracker};
