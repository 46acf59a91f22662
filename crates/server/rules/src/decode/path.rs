//! Where in an object are we?

use std::fmt;

/// One step down from a value.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Into a field of an object.
    Field(&'a str),
    /// Into a value of a map with free keys.
    Key(&'a str),
    /// Into an item of a list.
    Index(usize),
}

/// A path from the root of an object, kept on the stack of whoever walks it.
///
/// Prints as upstream does: `spec.containers[0].resources.limits[cpu]`.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a>(Option<(&'a Path<'a>, Step<'a>)>);

impl Path<'_> {
    /// The object itself.
    pub const ROOT: Path<'static> = Path(None);
}

impl<'a> Path<'a> {
    /// One step further down.
    pub fn then(&'a self, step: Step<'a>) -> Path<'a> {
        Path(Some((self, step)))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((parent, step)) = self.0 else {
            return Ok(());
        };
        parent.fmt(f)?;
        match step {
            Step::Field(name) if parent.0.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Key(key) => write!(f, "[{key}]"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}
