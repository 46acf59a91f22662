//! Are the rules still as we wrote them, and what is to be done about it?
//!
//! Others write rules, too, and partial syncs might go astray. A [`Guard`] decides when to look, when to compare
//! with what a full sync would write, and when to write everything again; it takes facts and returns orders. Looks
//! are cheap; a comparison may take a bounded share of the time.
//!
//! ```text
//!             unclear look           disturbed look
//!   Sound ──────────────► Unclear ──────────────────► Disturbed ◄── disturbed look ── Sound
//!     ▲                      │                            │
//!     │◄──── no difference ──┴─────── comparison ─────────┤
//!     │                                                   │
//!     └────── full sync ────── Repairing ◄── a difference ┘
//! ```
//!
//! Chains that a sync of ours wrote while they were being read say nothing: with those only, trust stays as it
//! is, and another comparison follows.

use std::time::{Duration, Instant};

use crate::index::Scope;
use crate::programmer::{Compared, Differences, Effort, Look};

/// How much of the time may go into full syncs that a look asks for, as one part in so many, and the least pause.
const REWRITING_SHARE: u32 = 10;
const REWRITING_LEAST: Duration = Duration::from_secs(1);
/// The same for comparisons with the kernel, which read everything by a program; they are less frequent where
/// nothing but ignorance asks for them.
const READING_SHARE: u32 = 30;
const READING_LEAST: Duration = Duration::from_secs(10);
const GUESSING_LEAST: Duration = Duration::from_secs(60);
/// The same for comparisons with the ledger, which find only faults of our own.
const RENDERING_SHARE: u32 = 100;
/// How often a look may run a program.
const THOROUGH_LEAST: Duration = Duration::from_secs(10);

/// Where comparisons are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparisons {
    /// On a thread beside the syncs (iptables mode).
    BesideSyncs,
    /// By every full sync (nftables mode).
    WithFullSyncs,
}

/// How sure we are that the kernel holds what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Nothing speaks against it.
    #[default]
    Sound,
    /// Nobody can see it cheaply, so a comparison is due from time to time.
    Unclear,
    /// Somebody else has written; a comparison has to tell whether it concerns us.
    Disturbed,
    /// Rules are wrong; the next full sync puts them right.
    Repairing,
}

/// Work that is done again and again, once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// May begin at this moment, or at once.
    Idle(Option<Instant>),
    Running,
}

impl Turn {
    fn is_due(self, now: Instant) -> bool {
        matches!(self, Self::Idle(from) if from.is_none_or(|from| now >= from))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is time for a check.
    Due,
    /// A look was taken.
    Looked(Look),
    /// A comparison ended; nobody knows what differs if it failed.
    Compared {
        of: Compared,
        found: Option<Found>,
        took: Duration,
    },
    /// A sync succeeded.
    Synced { scope: Scope, took: Duration },
}

/// How many chains differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub differing: usize,
    /// Those that a sync of ours wrote meanwhile.
    pub in_motion: usize,
}

impl From<&Differences> for Found {
    fn from(differences: &Differences) -> Self {
        Self {
            differing: differences.names.len(),
            in_motion: differences.in_motion,
        }
    }
}

/// How the syncs stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Full syncs that succeeded.
    pub full_syncs: u64,
    pub progress: SyncProgress,
}

/// What the synchroniser is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncProgress {
    /// Everything known is written.
    Settled,
    /// Changes wait, or the last sync failed, so that nobody knows what was written.
    Unsettled,
    /// A batch is on its way, and is in the rules or not, depending on who is quicker.
    Running,
}

/// What to do, or to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Look(Effort),
    Compare(Compared),
    WriteAll,
    /// Somebody else has written.
    CountDisturbance,
    /// Rules that others changed were put right.
    CountRepair,
    /// Partial syncs led elsewhere than a full one, in so many chains.
    CountDivergences(usize),
    /// Rules of ours were changed by somebody else.
    ReportForeignChange,
}

/// Watches over the rules of one family.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    comparisons: Comparisons,
    sync_period: Duration,
    trust: Trust,
    looking: Turn,
    /// The kind of look that is next is thorough from here on.
    thorough_from: Option<Instant>,
    kernel: Turn,
    ledger: Turn,
    /// Before this, a look that finds trouble does not lead to a full sync again.
    rewrite_from: Option<Instant>,
}

impl Guard {
    /// A guard of rules that are not written yet.
    pub fn new(comparisons: Comparisons, sync_period: Duration) -> Self {
        let idle = Turn::Idle(None);
        Self {
            comparisons,
            sync_period,
            trust: Trust::Sound,
            looking: idle,
            thorough_from: None,
            kernel: idle,
            ledger: idle,
            rewrite_from: None,
        }
    }

