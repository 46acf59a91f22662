//! Bytes in, bytes out: paths, parameters, media types and bodies.

pub mod body;
pub mod compress;
pub mod held;
pub mod negotiate;
pub mod pretty;
pub mod query;
pub mod route;
