//! Which bearer tokens are believed, and how are they kept from leaking?
//!
//! The file is kube-apiserver's `--token-auth-file`: CSV lines `token,user,uid,"group1,group2"`.
//! Tokens are kept as keyed hashes under a key made at start, so neither a memory dump of the table
//! nor the time a lookup takes tells anything about a token.

use super::authn::User;
use ring::hmac;
use ring::rand::SystemRandom;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Why a token file was not accepted. Never shows the file's content.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file could not be read.
    #[error("cannot read token file {path}")]
    Read {
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A record is malformed.
    #[error("token file, record {record}: {problem}")]
    Record {
        /// The record, counted from 1.
        record: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The system gave no random bytes.
    #[error("no random bytes for the token table")]
    NoRandomness,
}

/// The believed tokens.
#[derive(Default)]
pub struct Tokens {
    key: Option<hmac::Key>,
    users: HashMap<Vec<u8>, User>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tokens({})", self.users.len())
    }
}

impl Tokens {
    /// Reads a token file.
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokenFileError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Reads the text of a token file. The last of several records with one token counts; records
    /// with an empty token are skipped.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let random = SystemRandom::new();
        let key =
            hmac::Key::generate(hmac::HMAC_SHA256, &random).map_err(|_| TokenFileError::NoRandomness)?;
        let mut users = HashMap::new();
        for (at, fields) in parse_csv(text)?.into_iter().enumerate() {
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                let problem = "needs at least token, user name and user uid";
                return Err(TokenFileError::Record {
                    record: at + 1,
                    problem,
                });
            };
            if token.is_empty() {
                continue;
            }
            if name.is_empty() {
                return Err(TokenFileError::Record {
                    record: at + 1,
                    problem: "the user name is empty",
                });
            }
            let groups = rest.first().map_or("", String::as_str).split(',');
            let groups: Vec<&str> = groups.map(str::trim).filter(|group| !group.is_empty()).collect();
            let user = User {
                uid: uid.clone(),
                ..User::new(name.as_str(), &groups)
            };
            users.insert(hmac::sign(&key, token.as_bytes()).as_ref().to_vec(), user);
        }
        Ok(Self {
            key: Some(key),
            users,
        })
    }

    /// The user `token` stands for.
    pub fn find(&self, token: &[u8]) -> Option<&User> {
        let key = self.key.as_ref()?;
        let (tag, user) = self.users.get_key_value(hmac::sign(key, token).as_ref())?;
        // The comparison that decides takes the same time wherever the bytes differ.
        hmac::verify(key, token, tag).ok().map(|()| user)
    }
}

/// Reads CSV records: fields may be quoted, a doubled quote inside is one quote, empty lines do not
/// count.
fn parse_csv(text: &str) -> Result<Vec<Vec<String>>, TokenFileError> {
    let mut records = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\r\n")) {
            rest = after;
            continue;
        }
        let fail = |problem| TokenFileError::Record {
            record: records.len() + 1,
            problem,
        };
        let (fields, after) = parse_record(rest).map_err(fail)?;
        records.push(fields);
        rest = after;
    }
    Ok(records)
}

fn parse_record(mut rest: &str) -> Result<(Vec<String>, &str), &'static str> {
    let mut fields = Vec::new();
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => parse_quoted(quoted)?,
            None => {
                let end = rest.find([',', '\n']).unwrap_or(rest.len());
                let (field, after) = rest.split_at(end);
                if field.contains('"') {
                    return Err("a quote inside an unquoted field");
                }
                let field = if after.starts_with(',') {
                    field
                } else {
                    field.strip_suffix('\r').unwrap_or(field)
                };
                (field.to_owned(), after)
            }
        };
        fields.push(field);
        if let Some(after) = after.strip_prefix(',') {
            rest = after;
            continue;
        }
        let ends = ["\r\n", "\n"].iter().find_map(|end| after.strip_prefix(end));
        return match ends {
            Some(after) => Ok((fields, after)),
            None if after.is_empty() => Ok((fields, after)),
            None => Err("text after a closing quote"),
        };
    }
}

fn parse_quoted(mut rest: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    loop {
        let (text, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        field.push_str(text);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_upstream_format_is_understood() {
        let text = "t1,alice,1,\"dev,ops\"\r\n\n,nobody,0\n\"t\"\"2\",bob,2\nt3,eve,3,\"\"\nt1,alice2,4";
        let tokens = Tokens::parse(text).unwrap();
        assert_eq!(tokens.find(b"t\"2").unwrap().name, "bob");
        assert!(tokens.find(b"t3").unwrap().groups.is_empty());
        assert_eq!(tokens.find(b"t1").unwrap().name, "alice2");
        assert_eq!(tokens.find(b""), None);
        assert_eq!(tokens.find(b"t"), None);
        assert_eq!(Tokens::default().find(b"t1"), None);
    }

    #[test]
    fn malformed_records_are_named_without_showing_them() {
        for (text, record) in [
            ("sesame,alice", 1),
            ("a,b,c\n\"sesame,x,y", 2),
            ("a,b,c\n\nse\"same,x,y", 2),
            ("\"sesame\"x,y,z", 1),
            ("sesame,,1", 1),
        ] {
            let error = Tokens::parse(text).unwrap_err();
            assert!(
                matches!(&error, TokenFileError::Record { record: at, .. } if *at == record),
                "{text:?}"
            );
            assert!(!format!("{error} {error:?}").contains("sesame"));
        }
        let tokens = Tokens::parse("sesame,alice,1").unwrap();
        assert_eq!(format!("{tokens:?}"), "Tokens(1)");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_text_never_panics_and_quoted_tokens_are_found(
            text in "(\\PC|[\n\r,\"])*",
            token in "[a-z,\"\n]{1,12}",
        ) {
            let _ = Tokens::parse(&text);
            let quoted = format!("\"{}\",alice,1", token.replace('"', "\"\""));
            let tokens = Tokens::parse(&quoted).unwrap();
            prop_assert!(tokens.find(token.as_bytes()).is_some());
        }
    }
}
