//! What does an owner need of the world?

use pointsman_latency_profile::plan::Change;
use pointsman_latency_profile::rollout::{
    Condition, Ledger, NodesReading, Notice, Readings, Single, Spec, Stored,
};
use pointsman_latency_profile::units::{GracePeriod, Tolerations};
use std::pin::Pin;
use thiserror::Error;

/// Something under way.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriverError>> + Send + 'a>>;

/// Why a read or write did not do what was asked, by what follows.
#[derive(Debug, Error)]
pub enum DriverError {
    /// It is not as it was read: read again.
    #[error("somebody else changed it meanwhile")]
    Changed,
    /// Whether it happened is not known.
    #[error("{0}")]
    Unknown(String),
    /// It did not happen, and will not the next time.
    #[error("{0}")]
    Refused(String),
}

/// What something was when it was read; nothing if it was not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub Option<String>);

/// One component's part of what a round reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Agents on nodes.
    Nodes(NodesReading),
    /// The controller manager.
    Grace(Single<GracePeriod>),
    /// The API server.
    Tolerations(Single<Tolerations>),
}

impl Part {
    /// Adds it to what else was read.
    pub fn put_into(self, readings: &mut Readings) {
        match self {
            Self::Nodes(nodes) => readings.nodes = nodes,
            Self::Grace(grace) => readings.grace = grace,
            Self::Tolerations(tolerations) => readings.tolerations = tolerations,
        }
    }
}

/// A component as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What it says.
    pub part: Part,
    /// Of what is written.
    pub version: Version,
}

/// Reads and writes one component.
pub trait Driver: Send + Sync {
    /// Reads what is written, then what is in force.
    fn read(&self) -> Doing<'_, Reading>;
    /// Makes sure that a component that knows the setting has a place to announce it.
    fn prepare(&self) -> Doing<'_, ()>;
    /// Writes a change, or nothing but the epoch, if what is written still has this version.
    fn write<'a>(&'a self, epoch: u64, change: Option<&'a Change>, version: &'a Version) -> Doing<'a, ()>;
}

/// What is said where the profile was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Posted {
    /// All owners' conditions.
    pub conditions: Vec<Stored>,
    /// Version and identity of the object.
    pub version: Option<String>,
    /// The object's identity.
    pub uid: String,
}

/// Where requests come from, and where owners agree and report.
pub trait Desk: Send + Sync {
    /// What owners agreed on.
    fn ledger(&self) -> Doing<'_, (Ledger, Version)>;
    /// Writes the ledger, if it still has this version.
    fn record<'a>(&'a self, ledger: &'a Ledger, version: &'a Version) -> Doing<'a, ()>;
    /// What is wanted, and what is said about it.
    fn spec(&self) -> Doing<'_, (Option<Spec>, Posted)>;
    /// Reports conditions; does nothing if they are there already.
    fn post<'a>(&'a self, posted: &'a Posted, conditions: &'a [Condition]) -> Doing<'a, Option<Vec<Stored>>>;
    fn tell(&self, posted: &Posted, notice: &Notice);
}
