//! Which objects does a query ask for?
//!
//! A selector is parsed once and then matched against borrowed labels or fields of many objects, so
//! matching allocates nothing. Printing a selector gives text that parses to the same selector.

mod field;
mod label;
mod lexer;
mod object;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Requirement, Test};

#[cfg(test)]
mod tests;
