//! Runs the target that `FUZZ_TARGET` names under libFuzzer.
#![no_main]

use pointsman_fuzz_targets::{TARGETS, Target};
use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|input: &[u8]| target().check(input));

fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        Target::named(&name).unwrap_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            panic!("FUZZ_TARGET={name:?} is none of {}", known.join(", "))
        })
    })
}