    /// How sure we are.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Takes in what happened and returns what to do.
    pub fn step(&mut self, now: Instant, event: Event, situation: Situation) -> Vec<Order> {
        match event {
            Event::Due => self.due(now, situation),
            Event::Looked(look) => {
                self.looking = Turn::Idle(None);
                self.looked(now, look)
            }
            Event::Compared {
                of: Compared::Kernel,
                found,
                took,
            } => self.compared_kernel(now, found, took),
            Event::Compared {
                of: Compared::Ledger,
                found,
                took,
            } => {
                let pause = self.sync_period.max(took * RENDERING_SHARE);
                self.ledger = Turn::Idle(Some(now + pause));
                match found.unwrap_or_default().differing {
                    0 => Vec::new(),
                    chains => vec![Order::CountDivergences(chains), Order::WriteAll],
                }
            }
            Event::Synced { scope, took } => self.synced(now, scope, took),
        }
    }

    fn due(&mut self, now: Instant, situation: Situation) -> Vec<Order> {
        let mut orders = Vec::new();
        if situation.full_syncs == 0 {
            return orders;
        }
        if self.looking.is_due(now) {
            self.looking = Turn::Running;
            orders.push(Order::Look(self.effort(now)));
        }
        if self.comparisons == Comparisons::WithFullSyncs || situation.progress != SyncProgress::Settled {
            return orders;
        }
        if self.ledger == Turn::Idle(None) {
            self.ledger = Turn::Idle(Some(now + self.sync_period));
        }
        if self.ledger.is_due(now) {
            self.ledger = Turn::Running;
            orders.push(Order::Compare(Compared::Ledger));
        }
        let wanted = match self.trust {
            Trust::Unclear | Trust::Disturbed => true,
            Trust::Sound | Trust::Repairing => false,
        };
        if wanted && self.kernel.is_due(now) {
            self.kernel = Turn::Running;
            orders.push(Order::Compare(Compared::Kernel));
        }
        orders
    }

    fn effort(&mut self, now: Instant) -> Effort {
        if self.thorough_from.is_some_and(|from| now < from) {
            return Effort::Quick;
        }
        self.thorough_from = Some(now + self.sync_period.min(THOROUGH_LEAST));
        Effort::Thorough
    }

    fn looked(&mut self, now: Instant, look: Look) -> Vec<Order> {
        match (look, self.trust) {
            (Look::Undisturbed, _) | (Look::Unclear | Look::Disturbed, Trust::Repairing) => Vec::new(),
            (Look::Unclear, trust) => {
                if trust == Trust::Sound {
                    self.trust = Trust::Unclear;
                }
                if self.kernel == Turn::Idle(None) {
                    self.kernel = Turn::Idle(Some(now + self.pause(Trust::Unclear)));
                }
                Vec::new()
            }
            (Look::Disturbed, Trust::Sound) => {
                self.trust = Trust::Disturbed;
                vec![Order::CountDisturbance]
            }
            (Look::Disturbed, Trust::Unclear | Trust::Disturbed) => {
                self.trust = Trust::Disturbed;
                Vec::new()
            }
            // If it is too early, the next look says the same again.
            (Look::Suspect, _) if self.rewrite_from.is_some_and(|from| now < from) => Vec::new(),
            (Look::Suspect, _) => vec![Order::CountDisturbance, Order::WriteAll],
        }
    }

    fn compared_kernel(&mut self, now: Instant, found: Option<Found>, took: Duration) -> Vec<Order> {
        let pause = self.pause(self.trust).max(took * READING_SHARE);
        self.kernel = Turn::Idle(Some(now + pause));
        let (Some(found), false) = (found, self.trust == Trust::Repairing) else {
            // Nobody knows, so it has to be asked again; or it is being put right already.
            return Vec::new();
        };
        match found {
            Found {
                differing: 0,
                in_motion: 0,
            } => self.trust = Trust::Sound,
            Found { differing: 0, .. } => {}
            Found { .. } => {
                self.trust = Trust::Repairing;
                return vec![Order::ReportForeignChange, Order::WriteAll];
            }
        }
        Vec::new()
    }

    fn synced(&mut self, now: Instant, scope: Scope, took: Duration) -> Vec<Order> {
        if scope == Scope::Partial {
            return Vec::new();
        }
        let longest = self.sync_period.max(REWRITING_LEAST);
        self.rewrite_from = Some(now + (took * REWRITING_SHARE).clamp(REWRITING_LEAST, longest));
        match self.trust {
            Trust::Repairing => {
                self.trust = Trust::Sound;
                vec![Order::CountRepair]
            }
            Trust::Sound | Trust::Unclear | Trust::Disturbed => Vec::new(),
        }
    }

    /// The pause between two comparisons with the kernel.
    fn pause(&self, trust: Trust) -> Duration {
        match trust {
            Trust::Unclear => GUESSING_LEAST.min(self.sync_period * 2),
            Trust::Sound | Trust::Disturbed | Trust::Repairing => READING_LEAST.min(self.sync_period),
        }
    }
}

#[cfg(test)]
mod tests;
