//! `labelSelector`: what it means, how it is read from a query and written back.

use super::lexer::{Lexer, Token};
use crate::meta::names;
use crate::status::ApiError;
use serde_json::{Map, Value};
use std::fmt;

/// Requirements that a selector may have, and values that they may name: every object is compared with all of them.
pub(super) const MAX_REQUIREMENTS: usize = 1_000;
const MAX_VALUES: usize = 10_000;

/// Conditions on labels that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    /// An absent `LabelSelector` object selects nothing, an empty one everything.
    nothing: bool,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What its value must be.
    pub test: Test,
}

/// What the value of a label must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Present with this value.
    Equals(String),
    /// Absent, or with another value.
    NotEquals(String),
    /// Present with one of these values, which are sorted and unique.
    In(Vec<String>),
    /// Absent, or with none of these values, which are sorted and unique.
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// Present, an integer, and larger.
    GreaterThan(i64),
    /// Present, an integer, and smaller.
    LessThan(i64),
}

impl LabelSelector {
    /// The selector that selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// The selector that selects no object.
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// The selector of these requirements, in order of their keys.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        for requirement in &mut requirements {
            if let Test::In(values) | Test::NotIn(values) = &mut requirement.test {
                values.sort();
                values.dedup();
            }
        }
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        Self {
            requirements,
            nothing: false,
        }
    }

    /// Reads the text of a `labelSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut lexer = Lexer::new(text);
        let mut requirements = Vec::new();
        if lexer.peek().token == Token::End {
            return Ok(Self::everything());
        }
        loop {
            if requirements.len() == MAX_REQUIREMENTS {
                return Err(lexer.refused(&format!("there are more than {MAX_REQUIREMENTS} requirements")));
            }
            requirements.push(requirement(&mut lexer)?);
            match lexer.next().token {
                Token::End => return Ok(Self::new(requirements)),
                Token::Comma => {}
                _ => return Err(lexer.unexpected("',' or 'end of string'")),
            }
        }
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// The requirements, in order of their keys.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches_with(|key| labels?.get(key)?.as_str())
    }

    /// Whether an object whose labels `lookup` finds is selected.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.test.holds(lookup(&requirement.key)))
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = |value: Option<&str>| value?.parse::<i64>().ok();
        let among = |values: &[String], value: &str| {
            let found = values.binary_search_by(|known| known.as_str().cmp(value));
            found.is_ok()
        };
        match self {
            Test::Equals(wanted) => value == Some(wanted),
            Test::NotEquals(unwanted) => value != Some(unwanted),
            Test::In(wanted) => value.is_some_and(|value| among(wanted, value)),
            Test::NotIn(unwanted) => !value.is_some_and(|value| among(unwanted, value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::GreaterThan(bound) => number(value).is_some_and(|value| value > *bound),
            Test::LessThan(bound) => number(value).is_some_and(|value| value < *bound),
        }
    }
}

fn requirement(lexer: &mut Lexer<'_>) -> Result<Requirement, ApiError> {
    let negated = lexer.peek().token == Token::Not;
    if negated {
        lexer.next();
    }
    let key = match lexer.next().token {
        Token::Word(word) => word,
        _ if negated => return Err(lexer.unexpected("identifier")),
        _ => return Err(lexer.unexpected("!, identifier, or 'end of string'")),
    };
    if let Some(fault) = names::qualified_name(key).into_iter().next() {
        return Err(lexer.refused(&format!("invalid label key {key:?}: {fault}")));
    }
    let ends = matches!(lexer.peek().token, Token::End | Token::Comma);
    let test = match (negated, ends) {
        (true, true) => Test::Absent,
        (false, true) => Test::Exists,
        (true, false) => {
            lexer.next();
            return Err(lexer.unexpected("',' or 'end of string'"));
        }
        (false, false) => test(lexer)?,
    };
    Ok(Requirement {
        key: key.to_owned(),
        test,
    })
}

fn test(lexer: &mut Lexer<'_>) -> Result<Test, ApiError> {
    match lexer.next().token {
        Token::Equals => Ok(Test::Equals(single_value(lexer)?)),
        Token::NotEquals => Ok(Test::NotEquals(single_value(lexer)?)),
        Token::Greater => Ok(Test::GreaterThan(number(lexer)?)),
        Token::Less => Ok(Test::LessThan(number(lexer)?)),
        Token::Word("in") => Ok(Test::In(value_set(lexer)?)),
        Token::Word("notin") => Ok(Test::NotIn(value_set(lexer)?)),
        _ => Err(lexer.unexpected("in, notin, =, ==, !=, gt, lt")),
    }
}

fn single_value(lexer: &mut Lexer<'_>) -> Result<String, ApiError> {
    match lexer.peek().token {
        Token::End | Token::Comma => Ok(String::new()),
        _ => match lexer.next().token {
            Token::Word(value) => checked_value(lexer, value),
            _ => Err(lexer.unexpected("identifier")),
        },
    }
}

fn number(lexer: &mut Lexer<'_>) -> Result<i64, ApiError> {
    let value = single_value(lexer)?;
    value.parse().map_err(|_| {
        lexer.refused(&format!(
            "{value:?}: for '>', '<' operators, the value must be an integer"
        ))
    })
}

/// Reads `(a,b)`; nothing before, between or after commas is the empty value.
fn value_set(lexer: &mut Lexer<'_>) -> Result<Vec<String>, ApiError> {
    if lexer.next().token != Token::Open {
        return Err(lexer.unexpected("'('"));
    }
    let mut values = Vec::new();
    loop {
        values.push(match lexer.peek().token {
            Token::Comma | Token::Close => String::new(),
            _ => match lexer.next().token {
                Token::Word(value) => checked_value(lexer, value)?,
                _ => return Err(lexer.unexpected("',', ')' or identifier")),
            },
        });
        match lexer.next().token {
            Token::Comma if values.len() == MAX_VALUES => {
                return Err(lexer.refused(&format!("there are more than {MAX_VALUES} values")));
            }
            Token::Comma => {}
            Token::Close => return Ok(values),
            _ => return Err(lexer.unexpected("',' or ')'")),
        }
    }
}

fn checked_value(lexer: &Lexer<'_>, value: &str) -> Result<String, ApiError> {
    match names::label_value(value).into_iter().next() {
        Some(fault) => Err(lexer.refused(&format!("invalid label value {value:?}: {fault}"))),
        None => Ok(value.to_owned()),
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            Test::Equals(value) => write!(f, "{key}={value}"),
            Test::NotEquals(value) => write!(f, "{key}!={value}"),
            Test::In(values) => write!(f, "{key} in ({})", values.join(",")),
            Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            Test::Exists => write!(f, "{key}"),
            Test::Absent => write!(f, "!{key}"),
            Test::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Test::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}
