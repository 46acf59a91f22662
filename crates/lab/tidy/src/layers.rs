//! Do dependencies point down only?

use std::collections::BTreeMap;

use crate::{Tree, Violation};

/// From the bottom to the top. A crate may need crates of its own layer and of those below.
const LAYERS: &[&str] = &[
    "crates/base",
    "crates/decisions",
    "crates/edges",
    "crates/server",
    "crates/lab",
    "bins",
    "benches",
    "fuzz",
];

pub(crate) fn point_down(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut places = BTreeMap::new();
    for member in tree.crates() {
        match layer(member.directory) {
            Some(layer) => _ = places.insert(member.manifest.package, layer),
            None => violations.push(Violation::new(
                &member.manifest_path(),
                "the crate is in none of the layers",
            )),
        }
    }
    for member in tree.crates() {
        let Some(own) = layer(member.directory) else {
            continue;
        };
        for dependency in &member.manifest.dependencies {
            if let Some(other) = places.get(dependency).filter(|other| **other > own) {
                let (own, other) = (LAYERS[own], LAYERS[*other]);
                let what = format!("{own} must not need {dependency}, which is above it in {other}");
                violations.push(Violation::new(&member.manifest_path(), what));
            }
        }
    }
    violations
}

fn layer(directory: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| {
        directory
            .strip_prefix(layer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: (&str, &str) = (
        "crates/edges/proxy/Cargo.toml",
        "[package]\nname = \"pointsman-proxy\"\n[dependencies]\npointsman-nft.workspace = true\n",
    );

    #[test]
    fn an_edge_may_need_a_decision() {
        let decision =
            "[package]\nname = \"pointsman-nft\"\n[dev-dependencies]\npointsman-proxy.workspace = true\n";
        assert_eq!(
            point_down(&Tree::of(&[EDGE, ("crates/decisions/nft/Cargo.toml", decision)])),
            []
        );
    }

    #[test]
    fn a_decision_that_needs_an_edge_is_found() {
        let decision =
            "[package]\nname = \"pointsman-nft\"\n[dependencies]\npointsman-proxy.workspace = true\n";
        let found = point_down(&Tree::of(&[EDGE, ("crates/decisions/nft/Cargo.toml", decision)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/decisions/nft/Cargo.toml");
        assert!(found[0].what.contains("pointsman-proxy"), "{found:?}");
    }

    #[test]
    fn a_crate_outside_of_the_layers_is_found() {
        let found = point_down(&Tree::of(&[(
            "crates/misc/Cargo.toml",
            "[package]\nname = \"misc\"\n",
        )]));
        assert_eq!(found.len(), 1);
    }
}
