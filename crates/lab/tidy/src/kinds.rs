//! Is each watched Kubernetes kind read by one type?

use crate::tokens::{Token, tokens};
use crate::{Tree, Violation};

/// Where watched objects are defined.
const HOME: &str = "crates/base/objects/";

/// The kinds that roles watch, and what all of them share.
const WATCHED: &[&str] = &[
    "ConfigMap",
    "DaemonSet",
    "Deployment",
    "EndpointSlice",
    "Endpoints",
    "Lease",
    "Metadata",
    "Node",
    "ObjectMeta",
    "Pod",
    "ReplicaSet",
    "Service",
];

/// A type that reads JSON counts, also behind a name such as `RawPod` or `PodObject`; a domain value or a strategy
/// that happens to be called `Pod` does not.
pub(crate) fn one_definition(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.starts_with(HOME)) {
        for definition in definitions(&tokens(text)) {
            if let Some(kind) = kind(definition.text) {
                let Token { text, line } = definition;
                let what =
                    format!("line {line}: {text} reads a {kind} a second time; {HOME} has the one reading");
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

fn kind(name: &str) -> Option<&'static str> {
    let plain = name
        .trim_start_matches("Raw")
        .trim_start_matches("Wire")
        .trim_end_matches("Object");
    WATCHED.iter().copied().find(|kind| *kind == plain)
}

/// The names of types that derive or implement `Deserialize`.
fn definitions<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut found = Vec::new();
    let mut derived = false;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].text {
            "#" => {
                let end = closing(tokens, at + 1);
                derived |= tokens[at..end].iter().any(|token| token.text == "Deserialize");
                at = end;
            }
            "pub" | "crate" | "(" | ")" | "super" | "in" => {}
            "struct" | "enum" => {
                found.extend(tokens.get(at + 1).filter(|_| derived));
                derived = false;
            }
            "impl" => {
                let head = tokens[at..]
                    .iter()
                    .take_while(|token| token.text != "{" && token.text != ";");
                let head: Vec<_> = head.copied().collect();
                let read = head.iter().position(|token| token.text == "Deserialize");
                let target = head.iter().position(|token| token.text == "for");
                if let (Some(read), Some(target)) = (read, target)
                    && read < target
                {
                    found.extend(self_type(&head[target + 1..]));
                }
                derived = false;
                at += head.len();
                continue;
            }
            _ => derived = false,
        }
        at += 1;
    }
    found
}

/// The last name of a path: `Pod` of `model::Pod<'a>`.
fn self_type<'a>(tokens: &[Token<'a>]) -> Option<Token<'a>> {
    let path = tokens
        .iter()
        .take_while(|token| token.text != "<" && token.text != "where");
    path.filter(|token| token.text != "::" && token.text != "&")
        .last()
        .copied()
}

/// The place of the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "[" => depth += 1,
            "]" if depth == 1 => return at,
            "]" => depth -= 1,
            _ => {}
        }
    }
    tokens.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> usize {
        one_definition(&Tree::of(&[(path, text)])).len()
    }

    const DERIVED: &str =
        "/// A pod.\n#[derive(Debug, serde::Deserialize)]\n#[serde(default)]\npub(crate) struct Pod {}\n";

    #[test]
    fn a_second_reading_is_found() {
        assert_eq!(check("crates/edges/proxy/src/a.rs", DERIVED), 1);
        assert_eq!(
            check(
                "bins/pointsman/tests/a.rs",
                "#[derive(Deserialize)] struct RawMetadata<'a> {}"
            ),
            1
        );
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "impl<'de> Deserialize<'de> for wire::Node<'de> {}"
            ),
            1
        );
    }

    #[test]
    fn the_one_reading_and_other_types_are_not() {
        assert_eq!(check("crates/base/objects/src/pod.rs", DERIVED), 0);
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "#[derive(Deserialize)] struct Step;\nstruct Pod;"
            ),
            0
        );
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "impl Strategy for Pod {}\nimpl Deserialize for Step {}"
            ),
            0
        );
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "// #[derive(Deserialize)]\nstruct Pod;"
            ),
            0
        );
    }
}
