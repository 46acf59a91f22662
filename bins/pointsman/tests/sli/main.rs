//! The collector against a running API server, with programmers that say what the test wants.

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

mod browser;
mod gate;
mod killed;
mod measured;
mod page;
mod programmer;
mod site;
