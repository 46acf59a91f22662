//! Why did the shim not start the program?

use std::fmt;
use std::io;

use crate::StartFailure;

/// A start that failed, in a kind the agent acts on and words for the pod's author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was wrong.
    pub reason: StartFailure,
    pub message: String,
}

impl Failure {
    /// Puts what was tried before what the system said.
    pub fn new(reason: StartFailure, doing: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self {
            reason,
            message: format!("{doing}: {}", words(&error)),
        }
    }
}

/// The system's words without the number that Rust adds.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
