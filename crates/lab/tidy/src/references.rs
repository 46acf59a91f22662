//! Do the files and tests exist that documents name?

use crate::{Tree, Violation};

/// Looks at the relative links of every Markdown file, at paths such as `crates/base/model`, and at tests given as
/// `crates/base/model/src/name.rs::a_name_is_checked`.
pub(crate) fn exist(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        for (line, content) in (1..).zip(text.lines()) {
            let broken = links(content)
                .filter(|link| !tree.has(&resolve(directory, link)))
                .map(str::to_owned);
            let gone = paths(content)
                .filter(|named| !named_exists(tree, named))
                .map(str::to_owned);
            for name in broken.chain(gone) {
                violations.push(Violation::new(
                    path,
                    format!("line {line}: {name} does not exist"),
                ));
            }
        }
    }
    violations
}

/// `target` of each `](target)` that is a path.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains(":") && !target.starts_with('#'));
    files.map(|target| target.split('#').next().unwrap_or(target))
}

/// Words that begin like a path of ours. Patterns with `*` or `{` are left alone.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|letter: char| letter.is_whitespace() || "`()[],;\"'|".contains(letter));
    let words = words.map(|word| word.trim_end_matches(['.', ':', '/']));
    words.filter(|word| {
        let ours = ["crates/", "bins/", "benches/", "tools/", "docs/"]
            .iter()
            .any(|start| word.starts_with(start));
        ours && !word.contains(['*', '{', '<', '…'])
    })
}

fn named_exists(tree: &Tree, named: &str) -> bool {
    match named.split_once("::") {
        None => tree.has(named.split(['#', ':']).next().unwrap_or(named)),
        Some((file, item)) => {
            let name = item.rsplit("::").next().unwrap_or(item);
            tree.text(file).is_some_and(|text| defines(text, name))
        }
    }
}

/// Whether a function, type or constant of this name is in the text.
fn defines(text: &str, name: &str) -> bool {
    let words = |line: &str| {
        let mut words = line.split(|letter: char| letter != '_' && !letter.is_alphanumeric());
        words.any(|word| word == name)
    };
    let opens = [
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "const ",
        "static ",
        "type ",
        "mod ",
        "macro_rules! ",
    ];
    text.lines()
        .any(|line| opens.iter().any(|open| line.contains(open)) && words(line))
}

/// `target` as seen from `directory`.
fn resolve(directory: &str, target: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("README.md", ""),
            (
                "crates/base/model/src/name.rs",
                "#[test]\nfn a_name_is_checked() {}\n",
            ),
            ("docs/up.md", text),
        ]);
        exist(&tree).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn names_of_what_is_gone_are_found() {
        assert_eq!(check("\n[a](down.md)"), ["line 2: down.md does not exist"]);
        assert_eq!(
            check("see `crates/model/src`."),
            ["line 1: crates/model/src does not exist"]
        );
        assert_eq!(
            check("`crates/base/model/src/name.rs::a_name_is_not_checked`"),
            ["line 1: crates/base/model/src/name.rs::a_name_is_not_checked does not exist"]
        );
    }

    #[test]
    fn what_exists_may_be_named() {
        let text = "[a](up.md#b) [c](../README.md) [d](https://e.org) `crates/base/model`,\n\
                    `crates/base/model/src/name.rs::a_name_is_checked` and crates/*/*";
        assert!(check(text).is_empty(), "{:?}", check(text));
    }
}
