//! The process runtime against a real kernel: namespaces, cgroups, mounts and processes.
//!
//! Every test has a node of its own: a root directory and a network namespace. They need root.

mod exec;
mod faults;
mod harness;
mod life;
mod network;
mod planted;
mod recovery;
mod security;
mod volumes;
