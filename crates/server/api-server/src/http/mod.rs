//! Bytes in, bytes out: paths, parameters, media types and bodies.

pub mod body;
pub mod compress;
pub mod negotiate;
pub mod query;
pub mod route;
