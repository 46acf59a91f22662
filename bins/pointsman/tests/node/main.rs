//! The node agent with real processes, in a network namespace of its own: needs root, and says so where it
//! has to skip.

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

mod lab;
mod logs;
mod probes;
mod restart;
