//! Who may look?
//!
//! On a loopback address, everybody on the machine. Elsewhere those who are named in a file, one per line:
//! `token:SECRET` for `Authorization: Bearer SECRET`, `user:NAME:SECRET` for a browser's login.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Who may look.
#[derive(Clone, Debug, Default)]
pub(crate) enum Login {
    #[default]
    Open,
    /// Those who send one of these headers.
    Needed(Vec<String>),
}

impl Login {
    /// Reads a file of logins.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut headers = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let header = match line.split_once(':') {
                Some(("token", secret)) if !secret.is_empty() => format!("Bearer {secret}"),
                Some(("user", login))
                    if login
                        .split_once(':')
                        .is_some_and(|(name, secret)| !name.is_empty() && !secret.is_empty()) =>
                {
                    format!("Basic {}", STANDARD.encode(login))
                }
                _ => {
                    return Err(format!(
                        "line {} is neither token:SECRET nor user:NAME:SECRET",
                        at + 1
                    ));
                }
            };
            headers.push(header);
        }
        if headers.is_empty() {
            return Err("there is no login in it".into());
        }
        Ok(Self::Needed(headers))
    }

    /// Whether a request with these headers may be answered.
    pub fn allows(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Open => true,
            Self::Needed(known) => {
                let sent = headers
                    .get(AUTHORIZATION)
                    .map_or(&[][..], |value| value.as_bytes());
                // Every known header is compared whole, so that the time taken tells nothing.
                known
                    .iter()
                    .fold(false, |found, known| found | same(known.as_bytes(), sent))
            }
        }
    }
}

fn same(known: &[u8], sent: &[u8]) -> bool {
    let differ = known.iter().enumerate().fold(0, |differ, (at, byte)| {
        differ | (byte ^ sent.get(at).copied().unwrap_or(0))
    });
    known.len() == sent.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn tokens_and_logins_open_and_others_do_not() {
        let login = Login::parse("# people\ntoken:abc\n\nuser:ann:secret:with:colons\n").unwrap();
        assert!(login.allows(&headers("Bearer abc")));
        let ann = format!("Basic {}", STANDARD.encode("ann:secret:with:colons"));
        assert!(login.allows(&headers(&ann)));
        for bad in ["Bearer ab", "Bearer abcd", "Bearer ", "abc", "Basic abc"] {
            assert!(!login.allows(&headers(bad)), "{bad}");
        }
        assert!(!login.allows(&HeaderMap::new()));
        assert!(Login::Open.allows(&HeaderMap::new()));
    }

    #[test]
    fn files_that_let_nobody_or_anybody_in_are_refused() {
        for bad in ["", "token:", "user:ann", "user::x", "something"] {
            assert!(Login::parse(bad).is_err(), "{bad}");
        }
    }
}
