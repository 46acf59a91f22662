//! Did every watch show every change, once, in order?
//!
//! The guarantees are those that etcd's robustness tests check: a stream is *ordered* by revision, *unique* (nothing
//! twice), *reliable* (nothing left out between two events), *resumable* (it starts right after the revision that was
//! asked for), *bookmarkable* (everything up to a bookmark was shown before it), and what it shows *is what was written*:
//! the kind of event and the deleted content fit the version before, and what events add up to is what lists show.

use crate::explain::seconds;
use crate::history::{Answer, Content, Event, History, Key, Listing, Revision, Scope, Seen, Watch};
use crate::linearize::Change;
use crate::timeline::Timeline;
use std::collections::BTreeMap;

pub fn check(history: &History, timeline: &Timeline) -> Vec<String> {
    let mut problems = Vec::new();
    let listings = history
        .operations
        .iter()
        .filter_map(|operation| match &operation.answer {
            Some((_, Answer::Listed(listing))) => Some(listing),
            _ => None,
        });
    let mut listings: Vec<&Listing> = listings.collect();
    listings.sort_by_key(|listing| listing.revision);
    for watch in &history.watches {
        if let Err(problem) = follow(watch, timeline).and_then(|()| adds_up(watch, &listings)) {
            let from = watch
                .from
                .map_or("the state".to_owned(), |from| format!("@{from}"));
            problems.push(format!(
                "{problem} (a watch of server {} from {from}, {:?})",
                watch.server, watch.scope
            ));
        }
    }
    problems
}

fn follow(watch: &Watch, timeline: &Timeline) -> Result<(), String> {
    let mut events = watch.events.iter();
    let from = match watch.from {
        Some(from) => from,
        None => match initial(watch, timeline, &mut events)? {
            Some(revision) => revision,
            None => return Ok(()),
        },
    };
    let mut cursor = Cursor {
        timeline,
        scope: watch.scope,
        position: timeline.after(from),
        last: from,
    };
    for (at, event) in events {
        let context = |problem| format!("{problem}: {event} at {}", seconds(*at));
        cursor.take(event).map_err(context)?;
    }
    if let Some(revision) = watch.must_reach {
        let context = |problem| format!("{problem} before the end");
        cursor.up_to(revision).map_err(context)?;
    }
    Ok(())
}

/// Finds what events do not add up to. A change that no watch shows is in no timeline, but lists know of it.
fn adds_up(watch: &Watch, listings: &[&Listing]) -> Result<(), String> {
    let reached = watch.events.iter().map(|(_, event)| event.revision()).max();
    let reached = reached.max(watch.must_reach).unwrap_or(0);
    let start = watch
        .from
        .or_else(|| watch.events.iter().find_map(|(_, event)| event.initial_end()));
    let Some(start) = start else { return Ok(()) };
    let mut events = watch.events.iter().map(|(_, event)| event).peekable();
    let mut shown: BTreeMap<Key, Option<Content>> = BTreeMap::new();
    let first = listings.partition_point(|listing| listing.revision < start);
    for listing in listings[first..]
        .iter()
        .take_while(|listing| listing.revision <= reached)
    {
        while let Some(event) = events.next_if(|event| event.revision() <= listing.revision) {
            match event {
                Event::Added(key, seen) | Event::Modified(key, seen) => {
                    _ = shown.insert(*key, Some(seen.content))
                }
                Event::Deleted(key, _) => _ = shown.insert(*key, None),
                Event::Bookmark(_) | Event::InitialEnd(_) => {}
            }
        }
        for (key, content) in &shown {
            let listed = listing.objects.get(key).map(|seen| seen.content);
            if listed.filter(|content| watch.scope.covers(*content)) != *content {
                let word = |content: Option<Content>| {
                    content.map_or("nothing".to_owned(), |content| content.to_string())
                };
                return Err(format!(
                    "left out: events add up to {key}={} @{}, where a list shows {}",
                    word(*content),
                    listing.revision,
                    word(listed)
                ));
            }
        }
    }
    Ok(())
}

/// Checks the initial events; gives the revision that they stand for, or none if the stream ended before.
fn initial<'a>(
    watch: &Watch,
    timeline: &Timeline,
    events: &mut impl Iterator<Item = &'a (u64, Event)>,
) -> Result<Option<Revision>, String> {
    let mut shown: BTreeMap<Key, Content> = BTreeMap::new();
    for (at, event) in events {
        match event {
            Event::Added(key, seen) => {
                if shown.insert(*key, seen.content).is_some() {
                    return Err(format!(
                        "doubled: {event} at {} among initial events",
                        seconds(*at)
                    ));
                }
            }
            Event::InitialEnd(revision) => {
                let covered = |content| watch.scope.covers(content);
                if !timeline.was(*revision, covered, |key| shown.get(&key).copied()) {
                    return Err(format!(
                        "the initial events are not the state of @{revision}: {shown:?}"
                    ));
                }
                return Ok(Some(*revision));
            }
            other => return Err(format!("{other} at {} among initial events", seconds(*at))),
        }
    }
    Ok(None)
}

/// How far a stream has come.
struct Cursor<'a> {
    timeline: &'a Timeline,
    scope: Scope,
    /// The first change that the stream has yet to show.
    position: usize,
    last: Revision,
}

impl Cursor<'_> {
    fn take(&mut self, event: &Event) -> Result<(), String> {
        let (key, seen) = match event {
            Event::Added(key, seen) | Event::Modified(key, seen) | Event::Deleted(key, seen) => (key, seen),
            Event::Bookmark(revision) => {
                if *revision < self.last {
                    return Err(format!("reordered: a bookmark after @{}", self.last));
                }
                self.up_to(*revision)?;
                self.last = *revision;
                return Ok(());
            }
            Event::InitialEnd(_) => return Err("a second end of the initial events".to_owned()),
        };
        if seen.revision <= self.last {
            let word = if seen.revision == self.last {
                "doubled"
            } else {
                "reordered"
            };
            return Err(format!("{word}: after @{}", self.last));
        }
        self.last = seen.revision;
        while let Some(change) = self.timeline.known().get(self.position) {
            let before = change.revision < Some(seen.revision);
            match self.shown(change) {
                Some(skipped) if before => return Err(format!("left out {skipped}")),
                Some(expected) if change.revision == Some(seen.revision) => {
                    self.position += 1;
                    return if expected == *event {
                        Ok(())
                    } else {
                        Err(format!("not what was written, which is {expected}"))
                    };
                }
                _ if before => self.position += 1,
                _ => break,
            }
        }
        Err(format!("phantom: nothing happened to {key} then"))
    }

    /// Everything up to `revision` must have been shown.
    fn up_to(&mut self, revision: Revision) -> Result<(), String> {
        let end = self.timeline.after(revision);
        for position in self.position..end {
            if let Some(skipped) = self.shown(&self.timeline.known()[position]) {
                return Err(format!("left out {skipped}"));
            }
        }
        self.position = self.position.max(end);
        Ok(())
    }

    /// What a stream of this scope shows of a change.
    fn shown(&self, change: &Change) -> Option<Event> {
        let covered = |content: Option<Content>| content.filter(|content| self.scope.covers(*content));
        let revision = change.revision.expect("only known changes are looked at");
        let seen = |content| Seen { content, revision };
        match (covered(change.before), covered(change.after)) {
            (None, Some(content)) => Some(Event::Added(change.key, seen(content))),
            (Some(_), Some(content)) => Some(Event::Modified(change.key, seen(content))),
            (Some(content), None) => Some(Event::Deleted(change.key, seen(content))),
            (None, None) => None,
        }
    }
}
