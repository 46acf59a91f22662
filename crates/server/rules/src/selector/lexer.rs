//! How does the text of a label selector fall into tokens?

use crate::status::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Equals,
    NotEquals,
    Not,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

/// A token and the bytes it was read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spanned<'a> {
    pub token: Token<'a>,
    start: usize,
    end: usize,
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    last: Spanned<'a>,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        let last = Spanned {
            token: Token::End,
            start: 0,
            end: 0,
        };
        Self { text, last }
    }

    /// The next token, without moving on.
    pub fn peek(&self) -> Spanned<'a> {
        let rest = &self.text[self.last.end..];
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let start = self.text.len() - trimmed.len();
        let (token, length) = match trimmed.as_bytes() {
            [] => (Token::End, 0),
            [b'=', b'=', ..] => (Token::Equals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'!', ..] => (Token::Not, 1),
            [b'>', ..] => (Token::Greater, 1),
            [b'<', ..] => (Token::Less, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b',', ..] => (Token::Comma, 1),
            _ => {
                let ends = |byte: char| " \t\r\n=!><(),".contains(byte);
                let length = trimmed.find(ends).unwrap_or(trimmed.len());
                (Token::Word(&trimmed[..length]), length)
            }
        };
        Spanned {
            token,
            start,
            end: start + length,
        }
    }

    /// The next token.
    pub fn next(&mut self) -> Spanned<'a> {
        self.last = self.peek();
        self.last
    }

    /// The error for the token read last.
    pub fn unexpected(&self, expected: &str) -> ApiError {
        let found = &self.text[self.last.start..self.last.end];
        self.refused(&format!("found '{found}', expected: {expected}"))
    }

    /// An error at the token read last.
    pub fn refused(&self, why: &str) -> ApiError {
        ApiError::BadRequest(format!(
            "unable to parse requirement: {why} (at position {} of the label selector)",
            self.last.start
        ))
    }
}
