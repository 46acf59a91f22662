//! Which EndpointSlices should a Service have, and which writes get it there?
//!
//! Values in, values out: no clock, no network, no tasks. [`plan::plan`] decides the slices of one
//! Service; [`controller::Controller`] decides which Service is next and what its writes report.

pub mod change;
pub mod controller;
pub mod endpoints;
pub mod hints;
pub mod index;
pub mod node;
pub mod pack;
pub mod plan;
pub mod pod;
pub mod queue;
pub mod service;
pub mod slice;
pub mod text;
pub mod time;
pub mod topology;
pub mod tracker;
pub mod trigger;
pub mod write;

mod desired;

pub use node::{Node, Nodes};
pub use plan::{Inputs, Settings, SlicePlan, plan};
pub use pod::Pod;
pub use service::{Service, ServiceKey};
pub use slice::{AddressType, EndpointSlice};
pub use text::{Interner, Labels, Text};
pub use time::Moment;
pub use topology::ZoneCapacity;
