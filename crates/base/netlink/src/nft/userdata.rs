//! How does `nft` find the comments and types it prints?
//!
//! The kernel keeps a blob of bytes with most objects and never looks at it. `nft` fills it with records
//! of one byte type, one byte length and the value, and reads comments and declared types from them.

/// The blob, empty if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserData(pub Box<[u8]>);

/// The record of a comment on tables, chains, rules and elements.
const COMMENT: u8 = 0;
/// `nft` cuts comments to this many bytes.
const COMMENT_MAX: usize = 128;

impl UserData {
    /// A blob that holds a comment only, cut to the 128 bytes `nft` allows.
    pub fn comment(text: &str) -> Self {
        let mut blob = Vec::with_capacity(text.len() + 3);
        push_comment(&mut blob, COMMENT, text);
        Self(blob.into())
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The comment of a table, chain, rule or element.
    pub fn comment_text(&self) -> Option<&str> {
        self.records()
            .find(|(kind, _)| *kind == COMMENT)
            .and_then(|(_, value)| {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                std::str::from_utf8(&value[..end]).ok()
            })
    }

    /// The records, up to the first one that does not fit.
    pub fn records(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest: &[u8] = &self.0;
        std::iter::from_fn(move || {
            let (&[kind, length], tail) = rest.split_first_chunk::<2>()?;
            let (value, tail) = tail.split_at_checked(usize::from(length))?;
            rest = tail;
            Some((kind, value))
        })
    }
}

pub(super) fn push_record(blob: &mut Vec<u8>, kind: u8, value: &[u8]) {
    // All our records are descriptions of a handful of fields, far below 255 bytes.
    let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
    blob.extend_from_slice(&[kind, length]);
    blob.extend_from_slice(&value[..usize::from(length)]);
}

pub(super) fn push_number(blob: &mut Vec<u8>, kind: u8, number: u32) {
    push_record(blob, kind, &number.to_ne_bytes());
}

pub(super) fn push_comment(blob: &mut Vec<u8>, kind: u8, text: &str) {
    let mut end = text.len().min(COMMENT_MAX - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut value = text.as_bytes()[..end].to_vec();
    value.push(0);
    push_record(blob, kind, &value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_comes_back_and_a_long_one_is_cut_between_characters() {
        assert_eq!(
            UserData::comment("ns/web:http").comment_text(),
            Some("ns/web:http")
        );
        let long = "é".repeat(100);
        let cut = UserData::comment(&long);
        let text = cut.comment_text().unwrap();
        assert!(long.starts_with(text) && text.len() == 126, "{}", text.len());
    }
}
