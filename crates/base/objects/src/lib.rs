//! What do the Kubernetes objects that we watch say, and what does each field mean to us?

pub mod probe;
pub mod value;
