//! Has anybody else written to nf_tables?
//!
//! The kernel counts every commit of a network namespace. Programs that we run commit too, so a [`Witness`]
//! looks at the number before and after each of them and takes off what was ours. What remains is the drift: it
//! moves only if somebody else commits. A foreign commit in the very moment of ours can be taken for ours;
//! then only a later one shows it.

use std::io;
use std::sync::atomic::Ordering;

use pointsman_dataplane::ProgramError;
use pointsman_netlink_io::{Buffers, Client};

use crate::nftables_backend::Commits;

/// What errors call the interface.
const INTERFACE: &str = "nf_tables";

/// Watches the commits of the network namespace of the thread that made it.
#[derive(Debug)]
pub(crate) struct Witness {
    client: Client,
    commits: Commits,
    /// The drift at which our rules were known to be right.
    trusted: Option<Drift>,
    /// Whether the last look found another drift.
    doubtful: bool,
}

/// The commits of others since the namespace began, up to a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drift(u32);

/// The number of commits at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u32);

impl Witness {
    /// A witness, if the kernel has nf_tables. All that write in this process share `commits`.
    pub fn open(commits: Commits) -> Option<Self> {
        let client = Client::open(Buffers::default()).ok()?;
        Some(Self {
            client,
            commits,
            trusted: None,
            doubtful: false,
        })
    }

    /// The moment before a program of ours writes; `None` if the kernel does not tell, which is no reason not to
    /// write.
    pub fn mark(&mut self) -> Option<Mark> {
        self.generation().ok().map(Mark)
    }

    /// A program of ours has written to at most so many tables since the mark; a table that was as we wanted
    /// it already is not committed.
    pub fn wrote(&mut self, since: Option<Mark>, tables: usize) {
        let (Some(since), Ok(now)) = (since, self.generation()) else {
            self.trusted = None;
            return;
        };
        let passed = now.wrapping_sub(since.0);
        let ours = passed.min(u32::try_from(tables).unwrap_or(u32::MAX));
        self.commits.0.fetch_add(ours, Ordering::Relaxed);
    }

    /// The drift now.
    pub fn drift(&mut self) -> Result<Drift, ProgramError> {
        loop {
            let ours = self.commits.0.load(Ordering::Relaxed);
            let generation = self.generation()?;
            // The other family may have committed in between.
            if self.commits.0.load(Ordering::Relaxed) == ours {
                return Ok(Drift(generation.wrapping_sub(ours)));
            }
        }
    }

    /// Our rules are right, as far as others had written by then.
    pub fn trust(&mut self, drift: Option<Drift>) {
        self.trusted = drift;
        self.doubtful = false;
    }

    /// Whether somebody else has written since. A first sign does not count: it may be a program that the
    /// other family runs in this moment.
    pub fn is_disturbed(&mut self) -> Result<bool, ProgramError> {
        let drift = self.drift()?;
        let drifted = self.trusted != Some(drift);
        let before = std::mem::replace(&mut self.doubtful, drifted);
        Ok(drifted && before)
    }

    fn generation(&mut self) -> Result<u32, ProgramError> {
        let generation = self.client.generation().map_err(|error| ProgramError::Io {
            program: INTERFACE.to_owned(),
            source: io::Error::other(error),
        })?;
        Ok(generation.0)
    }
}
