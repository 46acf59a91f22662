//! Is a peer there?
//!
//! One task asks the peers of a node by ICMP echo, which every kernel answers by itself: no listener, no
//! connection in anybody's log, 36 bytes each way. `pointsman_node_health::peers` decides whom to ask when,
//! and what silence means; the resulting opinion goes to whoever keeps the node's Lease ([`give_opinions`]
//! for a process that has none to keep otherwise).

mod ask;
mod beside;
mod echo;
mod lease;
mod metrics;

pub use ask::{Places, ask, place, placed};
pub use beside::give_opinions;
pub use metrics::Metrics;
