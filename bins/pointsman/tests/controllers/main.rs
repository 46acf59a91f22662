//! The loops against a running API server: real processes, real sockets, kubectl where people use it.

mod daemons;
mod differential;
mod disruption;
mod faults;
mod fleet;
mod gate;
mod jobs;
mod mirror;
mod nodes;
mod ranges;
mod readers;
mod rollout;
mod slices;
mod stateful;
mod watches;
