//! Is this repository as ARCHITECTURE.md says?

use std::path::Path;

use pointsman_tidy::{CHECKS, Tree};

/// What is not true yet: a rule, the directory or file that breaks it, and why. An entry that is no longer needed fails
/// the test, too.
const NOT_YET: &[(&str, &str, &str)] = &[];

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let tree = Tree::read(&root).expect("the repository can be read");
    let mut problems = Vec::new();
    let mut needed = vec![false; NOT_YET.len()];
    for (rule, check) in CHECKS {
        for violation in check(&tree) {
            let excuse = NOT_YET
                .iter()
                .position(|(of, place, _)| of == rule && covers(place, &violation.place));
            match excuse {
                Some(at) => needed[at] = true,
                None => problems.push(format!("{rule}: {}: {}", violation.place, violation.what)),
            }
        }
    }
    let stale = NOT_YET.iter().zip(needed).filter(|(_, needed)| !needed);
    problems.extend(
        stale.map(|((rule, place, _), _)| format!("NOT_YET is too long: {place} keeps \"{rule}\" now")),
    );
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

fn covers(place: &str, path: &str) -> bool {
    path.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
