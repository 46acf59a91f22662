//! Is there anything in a history that the API does not promise?

use crate::history::{Answer, Event, History};
use crate::observed::Observed;
use crate::timeline::Timeline;
use crate::{linearize, lists, watches};
use std::fmt::{Display, Formatter, Result};
use std::ops::AddAssign;

/// What was found in a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub counts: Counts,
    /// One text for each promise that was not kept.
    pub violations: Vec<String>,
}

/// How much there was to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub histories: usize,
    pub operations: usize,
    /// Operations whose answer was lost or said nothing.
    pub unanswered: usize,
    pub writes: usize,
    /// Creates, updates and deletions that were refused because of what is there.
    pub refused: usize,
    pub lists: usize,
    pub watches: usize,
    pub events: usize,
    pub bookmarks: usize,
}

/// Looks for everything that contradicts the API's promises.
pub fn judge(history: &History) -> Verdict {
    let counts = Counts::of(history);
    let (observed, mut violations) = Observed::of(history);
    // Versions that contradict themselves are not worth a search.
    if violations.is_empty() {
        match linearize::linearize(history, &observed) {
            Ok(changes) => {
                let timeline = Timeline::new(history.keys, changes);
                violations.extend(lists::check(history, &timeline));
                violations.extend(watches::check(history, &timeline));
            }
            Err(problem) => violations.push(problem),
        }
    }
    Verdict { counts, violations }
}

impl Counts {
    fn of(history: &History) -> Self {
        let mut counts = Self {
            histories: 1,
            operations: history.operations.len(),
            watches: history.watches.len(),
            ..Self::default()
        };
        for operation in &history.operations {
            match &operation.answer {
                None => counts.unanswered += 1,
                Some((_, Answer::Written(_) | Answer::Deleted)) => counts.writes += 1,
                Some((_, Answer::Listed(_))) => counts.lists += 1,
                Some((_, Answer::Exists | Answer::Conflict)) => counts.refused += 1,
                Some((_, Answer::Missing)) if operation.request.changes() => counts.refused += 1,
                Some((_, Answer::Missing | Answer::Found(_))) => {}
            }
        }
        for (_, event) in history.watches.iter().flat_map(|watch| &watch.events) {
            match event {
                Event::Bookmark(_) | Event::InitialEnd(_) => counts.bookmarks += 1,
                _ => counts.events += 1,
            }
        }
        counts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.histories += more.histories;
        self.operations += more.operations;
        self.unanswered += more.unanswered;
        self.writes += more.writes;
        self.refused += more.refused;
        self.lists += more.lists;
        self.watches += more.watches;
        self.events += more.events;
        self.bookmarks += more.bookmarks;
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{} histories: {} operations ({} writes acknowledged, {} refused, {} without an answer, {} lists), \
             {} watches with {} events and {} bookmarks",
            self.histories,
            self.operations,
            self.writes,
            self.refused,
            self.unanswered,
            self.lists,
            self.watches,
            self.events,
            self.bookmarks
        )
    }
}
