//! What does the program measure, and how does anyone read it?
//!
//! Every metric is defined once, with its name, help, unit and buckets, and belongs to a
//! [`Registry`]. Recording is a few atomic operations on a handle resolved beforehand; reading is
//! [`Registry::render`], the classic Prometheus text format (version 0.0.4), or OpenMetrics for those who ask for it,
//! which can name the trace of a sample; [`parse`] reads the classic format back from other processes.
//!
//! Invariants:
//! - Equal states render to equal bytes: families and series are ordered.
//! - A family never grows beyond its series limit; what does not fit is counted in one series whose
//!   labels all say `other`.
//! - Nothing here starts a task or opens a socket.

mod collect;
mod family;
mod fine;
mod metric;
pub mod parse;
mod process;
pub mod reference;
mod registry;
mod text;

pub use collect::Collector;
pub use family::{Family, OVERFLOW_LABEL};
pub use fine::{FineHistogram, FineSnapshot};
pub use metric::{Counter, Gauge, Histogram, Metric, exponential_buckets, linear_buckets};
pub use process::{BuildInfo, register_process};
pub use registry::{Definition, DuplicateName, Registry, Unit};
pub use text::{CONTENT_TYPE, Encoder, Exemplar, FamilyEncoder, Format, Kind};
