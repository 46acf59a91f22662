//! Which strings may serve as names, label keys, label values and keys?
//!
//! Every function returns what is wrong, in the words upstream users know; an empty list means that
//! the string is fine. The patterns are simple enough to be checked byte by byte, so no regular
//! expression engine is needed; the expressions appear in messages only.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// Faults of a lower-case DNS label: at most 63 of `[-a-z0-9]`, no hyphen at either end.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > LABEL_MAX {
        faults.push(max_length(LABEL_MAX));
    }
    if !is_label(text) {
        if is_subdomain(text) {
            faults.push("must not contain dots".into());
        } else {
            faults.push(pattern(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    faults
}

/// Faults of a lower-case DNS subdomain: labels joined by dots, at most 253 bytes.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(max_length(SUBDOMAIN_MAX));
    }
    if !is_subdomain(text) {
        faults.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    faults
}

/// Faults of a domain name with at least two labels; a trailing dot is allowed.
pub fn fully_qualified_domain(text: &str) -> Vec<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let faults = dns_subdomain(text);
    if !faults.is_empty() {
        return vec![faults.join(",")];
    }
    if !text.contains('.') {
        return vec!["should be a domain with at least two segments separated by dots".into()];
    }
    match text.split('.').find(|label| label.len() > LABEL_MAX) {
        Some(_) => vec![max_length(LABEL_MAX)],
        None => Vec::new(),
    }
}

/// Faults of a name that is used as one segment of a URL path.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|forbidden| text.contains(forbidden))
        .map(|forbidden| format!("may not contain '{forbidden}'"))
        .collect()
}

/// Faults of a label key: an optional DNS subdomain and `/`, then at most 63 of `[-A-Za-z0-9_.]`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut faults = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern(QUALIFIED_TEXT, QUALIFIED, &examples)
            )];
        }
        Some(("", name)) => {
            faults.push("prefix part must be non-empty".into());
            name
        }
        Some((prefix, name)) => {
            faults.extend(
                dns_subdomain(prefix)
                    .into_iter()
                    .map(|fault| format!("prefix part {fault}")),
            );
            name
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".into());
    } else if name.len() > LABEL_MAX {
        faults.push(format!("name part {}", max_length(LABEL_MAX)));
    }
    if !is_qualified(name) {
        faults.push(format!(
            "name part {}",
            pattern(QUALIFIED_TEXT, QUALIFIED, &examples)
        ));
    }
    faults
}

/// Faults of a label value: empty, or at most 63 of `[-A-Za-z0-9_.]` with alphanumerics at the ends.
pub fn label_value(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > LABEL_MAX {
        faults.push(max_length(LABEL_MAX));
    }
    if !text.is_empty() && !is_qualified(text) {
        faults.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({QUALIFIED})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    faults
}

/// Faults of a ConfigMap key: at most 253 of `[-._a-zA-Z0-9]`, not `.` and not starting with `..`.
pub fn config_key(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(max_length(SUBDOMAIN_MAX));
    }
    if text.is_empty() || !text.bytes().all(is_word) {
        faults.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match text {
        "." => faults.push("must not be '.'".into()),
        ".." => faults.push("must not be '..'".into()),
        _ if text.starts_with("..") => faults.push("must not start with '..'".into()),
        _ => {}
    }
    faults
}

/// Faults of a port name (RFC 6335): at most 15 of `[-a-z0-9]` with a letter in it.
pub fn port_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > 15 {
        faults.push(max_length(15));
    }
    if text.is_empty() || !text.bytes().all(is_label_byte) {
        faults.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        faults.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        faults.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        faults.push("must not begin or end with a hyphen".into());
    }
    faults
}

/// Faults of a port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".into()]
    }
}

/// The message for text of more than `limit` bytes.
pub fn max_length(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn pattern(rule: &str, expression: &str, examples: &[&str]) -> String {
    let quoted: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!(
        "{rule} (e.g. {}regex used for validation is '{expression}')",
        quoted.join(" or ")
    )
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_label_byte) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.bytes().all(is_word) && alphanumeric(text.bytes().next()) && alphanumeric(text.bytes().last())
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Vec<String>, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), Vec::<String>::new(), "{text:?} should be fine");
        }
        for text in bad {
            assert!(!rule(text).is_empty(), "{text:?} should be refused");
        }
    }

    #[test]
    fn names_follow_dns() {
        let long = "a".repeat(64);
        check(
            dns_label,
            &["a", "1", "a-b", &long[1..]],
            &["", "-a", "a-", "A", "a.b", "a_b", "ä", &long],
        );
        let longest = ["a"; 127].join(".");
        let too_long = ["a"; 128].join(".");
        check(
            dns_subdomain,
            &["a", "a.b", "1.2", &longest],
            &["", ".", "a..b", "a.", "-a.b", "A.b", &too_long],
        );
        check(
            fully_qualified_domain,
            &["a.b", "example.com."],
            &["", "a", ".", "a..b", "A.b"],
        );
        check(
            path_segment,
            &["a", "system:node", ""],
            &[".", "..", "a/b", "a%20"],
        );
    }

    #[test]
    fn keys_and_values_follow_the_label_rules() {
        let long = "a".repeat(64);
        check(
            qualified_name,
            &["a", "A_b.c", "example.com/a", "1/2"],
            &["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a-", "a b", &long],
        );
        check(
            label_value,
            &["", "a", "A_b.c-1"],
            &["-", "a/b", "a-", "ä", &long],
        );
        check(
            config_key,
            &["a", ".a", "A_b-c.d"],
            &["", ".", "..", "..a", "a/b", "a b"],
        );
        check(
            port_name,
            &["http", "p1", "a-b"],
            &["", "80", "a--b", "-a", "a-", "HTTP", "abcdefghijklmnop"],
        );
    }

    #[test]
    fn messages_are_those_of_upstream() {
        assert_eq!(
            dns_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
    }
}
