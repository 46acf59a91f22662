//! Do the documents cover the crates, and does documentation say more than names do?

use crate::{Tree, Violation};

const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Crates with more lines of Rust than this have a README.
const LARGE: usize = 2_000;

/// A row of the table names crates in its first cell and ends the second one with a question mark.
pub(crate) fn crates_have_questions(tree: &Tree) -> Vec<Violation> {
    let text = tree.text(ARCHITECTURE).unwrap_or_default();
    let rows = text.lines().filter_map(question);
    let named: Vec<&str> = rows
        .flat_map(|names| names.split('`').skip(1).step_by(2))
        .collect();
    let mut violations = Vec::new();
    for member in tree.crates().filter(|member| !named.contains(&member.name())) {
        let name = member.name();
        let what = format!("{ARCHITECTURE} has no row with `{name}` and the question that it answers");
        violations.push(Violation::new(&member.manifest_path(), what));
    }
    for name in named {
        if !tree.crates().any(|member| member.name() == name) {
            violations.push(Violation::new(
                ARCHITECTURE,
                format!("there is no crate `{name}`"),
            ));
        }
    }
    violations
}

/// The names in a row that has a question.
fn question(line: &str) -> Option<&str> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    cells.get(1).filter(|question| question.ends_with('?'))?;
    cells.first().copied()
}

pub(crate) fn large_crates_have_readmes(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in tree.crates() {
        let own = tree.rust().filter(|(path, _)| member.holds(path));
        let lines: usize = own.map(|(_, text)| text.lines().count()).sum();
        let readme = tree
            .text(&format!("{}/README.md", member.directory))
            .unwrap_or_default();
        if lines > LARGE && readme.trim().is_empty() {
            let what = format!("{lines} lines of Rust and no README.md");
            violations.push(Violation::new(&member.manifest_path(), what));
        }
    }
    violations
}

/// A mark such as `@@FIGURE@@` holds the place of a text that is still to come.
pub(crate) fn nothing_is_left_to_fill_in(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| has_mark(line)) {
            let what = format!("line {}: \"{line}\" has a mark that was to be filled in", at + 1);
            violations.push(Violation::new(path, what));
        }
    }
    violations
}

fn has_mark(line: &str) -> bool {
    let mut inside = line.split("@@").skip(1).step_by(2);
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|letter| letter.is_ascii_uppercase());
    inside.any(is_name)
}

/// A comment of one or two words says what the name says. Code in it, a constant of the kernel or a path, does not; help of
/// a command line has to be there.
pub(crate) fn no_noise(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(_, text)| !text.contains("clap")) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let alone = |other: Option<&&str>| other.is_none_or(|other| !other.starts_with("///"));
            let before = at.checked_sub(1).and_then(|before| lines.get(before));
            if is_noise(line) && alone(before) && alone(lines.get(at + 1)) {
                let what = format!(
                    "line {}: \"{line}\" says no more than the name: say more or leave it out",
                    at + 1
                );
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

fn is_noise(line: &str) -> bool {
    let Some(said) = line.strip_prefix("///") else {
        return false;
    };
    let code = said.contains(['`', '_', '/', '=']) || said.contains(|letter: char| letter.is_ascii_digit());
    !code && (1..=2).contains(&said.split_whitespace().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES: &[(&str, &str)] = &[
        (
            "crates/base/model/Cargo.toml",
            "[package]\nname = \"pointsman-model\"\n",
        ),
        (
            "crates/edges/proxy/Cargo.toml",
            "[package]\nname = \"pointsman-proxy\"\n",
        ),
    ];

    fn with(path: &str, text: &str) -> Tree {
        Tree::of(&[CRATES, &[(path, text)]].concat())
    }

    #[test]
    fn a_crate_without_a_question_and_a_row_without_a_crate_are_found() {
        let places = |rows| -> Vec<String> {
            let found = crates_have_questions(&with("ARCHITECTURE.md", rows));
            found.into_iter().map(|violation| violation.place).collect()
        };
        assert_eq!(
            places("| `model` | What is it? |\n| `proxy` | Does it. |\n"),
            ["crates/edges/proxy/Cargo.toml"]
        );
        assert_eq!(
            places("| `model`, `proxy`, `gone` | What are they? |\n"),
            ["ARCHITECTURE.md"]
        );
        assert_eq!(places("| `model`, `proxy` | What are they? |\n"), [""; 0]);
    }

    #[test]
    fn a_mark_that_was_to_be_filled_in_is_found() {
        let found = |text| nothing_is_left_to_fill_in(&with("docs/operations.md", text)).len();
        assert_eq!(found("lost in 100 updates: @@GATE@@\n"), 1);
        assert_eq!(found("git shows @@ -1,2 +1,3 @@ before a change\n"), 0);
    }

    #[test]
    fn a_large_crate_without_a_readme_is_found() {
        let long = "\n".repeat(LARGE + 1);
        let found = large_crates_have_readmes(&with("crates/edges/proxy/src/lib.rs", &long));
        assert_eq!(found.len(), 1);
        let readme = ("crates/edges/proxy/README.md", "# Proxy\n");
        let tree = Tree::of(&[CRATES, &[("crates/edges/proxy/src/lib.rs", &long), readme]].concat());
        assert_eq!(large_crates_have_readmes(&tree), []);
    }

    #[test]
    fn documentation_of_two_words_is_found() {
        assert_eq!(
            no_noise(&Tree::of(&[(
                "a.rs",
                "struct A {\n    /// The name.\n    name: String,\n}\n"
            )]))
            .len(),
            1
        );
        let fine = "/// `ip daddr`\n/// A name\n/// of two lines.\n/// Three words here.\nstruct A;\n";
        assert_eq!(no_noise(&Tree::of(&[("a.rs", fine)])), []);
        assert_eq!(
            no_noise(&Tree::of(&[(
                "a.rs",
                "#[derive(clap::Args)]\nstruct A {\n/// The name.\nname: B}\n"
            )])),
            []
        );
    }
}
