//! Can a whole cluster run on this machine, and what else has to be there to try it?
//!
//! ```text
//!  host       API server, controllers            one link pm-NAME, one route
//!    |
//!  NAME-fabric    a namespace with a bridge
//!    |        |        |
//!  NAME-n1  NAME-n2  NAME-n3    a namespace per node, with its proxy and its own rules
//! ```
//!
//! [`up`] runs it, [`down`] stops it, [`status`] and [`exec`] look at it and into it. [`serve_http`] plays pods,
//! [`load`] their clients.

mod apart;
pub mod claim;
pub mod containers;
mod demo;
pub mod detach;
mod dns;
pub mod down;
pub mod exec;
mod leftovers;
pub mod load;
pub mod merged_kubeconfig;
mod network;
pub mod nodes;
pub mod own_faults;
mod parts;
pub mod place;
pub mod plain_http;
pub mod plan;
pub mod pod_program;
mod pod_routes;
pub mod progress;
pub mod rollout;
pub mod rootless;
pub mod serve_http;
pub mod status;
mod supervise;
pub mod up;
