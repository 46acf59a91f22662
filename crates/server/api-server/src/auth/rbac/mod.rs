//! May this user do this?
//!
//! Roles list what is allowed, bindings say to whom; rules only ever add. [`Policy`] folds the four
//! RBAC kinds into an index by subject, so a decision costs a few hash lookups and a walk over the
//! rules of the caller's own roles, whatever the number of bindings.

mod attributes;
mod escalation;
mod policy;
mod rule;

pub use attributes::{Attributes, forbidden};
pub use escalation::{Escalation, covers};
pub use policy::{Decision, Policy};
pub use rule::Rule;

/// The API group of the four RBAC kinds.
pub use pointsman_rules::kinds::RBAC_GROUP as GROUP;

#[cfg(test)]
mod tests;
