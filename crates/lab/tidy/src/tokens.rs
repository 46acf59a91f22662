//! Which words and signs does a Rust file consist of, without comments and literals?

/// A word or a sign, with the number of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

/// The words and signs of a file; a sign is one character, except `::`. Comments, literals of text and the sign before a
/// lifetime are left out.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    split(text).0
}

/// The literals of text in a file, with their quotes.
pub(crate) fn literals(text: &str) -> Vec<Token<'_>> {
    split(text).1
}

fn split(text: &str) -> (Vec<Token<'_>>, Vec<Token<'_>>) {
    let bytes = text.as_bytes();
    let (mut tokens, mut literals) = (Vec::new(), Vec::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let (length, kind) = match bytes[at] {
            byte if byte.is_ascii_whitespace() => (1, None),
            b'/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            b'/' if rest.starts_with("/*") => (block_comment(rest), None),
            b'"' => (quoted(rest), Some(&mut literals)),
            b'\'' => (quote(rest), None),
            b'r' | b'b' | b'c' if prefixed(rest).is_some() => {
                (prefixed(rest).unwrap_or(1), Some(&mut literals))
            }
            byte if byte == b'_' || !byte.is_ascii_punctuation() => (word(rest), Some(&mut tokens)),
            _ if rest.starts_with("::") => (2, Some(&mut tokens)),
            _ => (1, Some(&mut tokens)),
        };
        if let Some(found) = kind {
            found.push(Token {
                text: &rest[..length],
                line,
            });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    (tokens, literals)
}

fn word(rest: &str) -> usize {
    let end = rest
        .char_indices()
        .find(|(_, letter)| *letter != '_' && !letter.is_alphanumeric());
    end.map_or(rest.len(), |(at, _)| at).max(1)
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// `"text"`, with escapes.
fn quoted(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// A character, or the sign before a lifetime.
fn quote(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match (letters.next(), letters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..].find('\'').map_or(1, |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// `r"text"`, `r#"text"#`, `b"text"`, `b'x'` and their like; not `r#type`.
fn prefixed(rest: &str) -> Option<usize> {
    let letters = rest.bytes().take_while(|byte| b"rbc".contains(byte)).count();
    let after = &rest[letters..];
    if letters > 2 {
        return None;
    }
    if !rest[..letters].contains('r') {
        return match after.bytes().next()? {
            b'"' => Some(letters + quoted(after)),
            b'\'' => Some(letters + quote(after)),
            _ => None,
        };
    }
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end)? + end.len();
    Some(letters + hashes + 1 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        assert_eq!(texts("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(
            texts(r##"a("b\"c", r#"d"e"#, b"f", 'g', '\'', b'h') i"##).concat(),
            "a(,,,,,)i"
        );
        assert_eq!(texts("fn f<'a>(x: &'a str)").concat(), "fnf<a>(x:&astr)");
        assert_eq!(texts("r#type"), ["r", "#", "type"]);
    }

    #[test]
    fn literals_are_found() {
        let found: Vec<&str> = literals(r##"a("b\"c", r#"d"#, 'e') // "f""##)
            .iter()
            .map(|token| token.text)
            .collect();
        assert_eq!(found, [r#""b\"c""#, r##"r#"d"#"##]);
    }

    #[test]
    fn lines_are_counted_through_literals() {
        let last = tokens("\"a\nb\"\n/* \n */ std::c").pop();
        assert_eq!(last, Some(Token { text: "c", line: 4 }));
    }
}
