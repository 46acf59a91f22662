//! Does every test that is not run say so where it is counted?

use crate::tokens::literals;
use crate::{Tree, Violation};

/// The one way to skip a test.
const SKIP: &str = "crates/lab/testkit/src/skip.rs";

/// A test that prints that it is skipped, and passes, is not counted.
pub(crate) fn go_through_the_testkit(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree
        .rust()
        .filter(|(path, _)| *path != SKIP && !is_this_crate(path))
    {
        for literal in literals(text)
            .iter()
            .filter(|literal| literal.text.contains("\"skipped:"))
        {
            let what = format!("line {}: use the testkit's `skip`", literal.line);
            violations.push(Violation::new(path, what));
        }
    }
    violations
}

/// A test is left out of runs only for a program from outside, and names the variable that names the program.
pub(crate) fn name_what_is_needed(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !is_this_crate(path)) {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let named = line.starts_with("#[ignore = \"needs PEER_");
            if line.starts_with("#[ignore") && !named {
                let what = format!("line {}: write `#[ignore = \"needs PEER_…\"]`", number + 1);
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

fn is_this_crate(path: &str) -> bool {
    path.starts_with("crates/lab/tidy/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "bins/pointsman/tests/node/lab.rs";

    #[test]
    fn a_test_that_skips_itself_is_found() {
        let found = |path, text| go_through_the_testkit(&Tree::of(&[(path, text)])).len();
        let alone = "fn f() {\n    eprintln!(\"skipped: a node needs root\");\n}\n";
        assert_eq!(found(TEST, alone), 1);
        assert_eq!(found(SKIP, alone), 0);
        assert_eq!(
            found(TEST, "fn f() { skip(\"a node needs root\") } // skipped: no"),
            0
        );
    }

    #[test]
    fn a_test_that_is_not_run_without_a_reason_is_found() {
        let found = |text| name_what_is_needed(&Tree::of(&[(TEST, text)])).len();
        assert_eq!(found("#[test]\n#[ignore]\nfn f() {}\n"), 1);
        assert_eq!(found("#[test]\n#[ignore = \"flaky\"]\nfn f() {}\n"), 1);
        assert_eq!(found("#[test]\n#[ignore = \"needs PEER_KCM\"]\nfn f() {}\n"), 0);
    }
}
