//! How much work may one patch cause?
//!
//! A short patch can ask for much: to shift a long list again and again, or to merge the same item a thousand times.

use super::PatchError;

/// Steps that one patch may take: values it looks at, copies or compares. The largest useful objects have some
/// 20,000 values.
const MAX_STEPS: usize = 1_000_000;
/// Items of a list that are moved aside in one step: that is a plain copy of memory.
const SHIFTED_PER_STEP: usize = 16;

/// The steps that are left.
#[derive(Debug)]
pub(super) struct Effort(usize);

impl Default for Effort {
    fn default() -> Self {
        Self(MAX_STEPS)
    }
}

impl Effort {
    /// Takes this many steps, if so many are left.
    pub(super) fn steps(&mut self, steps: usize) -> Result<(), PatchError> {
        let left = self.0.checked_sub(steps);
        self.0 = left.ok_or_else(|| {
            PatchError::TooLarge(format!(
                "the patch takes more than {MAX_STEPS} steps on this object; send it in parts, or the whole object"
            ))
        })?;
        Ok(())
    }

    /// Moves this many items of a list aside.
    pub(super) fn shift(&mut self, items: usize) -> Result<(), PatchError> {
        self.steps(items / SHIFTED_PER_STEP)
    }
}
