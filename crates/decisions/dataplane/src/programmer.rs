//! How does a decided change reach the kernel?

use std::io;

/// Writes one backend's rules of one IP family into the kernel.
pub trait Programmer {
    /// What the backend applies at once.
    type Transaction;
    /// What the backend finds in the kernel under names it owns.
    type Inventory;

    /// Applies the transaction whole, or fails; [`ProgramError::recovery`] then says what to do.
    fn apply(&mut self, transaction: &Self::Transaction) -> Result<(), ProgramError>;

    /// Lists the names we own, enough to clear leftovers after a restart and to notice drift.
    ///
    /// This may be slow: it is for full syncs and checks, never for a change.
    fn inventory(&mut self) -> Result<Self::Inventory, ProgramError>;
}

/// Why the kernel does not have the rules.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Another program holds the lock; nothing was written.
    #[error("{program} could not get the lock that another program holds")]
    Busy {
        /// The program or interface.
        program: String,
    },
    /// The kernel or the tool refused the rules; part of them may have been written.
    #[error("{program} refused the rules{}: {message}", .rule.as_ref().map(|rule| format!(" at {rule:?}")).unwrap_or_default())]
    Refused {
        /// The program or interface.
        program: String,
        /// The rule it complained about, if it said so.
        rule: Option<String>,
        /// Its complaint, shortened.
        message: String,
    },
    /// It is not installed or the kernel lacks it.
    #[error("{program} is missing")]
    Missing {
        /// The program or interface.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended without a verdict (killed, crashed, timed out); anything may have been written.
    #[error("{program} ended without a verdict: {how}")]
    Interrupted {
        /// The program or interface.
        program: String,
        /// How it ended.
        how: String,
    },
    /// Talking to it failed.
    #[error("talking to {program} failed")]
    Io {
        /// The program or interface.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing was written: the same change can be tried again.
    Retry,
    /// The kernel's state is unknown: everything has to be written again.
    FullResync,
}

impl ProgramError {
    /// What to do next.
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Busy { .. } | Self::Missing { .. } => Recovery::Retry,
            Self::Refused { .. } | Self::Interrupted { .. } | Self::Io { .. } => Recovery::FullResync,
        }
    }
}
