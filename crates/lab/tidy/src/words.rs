//! Would an operator understand the messages?

use crate::tokens::literals;
use crate::{Tree, Violation};

/// Words and phrases that CONTRIBUTING.md replaces by those of the field.
const PRIVATE: &[&str] = &[
    "for ever",
    "heard",
    "hears",
    "news",
    "no such thing",
    "not ours",
    "not taken",
    "tells",
    "told",
    "wish",
    "wishes",
];

/// Looks at the texts in programs and libraries; tests may speak as they like.
pub(crate) fn are_plain(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_product(path)) {
        let text = text
            .split_once("#[cfg(test)]\nmod tests {")
            .map_or(text, |(product, _)| product);
        for literal in literals(text) {
            if let Some(word) = PRIVATE.iter().find(|word| says(literal.text, word)) {
                let what = format!(
                    "line {}: \"{word}\" in a message; CONTRIBUTING.md has a plainer word",
                    literal.line
                );
                violations.push(Violation::new(path, what));
            }
        }
    }
    violations
}

/// This crate has to name the words.
fn is_product(path: &str) -> bool {
    path.contains("/src/")
        && !path.ends_with("tests.rs")
        && !path.contains("/tests/")
        && !path.contains("/lab/t")
}

fn says(message: &str, phrase: &str) -> bool {
    let edge = |letter: Option<char>| {
        letter.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_' && letter != '-')
    };
    message.match_indices(phrase).any(|(at, _)| {
        edge(message[..at].chars().next_back()) && edge(message[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> usize {
        are_plain(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_private_word_in_a_message_is_found() {
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "warn!(\"a status was not taken\");"
            ),
            1
        );
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "warn!(\"nothing was heard for {silent} s\");"
            ),
            1
        );
    }

    #[test]
    fn plain_messages_and_names_are_not() {
        assert_eq!(
            check(
                "crates/edges/proxy/src/a.rs",
                "let told = \"newsletter rejected: {told_at}\"; // news"
            ),
            0
        );
        assert_eq!(
            check("crates/edges/proxy/tests/a.rs", "expect(\"it was told\");"),
            0
        );
    }
}
