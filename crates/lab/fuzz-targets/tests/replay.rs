//! Do the laws hold for every input that was ever worth keeping?

use pointsman_fuzz_targets::{TARGETS, Target};
use std::fs;
use std::path::{Path, PathBuf};

/// A corpus is for replaying, not for keeping everything.
const LARGEST: u64 = 500_000;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let directory = corpora().join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn replay(name: &str) {
    let target = Target::named(name).expect("a target");
    let inputs = inputs(name);
    assert!(inputs.len() >= 10, "{name} has {} inputs only", inputs.len());
    for path in inputs {
        // Printed when the test fails, and only then.
        eprintln!("{}", path.display());
        target.check(&fs::read(&path).unwrap());
    }
}

#[test]
fn requests() {
    replay("requests");
}

#[test]
fn patches() {
    replay("patches");
}

#[test]
fn tokens() {
    replay("tokens");
}

#[test]
fn selectors() {
    replay("selectors");
}

#[test]
fn protobuf() {
    replay("protobuf");
}

#[test]
fn netlink() {
    replay("netlink");
}

#[test]
fn iptables_save() {
    replay("iptables-save");
}

#[test]
fn watermarks() {
    replay("watermarks");
}

#[test]
fn probe_annotations() {
    replay("probe-annotations");
}

#[test]
fn kubeconfigs() {
    replay("kubeconfigs");
}

#[test]
fn dns() {
    replay("dns");
}

#[test]
fn links() {
    replay("links");
}

#[test]
fn runtime() {
    replay("runtime");
}

#[test]
fn every_corpus_has_a_target_and_together_they_are_small() {
    let mut bytes = 0;
    for entry in fs::read_dir(corpora()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(Target::named(&name).is_some(), "no target reads {name}");
    }
    for target in TARGETS {
        for path in inputs(target.name) {
            bytes += fs::metadata(path).unwrap().len();
        }
    }
    assert!(bytes <= LARGEST, "{bytes} bytes of inputs");
}
