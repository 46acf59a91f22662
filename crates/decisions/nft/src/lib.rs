//! What must nftables hold so that Services work, and how does it get from one state to the next?
//!
//! The rules, chains, sets and maps of the table `pointsman` are fixed ([`Ruleset`]); Services and endpoints
//! are elements only. A [`Planner`] turns a batch of changes into one transaction whose size follows the
//! change and not the cluster. [`KernelTable`] is the table as the kernel would hold it, and [`walk`] sends
//! packets through it, so that all of this can be tested without a kernel. The README draws the packet's
//! journey.

mod class;
mod delta;
pub mod describe;
mod intervals;
mod inventory;
mod kernel_table;
mod key;
mod planner;
mod pool;
mod resets;
mod ruleset;
mod set_id;
mod shape;
mod slots;
pub mod walk;

pub use class::Class;
pub use inventory::{Inventory, Records};
pub use kernel_table::{ChainContent, KernelTable, RefusedChange, SetContent};
pub use planner::{Adoption, Planned, Planner, Update};
pub use pool::Pool;
pub use resets::{LASTING, RESETS, reset_connections, resets_sent};
pub use ruleset::{Ruleset, TABLE, TableSettings, family, refused_on_localhost};
pub use set_id::SetId;
