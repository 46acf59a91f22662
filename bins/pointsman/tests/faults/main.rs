//! Does a whole cluster come through seeded faults?
//!
//! A few seeds here; `make test-faults` plays fifty, and any number with `SEEDS=N`.

use pointsman_testkit::require_netns;
use std::fs::File;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// Plays one seed and shows what it said if something is wrong.
fn play(seed: u64, runtime: &str) {
    let output = Command::new(PROGRAM)
        .args(["faults", "--seeds=1", &format!("--first-seed={seed}")])
        .args(["--runtime", runtime])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    assert!(said.contains("0 lost otherwise"), "{said}");
}

#[test]
fn a_cluster_comes_through_the_death_of_its_api_server() {
    require_netns!();
    play(14, "processes");
}

#[test]
fn a_cluster_comes_through_a_full_disk() {
    require_netns!();
    play(5, "processes");
}

#[test]
fn a_cluster_comes_through_the_death_of_a_container_runtime() {
    require_netns!();
    play(19, "containerd");
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(PROGRAM)
        .args(["load", "--target=127.0.0.1:1", "--duration=50ms", "--log=info"])
        .stdout(Stdio::null())
        .stderr(full)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
