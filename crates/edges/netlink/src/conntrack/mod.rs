//! Which flows still follow a translation that is no longer right, and how are they removed?
//!
//! The kernel keeps sending a flow where its first packet went. For TCP that is right; a UDP flow must be
//! forgotten when its backend is gone, or the client talks to nobody until the entry expires. Deletion is
//! filtered in the kernel where it can be (one request, whatever the size of the table), and otherwise
//! done by listing the table and deleting entry by entry.

mod client;
mod flow;

pub use client::{Conntrack, ConntrackError, Deleted};
pub use flow::{Flow, FlowFilter, Tuple};
