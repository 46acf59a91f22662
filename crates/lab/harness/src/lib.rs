//! How does a test get the real program, as processes of its own?
//!
//! [`Server`] is an API server on a temporary directory, [`wire`] speaks plain HTTP to it, and [`cluster`] adds
//! controllers and a fake kubelet; [`attack`] means ill, and [`Probed`] notes when it is probed. Nothing of these knows how the program works inside. [`agent`] has the parts of a
//! node in the test's own process instead, on a runtime that only pretends; [`containerd`] starts the one with real images,
//! and [`browser`] a real browser.

pub mod agent;
pub mod attack;
pub mod browser;
pub mod cluster;
pub mod containerd;
pub mod flood;
pub mod http2;
mod probed;
mod server;
pub mod wire;

pub use probed::Probed;
pub use server::{BARE, SOON, Server, config_map, eventually, pod, quiet_port, token_file};

use std::path::PathBuf;

/// The program under test. Whoever runs the tests says where it is; otherwise it lies beside their directory, as
/// Cargo builds them.
pub fn program() -> PathBuf {
    let given = [
        "POINTSMAN",
        "NEXTEST_BIN_EXE_pointsman",
        "CARGO_BIN_EXE_pointsman",
    ];
    if let Some(program) = given.into_iter().find_map(std::env::var_os) {
        return program.into();
    }
    let tests = std::env::current_exe().expect("a test has a path");
    let built = tests
        .ancestors()
        .nth(2)
        .expect("tests lie in a directory of the program's");
    built.join("pointsman")
}
