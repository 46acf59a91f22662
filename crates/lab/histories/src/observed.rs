//! Which writes were seen to have happened, and at which revision?
//!
//! A write whose answer was lost has happened if anybody saw what it wrote. Whoever saw it also saw its revision, and
//! everybody must have seen the same one.

use crate::explain::seconds;
use crate::history::{Answer, Content, Event, History, Key, Nanos, Revision, Scope, Seen, WriteId};
use std::collections::BTreeMap;

/// What is known about the versions of objects, and when it was known first.
#[derive(Debug, Default)]
pub struct Observed {
    versions: BTreeMap<WriteId, Version>,
    /// Deletions that watches have shown, by the write whose version was deleted.
    deletions: BTreeMap<WriteId, Deletion>,
}

#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// None if only a patch on top of it was seen.
    pub seen: Option<Seen>,
    pub known_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub struct Deletion {
    pub key: Key,
    pub revision: Revision,
    pub known_at: Nanos,
}

impl Observed {
    /// Gathers all that was seen; what contradicts itself is reported.
    pub fn of(history: &History) -> (Self, Vec<String>) {
        let mut gathering = Gathering::new(history);
        for operation in &history.operations {
            let Some((end, answer)) = &operation.answer else {
                continue;
            };
            match (answer, operation.request.key()) {
                (Answer::Written(seen) | Answer::Found(seen), Some(key)) => {
                    gathering.version(key, *seen, *end)
                }
                (Answer::Listed(listing), _) => {
                    for (key, seen) in &listing.objects {
                        gathering.version(*key, *seen, *end);
                    }
                }
                _ => {}
            }
        }
        for watch in &history.watches {
            for (at, event) in &watch.events {
                match event {
                    Event::Added(key, seen) | Event::Modified(key, seen) => {
                        gathering.version(*key, *seen, *at)
                    }
                    // An object that leaves a selection is shown as deleted, too.
                    Event::Deleted(key, seen) if watch.scope == Scope::All => {
                        gathering.deletion(*key, *seen, *at);
                    }
                    Event::Deleted(..) | Event::Bookmark(_) | Event::InitialEnd(_) => {}
                }
            }
        }
        gathering.revisions_are_unique();
        (gathering.observed, gathering.problems)
    }

    pub fn version(&self, write: WriteId) -> Option<&Version> {
        self.versions.get(&write)
    }

    pub fn content(&self, write: WriteId) -> Option<Content> {
        self.versions.get(&write)?.seen.map(|seen| seen.content)
    }

    pub fn deletions(&self) -> impl Iterator<Item = (WriteId, &Deletion)> {
        self.deletions.iter().map(|(write, deletion)| (*write, deletion))
    }
}

struct Gathering {
    /// The key of each write, and when it was sent.
    sent: BTreeMap<WriteId, (Key, Nanos)>,
    observed: Observed,
    problems: Vec<String>,
}

impl Gathering {
    fn new(history: &History) -> Self {
        let sent = history.operations.iter().filter_map(|operation| {
            let (write, key) = operation.request.write().zip(operation.request.key())?;
            Some((write, (key, operation.start)))
        });
        Self {
            sent: sent.collect(),
            observed: Observed::default(),
            problems: Vec::new(),
        }
    }

    fn version(&mut self, key: Key, seen: Seen, at: Nanos) {
        for write in [seen.content.write, seen.content.base] {
            match self.sent.get(&write) {
                Some((own, start)) if *own == key && *start <= at => {}
                _ => {
                    let when = seconds(at);
                    self.problems.push(format!(
                        "phantom: {key} showed {seen} at {when}, which nobody had written"
                    ));
                    return;
                }
            }
            let version = self.observed.versions.entry(write).or_insert(Version {
                seen: None,
                known_at: at,
            });
            version.known_at = version.known_at.min(at);
        }
        let version = self
            .observed
            .versions
            .get_mut(&seen.content.write)
            .expect("entered above");
        match version.seen {
            Some(before) if before != seen => self.problems.push(format!(
                "one write, two versions: {key} was shown as {before} and as {seen}"
            )),
            _ => version.seen = Some(seen),
        }
    }

    fn deletion(&mut self, key: Key, seen: Seen, at: Nanos) {
        // The revision is the deletion's; that of the deleted version is not shown.
        let write = seen.content.write;
        let deletion = Deletion {
            key,
            revision: seen.revision,
            known_at: at,
        };
        let known = self.observed.deletions.entry(write).or_insert(deletion);
        if known.revision != seen.revision {
            let (one, other) = (known.revision, seen.revision);
            self.problems.push(format!(
                "one deletion, two revisions: {write} of {key} was deleted @{one} and @{other}"
            ));
        }
        known.known_at = known.known_at.min(at);
        if self.sent.get(&write).is_none_or(|(own, _)| *own != key) {
            self.problems.push(format!(
                "phantom: {key} was deleted as {seen}, which nobody had written"
            ));
        }
        let version = self.observed.versions.entry(write).or_insert(Version {
            seen: None,
            known_at: at,
        });
        version.known_at = version.known_at.min(at);
    }

    fn revisions_are_unique(&mut self) {
        let mut taken: BTreeMap<Revision, String> = BTreeMap::new();
        let versions = self.observed.versions.values().filter_map(|version| version.seen);
        let versions = versions.map(|seen| (seen.revision, format!("the write {}", seen.content)));
        let deletions = self.observed.deletions.iter();
        let deletions =
            deletions.map(|(write, deletion)| (deletion.revision, format!("the deletion of {write}")));
        for (revision, what) in versions.chain(deletions) {
            if let Some(other) = taken.get(&revision) {
                self.problems
                    .push(format!("revision {revision} was given to {other} and to {what}"));
            }
            taken.insert(revision, what);
        }
    }
}
