//! Are decisions functions from values to values?

use crate::tokens::tokens;
use crate::{Tree, Violation};

const DECISIONS: &str = "crates/decisions/";

/// A dependency with one of these names, or whose name goes on after a dash or underscore, does not belong into a
/// decision: runtimes, serialization, HTTP, clients, the operating system.
const EDGES_ONLY: &[&str] = &[
    "async-std",
    "axum",
    "futures",
    "h2",
    "http",
    "httparse",
    "hyper",
    "k8s-openapi",
    "kube",
    "libc",
    "mio",
    "nix",
    "reqwest",
    "rustix",
    "rustls",
    "serde",
    "smol",
    "socket2",
    "tokio",
    "tonic",
    "tower",
    "tracing",
    "ureq",
];

/// What reads a clock.
const CLOCKS: &[[&str; 3]] = &[
    ["Instant", "::", "now"],
    ["SystemTime", "::", "now"],
    ["Timestamp", "::", "now"],
    ["Zoned", "::", "now"],
    ["Utc", "::", "now"],
];

pub(crate) fn stay_pure(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in tree
        .crates()
        .filter(|member| member.directory.starts_with(DECISIONS))
    {
        for dependency in &member.manifest.dependencies {
            if EDGES_ONLY.iter().any(|name| belongs_to(dependency, name)) {
                let what = format!("a decision must not need {dependency}");
                violations.push(Violation::new(&member.manifest_path(), what));
            }
        }
    }
    violations
}

fn belongs_to(dependency: &str, family: &str) -> bool {
    dependency
        .strip_prefix(family)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

/// Tests and examples may look at a clock, to have a first `now` or to measure.
pub(crate) fn read_no_clock(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_decision(path)) {
        let text = text
            .split_once("#[cfg(test)]\nmod tests {")
            .map_or(text, |(product, _)| product);
        let tokens = tokens(text);
        for window in tokens.windows(3) {
            if CLOCKS.contains(&[window[0].text, window[1].text, window[2].text]) {
                let what = format!("line {}: a decision gets `now` as an argument", window[0].line);
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

fn is_decision(path: &str) -> bool {
    path.starts_with(DECISIONS) && path.contains("/src/") && !path.ends_with("tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependencies(lines: &str) -> Vec<Violation> {
        let manifest = format!("[package]\nname = \"pointsman-nft\"\n[dependencies]\n{lines}");
        stay_pure(&Tree::of(&[("crates/decisions/nft/Cargo.toml", &manifest)]))
    }

    #[test]
    fn a_decision_may_need_hashes_and_errors() {
        assert_eq!(
            dependencies("sha2 = \"1\"\nthiserror = \"1\"\n[dev-dependencies]\nserde_json = \"1\"\n"),
            []
        );
    }

    #[test]
    fn runtimes_serialization_and_http_in_a_decision_are_found() {
        for name in [
            "tokio",
            "tokio-util",
            "serde",
            "serde_json",
            "hyper",
            "http",
            "http-body",
            "reqwest",
            "rustix",
        ] {
            assert_eq!(
                dependencies(&format!("{name}.workspace = true\n")).len(),
                1,
                "{name}"
            );
        }
    }

    fn clocks(path: &str, text: &str) -> Vec<Violation> {
        read_no_clock(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn a_clock_in_a_decision_is_found_with_its_line() {
        let found = clocks(
            "crates/decisions/nft/src/a.rs",
            "fn f() {\n    std::time::Instant::now();\n}\n",
        );
        assert_eq!(found.len(), 1);
        assert!(found[0].what.starts_with("line 2:"), "{found:?}");
        assert_eq!(
            clocks(
                "crates/decisions/nft/src/a.rs",
                "fn f() { Timestamp :: now (); }\n"
            )
            .len(),
            1
        );
    }

    #[test]
    fn clocks_in_comments_tests_and_edges_are_not_meant() {
        let text = "// Instant::now()\n#[cfg(test)]\nmod tests {\n    fn f() { Instant::now(); }\n}\n";
        assert_eq!(clocks("crates/decisions/nft/src/a.rs", text), []);
        assert_eq!(
            clocks("crates/decisions/nft/tests/a.rs", "fn f() { Instant::now(); }"),
            []
        );
        assert_eq!(
            clocks("crates/edges/proxy/src/a.rs", "fn f() { Instant::now(); }"),
            []
        );
    }
}
