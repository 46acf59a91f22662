//! Is a peer there?
//!
//! One task asks the peers of a node by ICMP echo, which every kernel answers by itself: no listener, no
//! connection in anybody's log, 36 bytes each way. `pointsman_node_health::peers` decides whom to ask when,
//! and what silence means; the resulting opinion goes to whoever keeps the node's Lease ([`give_opinions`]
//! for a process that has none to keep otherwise). [`follow_gone`] asks nodes that the controllers withdrew.

mod ask;
mod beside;
mod echo;
mod gone;
mod lease;
mod metrics;

pub use ask::{Places, ask, place, placed};
pub use beside::give_opinions;
pub use gone::{GoneNodes, follow_gone};
pub use metrics::Metrics;
