//! What can be said to nf_tables, and what does it say back?
//!
//! [`Transaction`] → [`Batch`] → kernel is the way in; `decode` functions are the way out of dumps. The
//! types hold what goes over the wire, so that encoding and decoding are inverse to each other.

mod batch;
mod chain;
mod data_wire;
mod element;
mod expr;
mod expr_wire;
mod field;
mod name;
mod notice;
mod path;
mod rule;
mod set;
mod table;
mod transaction;
mod userdata;
mod value;
pub mod wire;

pub use batch::{Batch, BatchError, Fault, Generation};
pub use chain::{BaseChain, Chain, ChainKind, Hook, Policy};
pub use element::{Data, Element, ElementList};
pub use expr::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupTarget, MetaKey, NatKind,
    PayloadBase, RangeOp, Register, RejectKind, Verdict,
};
pub use field::{Field, TypeId};
pub use name::{BadName, Family, Name};
pub use notice::{Notice, Touched};
pub use rule::Rule;
pub use set::{DataSpec, Set, SetFlags};
pub use table::Table;
pub use transaction::{Op, Transaction};
pub use userdata::UserData;
pub use value::{TooLong, Value};
