//! How do the watermarks and metrics of all programmers come together?
//!
//! [`start`] runs a collector: it finds programmers through the API, follows their streams, reads their
//! metrics, watches Services, slices, pods and nodes, keeps cluster-days, serves the page, and answers
//! whether a pod under deletion may be stopped. All decisions are in `pointsman-sli`; here are sockets, tasks and clocks.

mod auth;
pub mod config;
mod durable;
pub mod export;
mod facts;
mod filter;
mod follow;
mod gates;
mod hosts;
mod metrics;
mod owner;
mod page;
mod run;
mod saved;
mod scrape;
mod serve;
mod traces;
mod view;
mod world;

pub use config::{Config, Listed};
pub use metrics::describe as describe_metrics;
pub use run::{Running, StartError, start};

/// The time, by this machine's clock.
fn now() -> pointsman_model::Moment {
    jiff::Timestamp::now().into()
}
