//! What do tests of several crates share?
//!
//! - [`cluster`] says a cluster in a few lines and builds the proxy's index from it;
//! - [`cases`] is the table of packets and fates that every backend has to pass;
//! - [`etcd`] gives a test an etcd of its own;
//! - [`heap`] counts the bytes that what it makes takes;
//! - [`history`] makes random pasts;
//! - [`lab`] sends the packets of the cases through a real kernel;
//! - [`netns`] makes network namespaces for tests with a real kernel;
//! - [`skip`] is what a test that cannot run here does.

pub mod cases;
pub mod cluster;
pub mod etcd;
pub mod heap;
pub mod history;
pub mod lab;
pub mod netns;
pub mod skip;
