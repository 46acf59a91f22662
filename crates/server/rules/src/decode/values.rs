//! How many values does a body have?
//!
//! A few bytes can stand for many of memory: `{},` is a map. So values are counted while a body is read, and reading
//! ends where there are too many.

use super::invalid;
use crate::status::ApiError;
use std::cell::Cell;
use std::fmt;

/// Fields, list items and map entries that a body may have.
///
/// The largest useful objects, ConfigMaps of 1 MiB and slices of 1000 endpoints, stay well below.
pub const MAX_VALUES: usize = 200_000;

/// The values of one body that were read so far.
#[derive(Debug, Default)]
pub(super) struct Values(Cell<usize>);

impl Values {
    /// Counts one more; the error is for the reader, the client gets [`Values::refusal`].
    pub(super) fn count(&self) -> Result<(), String> {
        self.0.set(self.0.get() + 1);
        if self.too_many() {
            return Err(format!("it has more than {MAX_VALUES} values"));
        }
        Ok(())
    }

    /// What the client gets when reading ended with an error.
    pub(super) fn refusal(&self, format: &str, why: &dyn fmt::Display) -> ApiError {
        if self.too_many() {
            return ApiError::TooLarge(format!(
                "the body of the request has more than {MAX_VALUES} values"
            ));
        }
        invalid(format, why)
    }

    fn too_many(&self) -> bool {
        self.0.get() > MAX_VALUES
    }
}
