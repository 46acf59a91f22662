//! What do the owners have to agree on?

use crate::state::Owner;
use jiff::Timestamp;

/// The one object that all owners write, each time on the condition that nobody else did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub epoch: u64,
    /// Who may write its component now.
    pub claim: Option<Claim>,
    /// The rollout that failed, and that Default replaces.
    pub failure: Option<Failure>,
    /// The last rollout that was carried out whole.
    pub settled: Option<Settled>,
}

/// The right to write one component once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub owner: Owner,
    /// Which of its instances.
    pub holder: String,
    /// Number of this claim.
    pub epoch: u64,
    /// Another instance held it before: the component must be written before it is let go.
    pub taken_over: bool,
    /// Generation of the wanted profile when it was made.
    pub generation: i64,
    /// When the step began.
    pub since: Timestamp,
    /// When this instance got it.
    pub held_since: Timestamp,
}

/// Why a profile is not rolled out any further.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Whose step failed.
    pub owner: Owner,
    /// Generation of the wanted profile; another one gets a new attempt.
    pub generation: i64,
    /// The profile that could not be rolled out.
    pub profile: String,
    pub reason: String,
    pub message: String,
    pub at: Timestamp,
}

/// What is in force everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settled {
    /// Generation of the wanted profile.
    pub generation: i64,
    pub profile: String,
}

impl Ledger {
    /// The failure, if it is one of this wish.
    pub fn failure_of(&self, generation: i64, profile: &str) -> Option<&Failure> {
        self.failure
            .as_ref()
            .filter(|failure| failure.generation == generation && failure.profile == profile)
    }
}
