//! Kubernetes objects as they travel: JSON shapes, feature gates, defaulting, validation, patches,
//! tables.
//!
//! Everything here is a function from values to values. Objects are `serde_json::Value`, so that
//! fields this program does not know survive a round trip; the schema says which fields are known
//! and of which type, and rules that run after decoding may rely on those types.
//!
//! Invariants:
//! - No clock, no randomness, no IO: `now` and random picks are arguments.
//! - No rule panics on a value that passed [`schema`] checking, whatever it contains.

pub mod admission;
pub mod allocation;
pub mod custom;
pub mod decode;
pub mod discovery;
pub mod document;
pub mod event_views;
pub mod field_error;
pub mod human_duration;
pub mod kind;
pub mod kinds;
pub mod measured;
pub mod meta;
pub mod net;
pub mod openapi;
pub mod patch;
pub mod review;
pub mod scale;
pub mod schema;
pub mod selector;
pub mod status;
pub mod strategy;
pub mod table;
pub mod views;

pub use field_error::{FieldError, FieldErrors};
pub use kind::{Kind, Scope};
pub use pointsman_objects::value;
pub use status::ApiError;
