//! The loops against a running API server: real processes, real sockets, kubectl where people use it.

#[path = "../api/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of the API server, which use more of it"
)]
mod harness;
#[path = "../api/wire.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of the API server, which use more of it"
)]
mod wire;

mod cluster;
mod daemons;
mod differential;
mod faults;
mod fleet;
mod gate;
mod nodes;
mod ranges;
mod rollout;
mod slices;
