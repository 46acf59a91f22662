//! Which version of the Kubernetes API does this server speak?

use serde_json::{Value, json};

/// The Kubernetes minor version whose behaviour is followed; kubectl warns when it is too far from its own.
pub const MINOR: &str = "33";

/// The answer to `/version`.
pub fn document() -> Value {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "major": "1",
        "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+pointsman-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{arch}", std::env::consts::OS),
    })
}
