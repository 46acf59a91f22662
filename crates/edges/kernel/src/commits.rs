//! Has anybody else written to nf_tables?
//!
//! The kernel counts every commit of a network namespace, ours and others'. What remains after ours are taken off
//! is the drift: it moves only if somebody else commits. A foreign commit in the very moment of ours can be taken for
//! ours; then only a later one shows it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use pointsman_dataplane::ProgramError;
use pointsman_netlink::nft::Generation;
use pointsman_netlink_io::{Buffers, Client, RequestError};

/// What errors call the interface.
pub(crate) const NF_TABLES: &str = "nf_tables";

/// The commits this process made. All that write in it, for both families, share one.
///
/// The kernel counts a commit before its maker does. Whoever looks in between would take it for somebody else's, so makers hold
/// the lock together for that time, and whoever looks holds it alone.
#[derive(Clone, Debug, Default)]
pub struct Commits(Arc<RwLock<AtomicU32>>);

/// The commits of others since the namespace began, up to a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drift(u32);

impl Commits {
    pub(crate) fn add(&self, ours: u32) {
        self.made().fetch_add(ours, Ordering::Relaxed);
    }

    /// Commits, and counts it if the kernel did.
    pub(crate) fn making<E>(&self, commit: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let made = self.made();
        commit()?;
        made.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn made(&self) -> RwLockReadGuard<'_, AtomicU32> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation and the drift at one moment.
    pub(crate) fn drift(
        &self,
        generation: impl FnOnce() -> Result<Generation, RequestError>,
    ) -> Result<(Generation, Drift), ProgramError> {
        let mut made = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let generation = generation().map_err(unreadable)?;
        Ok((generation, Drift(generation.0.wrapping_sub(*made.get_mut()))))
    }
}

pub(crate) fn unreadable(error: RequestError) -> ProgramError {
    ProgramError::Io {
        program: NF_TABLES.to_owned(),
        source: io::Error::other(error),
    }
}

/// Watches the commits of the network namespace of the thread that made it, where programs of ours write: it looks at
/// the number before and after each of them.
#[derive(Debug)]
pub(crate) struct Witness {
    client: Client,
    commits: Commits,
    /// The drift at which our rules were known to be right.
    trusted: Option<Drift>,
    /// Whether the last look found another drift.
    doubtful: bool,
}

impl Witness {
    /// A witness, if the kernel has nf_tables.
    pub fn open(commits: Commits) -> Option<Self> {
        let client = Client::open(Buffers::default()).ok()?;
        Some(Self {
            client,
            commits,
            trusted: None,
            doubtful: false,
        })
    }

    /// The moment before a program of ours writes; `None` if the kernel does not say, which is no reason not to
    /// write.
    pub fn mark(&mut self) -> Option<Generation> {
        self.client.generation().ok()
    }

    /// A program of ours has written to at most so many tables since the mark; a table that was as we wanted
    /// it already is not committed.
    pub fn wrote(&mut self, since: Option<Generation>, tables: usize) {
        let (Some(since), Ok(now)) = (since, self.client.generation()) else {
            self.trusted = None;
            return;
        };
        let passed = now.0.wrapping_sub(since.0);
        self.commits
            .add(passed.min(u32::try_from(tables).unwrap_or(u32::MAX)));
    }

    pub fn drift(&mut self) -> Result<Drift, ProgramError> {
        let Self { client, commits, .. } = self;
        commits.drift(|| client.generation()).map(|(_, drift)| drift)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel counts a commit before whoever made it does.
    #[test]
    fn a_commit_of_the_other_family_is_never_taken_for_somebody_elses() {
        let kernel = Arc::new(AtomicU32::new(7));
        let commits = Commits::default();
        let look = || {
            let generation = || Ok(Generation(kernel.load(Ordering::SeqCst)));
            commits.drift(generation).unwrap().1
        };
        let trusted = look();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let commit = || {
                        kernel.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        Ok::<_, ()>(())
                    };
                    commits.making(commit).unwrap();
                }
            });
            while kernel.load(Ordering::SeqCst) < 2_007 {
                assert_eq!(look(), trusted);
            }
        });
        kernel.fetch_add(1, Ordering::SeqCst);
        assert_ne!(look(), trusted, "somebody else's");
    }
}
