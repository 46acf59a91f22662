//! What becomes of objects as they are read? Converted, with a word in the log on what had to be left out.

use pointsman_dataplane::convert::{self, ConvertedService, ConvertedSlice, Problem};
use pointsman_model::Interner;
use pointsman_objects::compact;

/// A Service, unless it has no name.
pub(crate) fn service(object: &compact::Service, names: &mut Interner) -> Option<ConvertedService> {
    let converted = convert::service(object, names)
        .inspect_err(|error| tracing::warn!(%error, "a Service is left out"))
        .ok()?;
    warn(&converted.problems);
    Some(converted)
}

/// A slice, unless it has no name.
pub(crate) fn slice(object: &compact::EndpointSlice, names: &mut Interner) -> Option<ConvertedSlice> {
    let converted = convert::slice(object, names)
        .inspect_err(|error| tracing::warn!(%error, "an EndpointSlice is left out"))
        .ok()?;
    warn(&converted.problems);
    Some(converted)
}

fn warn(problems: &[Problem]) {
    for problem in problems {
        tracing::warn!(%problem, "part of an object is left out");
    }
}
