//! Which EndpointSlices should a Service have, and which writes get it there?
//!
//! Values in, values out: no clock, no network, no tasks. [`plan::plan`] decides the slices of one
//! Service; [`controller::Controller`] decides which Service is next and what its writes report.

pub mod change;
pub mod controller;
pub mod endpoints;
pub mod hints;
pub mod index;
pub mod mirror;
pub mod node;
pub mod pack;
pub mod plan;
pub mod queue;
pub mod service;
pub mod topology;
pub mod tracker;
pub mod trigger;
pub mod write;

mod desired;
mod settled;
mod small_set;

pub use node::{NodeFacts, Nodes};
pub use plan::{Inputs, Settings, SlicePlan, plan};
pub use service::ServiceKey;
pub use topology::ZoneCapacity;
