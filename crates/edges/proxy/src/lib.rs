//! How do Services and slices of an API server become rules in this node's kernel?
//!
//! ```text
//! watches ─► owner (both indexes) ── batch ─► one thread for each family ─► kernel
//!               │        ▲                              │
//!               │        └────────── report ◄───────────┘
//!               └─► metrics, watermark, health, health check node ports, stale UDP flows
//! ```
//!
//! One task owns the state. A lone change goes to the kernel at once; changes that arrive while a batch is
//! being written go together in the next. Decisions are those of `pointsman-dataplane`; here are the clocks,
//! sockets and threads.

mod behind;
pub mod config;
pub mod explain;
pub mod health;
pub mod metrics;

mod run;

mod flows;
mod http;
mod localhost;
mod observed;
mod observer;
mod others;
mod owner;
mod publisher;
mod read;
mod resets;
mod serve;
mod service_health;
mod side;
mod worker;

pub use config::{Config, LocalMode, NodeState};
pub use pointsman_kernel::{Mode, OwnRules, clean_up, clean_up_own};
pub use run::{RunError, run};
