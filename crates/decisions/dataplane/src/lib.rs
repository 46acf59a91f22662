//! Which endpoints serve a Service on this node, and what changed since the kernel was last written?
//!
//! The shared half of the service proxy, without IO: Kubernetes objects are converted once
//! ([`convert`]), folded into an [`Index`], and come out as [`Batch`]es of Services whose desired state
//! differs from the programmed one. A [`Programmer`] brings a batch into the kernel, in
//! whichever mode; then the batch is committed or aborted, and no change, trigger time or watermark is lost
//! either way.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests need a first `now` to count from")
)]

pub mod claims;
pub mod conntrack;
pub mod convert;
pub mod guard;
pub mod health;
pub mod index;
pub mod localhost;
pub mod packet;
pub mod programmer;
pub mod schedule;
pub mod second_writer;
pub mod select;
pub mod settings;
pub mod state;
pub mod sync;
pub mod trigger;

pub use claims::{ClaimKind, Destination};
pub use index::{Batch, Change, Committed, Index, Progress, Scope, Totals, Watermark};
pub use packet::{Fate, Host, Packet, SeenAs};
pub use programmer::{
    Compared, Comparison, Differences, Effort, Look, MemoryRules, NoRules, ProgramError, Programmer,
    Recovery, Restored, Restores, States, Written,
};
pub use select::{Reachable, Selection, Viewpoint};
pub use settings::{InterfaceName, LocalDetector, Localhost, MasqueradeMark, NodePortAddresses, Settings};
pub use state::{PortState, PortView, ServiceState};
pub use sync::{Outcome, Synchroniser};
