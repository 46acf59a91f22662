//! `fieldSelector`: equality conditions on the few fields a kind lets clients select by.

use super::label::MAX_REQUIREMENTS;
use crate::status::ApiError;
use std::borrow::Cow;
use std::fmt;

/// Conditions on fields that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

/// One condition on one field. An absent field reads as empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// Path of the field, such as `spec.nodeName`.
    pub field: String,
    /// The value to compare with.
    pub value: String,
    /// Whether the field must have another value than this.
    pub negated: bool,
}

impl FieldSelector {
    /// The selector that selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// The selector of one condition.
    pub fn single(term: FieldTerm) -> Self {
        Self { terms: vec![term] }
    }

    /// The same selector with one more condition.
    pub fn and(mut self, term: FieldTerm) -> Self {
        self.terms.push(term);
        self
    }

    /// Reads the text of a `fieldSelector` parameter. In values, `\`, `,` and `=` are written with a
    /// backslash before them.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for (start, term) in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            if terms.len() == MAX_REQUIREMENTS {
                return Err(ApiError::BadRequest(format!(
                    "invalid field selector: there are more than {MAX_REQUIREMENTS} conditions"
                )));
            }
            terms.push(parse_term(text, start, term)?);
        }
        Ok(Self { terms })
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The one value that `field` must have, if the selector says so.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| term.field == field && !term.negated)
            .map(|term| term.value.as_str())
    }

    /// Whether an object whose fields `lookup` finds is selected.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.terms.iter().all(|term| {
            let value = lookup(&term.field).unwrap_or_default();
            (value == term.value.as_str()) != term.negated
        })
    }

    /// The same selector with every field renamed, or the first refusal of `rename`.
    pub fn rename(mut self, rename: impl Fn(&str) -> Result<String, ApiError>) -> Result<Self, ApiError> {
        for term in &mut self.terms {
            term.field = rename(&term.field)?;
        }
        Ok(self)
    }

    /// The error for a field that the kind does not offer.
    pub fn unknown_field(field: &str) -> ApiError {
        ApiError::BadRequest(format!("field label not supported: {field}"))
    }
}

/// Splits at commas that no backslash escapes; gives each part with its position.
fn split_terms(text: &str) -> Vec<(usize, &str)> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push((start, &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push((start, &text[start..]));
    terms
}

fn parse_term(text: &str, start: usize, term: &str) -> Result<FieldTerm, ApiError> {
    let malformed = || {
        ApiError::BadRequest(format!(
            "invalid selector: '{text}'; can't understand '{term}' (at position {start} of the field selector)"
        ))
    };
    // The operator is the first `!=`, `==` or `=`.
    let equals = term.find('=').ok_or_else(malformed)?;
    let negated = term[..equals].ends_with('!');
    let field = if negated {
        &term[..equals - 1]
    } else {
        &term[..equals]
    };
    let mut value_start = equals + 1;
    if !negated && term[value_start..].starts_with('=') {
        value_start += 1;
    }
    Ok(FieldTerm {
        field: field.to_owned(),
        value: unescape(&term[value_start..], start + value_start)?,
        negated,
    })
}

fn unescape(text: &str, start: usize) -> Result<String, ApiError> {
    let mut value = String::with_capacity(text.len());
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        let refused = |what: String| {
            ApiError::BadRequest(format!(
                "invalid field selector: {what} (at position {} of the field selector)",
                start + at
            ))
        };
        match character {
            '\\' => match characters.next() {
                Some((_, escaped @ ('\\' | ',' | '='))) => value.push(escaped),
                Some((_, other)) => return Err(refused(format!("invalid escape sequence: \\{other}"))),
                None => return Err(refused("invalid escape sequence: \\".into())),
            },
            ',' | '=' => return Err(refused(format!("unescaped character in value: {character}"))),
            _ => value.push(character),
        }
    }
    Ok(value)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}", term.field)?;
            for character in term.value.chars() {
                if matches!(character, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}
