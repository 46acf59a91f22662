//! The shim alone, for tests and for hosts that want it smaller than the whole program.

use std::process::ExitCode;

fn main() -> ExitCode {
    pointsman_runtime::shim::run_if_asked().unwrap_or_else(|| {
        eprintln!("usage: pointsman-shim shim DIRECTORY (started by the node agent, not by hand)");
        ExitCode::FAILURE
    })
}
