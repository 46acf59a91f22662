//! How new is an object?

use std::fmt;

/// A resource version as Kubernetes API servers hand them out: a number that grows with every write.
///
/// Kubernetes promised for a long time only that versions are opaque; since 1.35 the promise is that
/// they are comparable integers, which is also what every server we know has always sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Reads a `resourceVersion`; `None` for anything that is not a number.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
