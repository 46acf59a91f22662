//! Is every file short, included in the usual way, and free of addresses of this machine's surroundings?

use crate::tokens::tokens;
use crate::{Tree, Violation};

const LONGEST: usize = 600;

pub(crate) fn stay_short(tree: &Tree) -> Vec<Violation> {
    let long = tree.rust().filter_map(|(path, text)| {
        let lines = text.lines().count();
        let what = || format!("{lines} lines, where {LONGEST} are the most: is a second noun hiding?");
        (lines > LONGEST).then(|| Violation::new(path, what()))
    });
    long.collect()
}

/// A file that several programs include is compiled several times; it belongs into a crate.
pub(crate) fn no_path_attribute(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust() {
        for window in tokens(text).windows(4) {
            if let ["#", "[", "path", "="] = window.each_text() {
                let what = format!("line {}: a module is included by its path", window[0].line);
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

trait Texts<'a> {
    fn each_text(&self) -> [&'a str; 4];
}

impl<'a> Texts<'a> for [crate::tokens::Token<'a>] {
    fn each_text(&self) -> [&'a str; 4] {
        std::array::from_fn(|at| self[at].text)
    }
}

/// Hosts that serve packages. Builds get them from wherever the user's own settings say.
const HOSTS: &[&str] = &[
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("registry.", "npmjs"),
    concat!("deb.", "debian.org"),
    concat!("proxy.", "golang.org"),
];

/// The only source that a lock file names.
const CANONICAL: &str = concat!("registry+https://github.com/rust-lang/", "crates.io-index");

pub(crate) fn no_registry(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files() {
        if path.contains(".cargo/config") {
            violations.push(Violation::new(path, "settings of cargo belong to the user"));
        }
        let lock = path.ends_with("Cargo.lock");
        for (line, content) in (1..).zip(text.lines()) {
            let named = HOSTS.iter().find(|host| content.contains(**host)).copied();
            let other = lock && content.starts_with("source = ") && !content.contains(CANONICAL);
            if let Some(host) = named.or(other.then_some("another registry")) {
                violations.push(Violation::new(path, format!("line {line} names {host}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(
            stay_short(&Tree::of(&[
                ("a.rs", &"\n".repeat(LONGEST + 1)),
                ("b.md", &"\n".repeat(9999))
            ]))
            .len(),
            1
        );
        assert_eq!(stay_short(&Tree::of(&[("a.rs", &"\n".repeat(LONGEST))])), []);
    }

    #[test]
    fn a_module_included_by_path_is_found() {
        assert_eq!(
            no_path_attribute(&Tree::of(&[("a.rs", "#[path = \"../b.rs\"]\nmod b;\n")])).len(),
            1
        );
        assert_eq!(
            no_path_attribute(&Tree::of(&[(
                "a.rs",
                "// #[path = \"b.rs\"]\n#[derive(A)]\nmod b;\n"
            )])),
            []
        );
    }

    #[test]
    fn a_registry_is_found() {
        let host = HOSTS[0];
        assert_eq!(
            no_registry(&Tree::of(&[("Makefile", &format!("fetch: https://{host}/\n"))])).len(),
            1
        );
        assert_eq!(no_registry(&Tree::of(&[(".cargo/config.toml", "")])).len(), 1);
        assert_eq!(
            no_registry(&Tree::of(&[(
                "Cargo.lock",
                "source = \"registry+https://example.org/\"\n"
            )]))
            .len(),
            1
        );
        assert_eq!(
            no_registry(&Tree::of(&[(
                "Cargo.lock",
                &format!("source = \"{CANONICAL}\"\n")
            )])),
            []
        );
    }
}
