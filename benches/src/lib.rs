//! What do measurements share?
//!
//! Each program here is a bench target of its own: `cargo bench -p pointsman-benches --bench api -- ARGUMENTS`.

pub mod client;
pub mod kubeconfig;
pub mod latency;
pub mod nodes;
pub mod process;
pub mod server;
pub mod synthetic;

use std::path::Path;

/// The arguments of the program, whose relative paths are those of the repository's root from now on.
///
/// `cargo bench` starts programs in the directory of their package and adds `--bench` to their arguments.
pub fn arguments() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Somewhere else than where it was built, paths are those of whoever starts it.
    let _ = std::env::set_current_dir(root);
    let all = std::env::args().skip(1);
    all.filter(|argument| argument != "--bench").collect()
}
