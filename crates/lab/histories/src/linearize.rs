//! Is there one order of all operations that explains every answer?
//!
//! The search of Wing and Gong, with Lowe's memory of what was tried: an operation may come next if none that is still
//! to come had ended before it started. Three things keep it fast. An answer that only looked, refusals included, is
//! explained as soon as the state fits, since looking changes nothing. Writes whose revision is known come in the order of
//! their revisions; that is a part of what the server promises, and their times are checked all the same. And a
//! write that nobody answered and nobody saw is tried last.

use crate::explain::seconds;
use crate::history::{
    Answer, Content, Freshness, History, Key, Nanos, Operation, Request, Revision, Watch, WriteId,
};
use crate::observed::Observed;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// After so many steps the search gives up. A history without faults takes as many steps as it has writes.
const STEPS: usize = 2_000_000;

/// A change of one object, in the order that explains everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    pub before: Option<Content>,
    pub after: Option<Content>,
    /// None if nobody saw it.
    pub revision: Option<Revision>,
}

/// The order of changes, or why there is none.
pub fn linearize(history: &History, observed: &Observed) -> Result<Vec<Change>, String> {
    Search::new(history, observed).run(history.keys)
}

#[derive(Clone, Copy)]
struct Candidate<'a> {
    operation: &'a Operation,
    /// It has happened before this.
    end: Nanos,
}

/// A change whose revision somebody saw.
struct Known {
    revision: Revision,
    what: Next,
    /// When somebody saw it first.
    deadline: Nanos,
}

enum Next {
    /// The required operation at this position.
    Write(usize),
    Deletion(Key, WriteId),
}

struct Search<'a> {
    observed: &'a Observed,
    /// What has certainly happened, by start.
    required: Vec<Candidate<'a>>,
    /// What may have happened, by start.
    optional: Vec<Candidate<'a>>,
    known: Vec<Known>,
    /// The first deadline of the known changes from here on.
    deadlines: Vec<Nanos>,
    deleted: BTreeSet<WriteId>,
    /// Whether a watch was there from the beginning to the end, so that there is no change that nobody saw.
    all_seen: bool,
}

#[derive(Clone)]
struct Node {
    place: Place,
    changes: usize,
    explained: usize,
}

/// What decides how it can go on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    state: Vec<Option<Content>>,
    /// The newest revision that was named.
    floor: Revision,
    /// How many known changes have happened.
    known: usize,
    /// All required operations before this one are done.
    low: usize,
    done: BTreeSet<usize>,
    taken: BTreeSet<usize>,
}

#[derive(Clone, Copy)]
enum Choice {
    Required(usize),
    Optional(usize),
}

/// What a change does to an object, whoever makes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Delete,
    Create,
    Replace,
    Patch,
}

impl Effect {
    /// The effect of a request, and whether it has a condition.
    fn of(request: &Request) -> Option<(Self, bool)> {
        match request {
            Request::Create { .. } => Some((Self::Create, false)),
            Request::Put { expected, .. } => Some((Self::Replace, expected.is_some())),
            Request::Patch { .. } => Some((Self::Patch, false)),
            Request::Delete { expected, .. } => Some((Self::Delete, expected.is_some())),
            Request::Get { .. } | Request::List(_) => None,
        }
    }
}

impl<'a> Search<'a> {
    fn new(history: &'a History, observed: &'a Observed) -> Self {
        let mut required = Vec::new();
        let mut optional = Vec::new();
        for operation in &history.operations {
            if matches!(operation.request, Request::List(freshness) if freshness != Freshness::Newest) {
                continue;
            }
            let seen = operation
                .request
                .write()
                .and_then(|write| observed.version(write));
            let end = operation.answer.as_ref().map(|(end, _)| *end);
            let end = end.into_iter().chain(seen.map(|seen| seen.known_at)).min();
            match end {
                Some(end) => required.push(Candidate { operation, end }),
                None if operation.request.changes() => optional.push(Candidate {
                    operation,
                    end: Nanos::MAX,
                }),
                None => {}
            }
        }
        for candidates in [&mut required, &mut optional] {
            candidates.sort_by_key(|candidate| candidate.operation.start);
        }
        let mut known = Vec::new();
        for (position, candidate) in required.iter().enumerate() {
            let seen = candidate
                .operation
                .request
                .write()
                .and_then(|write| observed.version(write)?.seen);
            if let Some(seen) = seen {
                known.push(Known {
                    revision: seen.revision,
                    what: Next::Write(position),
                    deadline: candidate.end,
                });
            }
        }
        for (write, deletion) in observed.deletions() {
            known.push(Known {
                revision: deletion.revision,
                what: Next::Deletion(deletion.key, write),
                deadline: deletion.known_at,
            });
        }
        known.sort_by_key(|known| known.revision);
        let mut deadlines: Vec<Nanos> = known.iter().map(|known| known.deadline).collect();
        for at in (1..deadlines.len()).rev() {
            deadlines[at - 1] = deadlines[at - 1].min(deadlines[at]);
        }
        Self {
            observed,
            required,
            optional,
            known,
            deadlines,
            deleted: observed.deletions().map(|(write, _)| write).collect(),
            all_seen: history.watches.iter().any(Watch::is_complete),
        }
    }

    fn run(&self, keys: usize) -> Result<Vec<Change>, String> {
        let mut node = Node {
            place: Place {
                state: vec![None; keys],
                floor: 0,
                known: 0,
                low: 0,
                done: BTreeSet::new(),
                taken: BTreeSet::new(),
            },
            changes: 0,
            explained: 0,
        };
        let mut order: Vec<Change> = Vec::new();
        let mut tried: HashSet<Place> = HashSet::new();
        let mut open: Vec<(Node, std::vec::IntoIter<Choice>)> = Vec::new();
        let mut furthest: Option<Node> = None;
        self.look(&mut node);
        for _ in 0..STEPS {
            if node.place.low == self.required.len() && node.place.known == self.known.len() {
                return Ok(order);
            }
            if furthest
                .as_ref()
                .is_none_or(|best| best.explained < node.explained)
            {
                furthest = Some(node.clone());
            }
            let choices = self.choices(&node.place).into_iter();
            open.push((node, choices));
            node = loop {
                let Some((before, choices)) = open.last_mut() else {
                    return Err(self.explain(&furthest.expect("the start at least")));
                };
                let Some(choice) = choices.next() else {
                    open.pop();
                    continue;
                };
                order.truncate(before.changes);
                let mut next = before.clone();
                order.push(self.change(&mut next, choice));
                self.look(&mut next);
                if tried.insert(next.place.clone()) {
                    break next;
                }
            };
        }
        Err(format!(
            "undecided after {STEPS} steps; {}",
            self.explain(&furthest.expect("steps were taken"))
        ))
    }

    /// Nothing that starts later than this may come next.
    fn limit(&self, place: &Place) -> Nanos {
        let mut limit = self.deadlines.get(place.known).copied().unwrap_or(Nanos::MAX);
        for (position, candidate) in self.required.iter().enumerate().skip(place.low) {
            if candidate.operation.start > limit {
                break;
            }
            if !place.done.contains(&position) {
                limit = limit.min(candidate.end);
            }
        }
        limit
    }

    fn possible<'b>(&'b self, place: &'b Place) -> impl Iterator<Item = usize> + 'b {
        let limit = self.limit(place);
        let started = move |position: &usize| self.required[*position].operation.start <= limit;
        let positions = (place.low..self.required.len()).take_while(started);
        positions.filter(|position| !place.done.contains(position))
    }

    /// Explains every answer that the state explains now.
    fn look(&self, node: &mut Node) {
        loop {
            let place = &node.place;
            let next = self
                .known
                .get(place.known)
                .map_or(Revision::MAX, |known| known.revision);
            let fits = |position: &usize| self.explains(place, next, self.required[*position].operation);
            let Some(position) = self.possible(place).find(fits) else {
                return;
            };
            if let Some((_, Answer::Listed(listing))) = &self.required[position].operation.answer {
                node.place.floor = listing.revision;
            }
            self.finish(node, position);
        }
    }

    fn finish(&self, node: &mut Node, position: usize) {
        let place = &mut node.place;
        place.done.insert(position);
        while place.done.remove(&place.low) {
            place.low += 1;
        }
        node.explained += 1;
    }

    /// Whether an answer that changed nothing fits the state; `next` is the revision of the next known change.
    fn explains(&self, place: &Place, next: Revision, operation: &Operation) -> bool {
        let Some((_, answer)) = &operation.answer else {
            return false;
        };
        let at = |key: Key| place.state[key.0];
        match (operation.request, answer) {
            (Request::Get { key }, Answer::Found(seen)) => at(key) == Some(seen.content),
            (Request::Create { key, .. }, Answer::Exists) => at(key).is_some(),
            (
                Request::Get { key }
                | Request::Put { key, .. }
                | Request::Patch { key, .. }
                | Request::Delete { key, .. },
                Answer::Missing,
            ) => at(key).is_none(),
            (
                Request::Put {
                    key,
                    expected: Some(expected),
                    ..
                }
                | Request::Delete {
                    key,
                    expected: Some(expected),
                },
                Answer::Conflict,
            ) => at(key).is_some_and(|content| content.write != expected),
            (Request::List(_), Answer::Listed(listing)) => {
                // What the list names is the state after all that has happened by then, and nothing later.
                let shown = |key| listing.objects.get(&Key(key)).map(|seen| seen.content);
                place.floor <= listing.revision
                    && listing.revision < next
                    && (0..place.state.len()).all(|key| place.state[key] == shown(key))
            }
            _ => false,
        }
    }

    /// What may change the state next, the likeliest first.
    ///
    /// A change of unknown revision can wait until something that touches its object does not fit the state, or until
    /// it is overdue; to try it earlier would only multiply the ways.
    fn choices(&self, place: &Place) -> Vec<Choice> {
        let limit = self.limit(place);
        let mut choices = Vec::new();
        let mut stuck = BTreeSet::new();
        match self
            .known
            .get(place.known)
            .map(|known| (&known.what, known.revision))
        {
            Some((Next::Write(position), revision)) => {
                let operation = self.required[*position].operation;
                if self.after(place, operation).is_none() {
                    stuck.extend(operation.request.key());
                } else if operation.start <= limit && revision > place.floor {
                    choices.push(Choice::Required(*position));
                }
            }
            Some((Next::Deletion(key, _), _)) => _ = stuck.insert(*key),
            None => {}
        }
        // All that the state explains is done, so what is still possible and changes nothing is stuck, and so is a
        // change that cannot come.
        for position in self.possible(place) {
            let operation = self.required[position].operation;
            match operation.request.key() {
                Some(key) => {
                    let waits = self.is_unseen_change(operation) && !self.may_change(place, operation);
                    if waits || !is_change(operation) {
                        stuck.insert(key);
                    }
                }
                None => stuck.extend((0..place.state.len()).map(Key)),
            }
        }
        for position in self.possible(place) {
            let Candidate { operation, end } = self.required[position];
            let due = end <= limit || operation.request.key().is_some_and(|key| stuck.contains(&key));
            if due && self.is_unseen_change(operation) && self.may_change(place, operation) {
                choices.push(Choice::Required(position));
            }
        }
        // Of those that do the same, one is enough: nobody saw them, and the others can still come. One with a
        // condition comes first, since its condition will not hold again.
        let mut alike: BTreeMap<(Key, Effect), (bool, usize)> = BTreeMap::new();
        for (position, candidate) in self.optional.iter().enumerate() {
            let operation = candidate.operation;
            if operation.start > limit {
                break;
            }
            let key = operation.request.key().filter(|key| stuck.contains(key));
            let (Some(key), Some((effect, conditional))) = (key, Effect::of(&operation.request)) else {
                continue;
            };
            if !place.taken.contains(&position) && self.may_change(place, operation) {
                let best = alike.entry((key, effect)).or_insert((conditional, position));
                if conditional && !best.0 {
                    *best = (conditional, position);
                }
            }
        }
        choices.extend(
            alike
                .into_values()
                .map(|(_, position)| Choice::Optional(position)),
        );
        choices
    }

    /// Whether it has changed something at a revision that nobody saw.
    fn is_unseen_change(&self, operation: &Operation) -> bool {
        let write = operation.request.write();
        is_change(operation) && write.is_none_or(|write| self.observed.content(write).is_none())
    }

    /// Whether a change of unknown revision may come now. A deletion that was seen comes in its turn.
    fn may_change(&self, place: &Place, operation: &Operation) -> bool {
        if self.after(place, operation).is_none() {
            return false;
        }
        let Request::Delete { key, .. } = operation.request else {
            return !self.all_seen;
        };
        let deleted = place.state[key.0].map(|content| content.write);
        if !deleted.is_some_and(|write| self.deleted.contains(&write)) {
            return !self.all_seen;
        }
        self.known.get(place.known).is_some_and(|known| {
            known.revision > place.floor
                && matches!(known.what, Next::Deletion(own, write) if own == key && Some(write) == deleted)
        })
    }

    /// The object before and after a change, if the state permits it and it gives what was seen.
    #[expect(clippy::option_option, reason = "no change, and a change to nothing")]
    fn after(&self, place: &Place, operation: &Operation) -> Option<Option<Content>> {
        let at = |key: Key| place.state[key.0];
        let after = match operation.request {
            Request::Create { key, write } if at(key).is_none() => Some(Content::whole(write)),
            Request::Put { key, write, expected } => {
                at(key).filter(|content| expected.is_none_or(|expected| expected == content.write))?;
                Some(Content::whole(write))
            }
            Request::Patch { key, write } => Some(Content { write, ..at(key)? }),
            Request::Delete { key, expected } => {
                at(key).filter(|content| expected.is_none_or(|expected| expected == content.write))?;
                None
            }
            Request::Create { .. } | Request::Get { .. } | Request::List(_) => return None,
        };
        let seen = after.and_then(|content| self.observed.content(content.write));
        (seen.is_none() || seen == after).then_some(after)
    }

    fn change(&self, node: &mut Node, choice: Choice) -> Change {
        let Candidate { operation, .. } = match choice {
            Choice::Required(position) => self.required[position],
            Choice::Optional(position) => self.optional[position],
        };
        let after = self
            .after(&node.place, operation)
            .expect("chosen because it is possible");
        let key = operation.request.key().expect("a change has a key");
        let before = std::mem::replace(&mut node.place.state[key.0], after);
        let turn = self.known.get(node.place.known).filter(|known| match known.what {
            Next::Write(position) => matches!(choice, Choice::Required(chosen) if chosen == position),
            Next::Deletion(own, write) => {
                own == key && after.is_none() && before.is_some_and(|content| content.write == write)
            }
        });
        let revision = turn.map(|known| known.revision);
        if let Some(revision) = revision {
            node.place.floor = revision;
            node.place.known += 1;
        }
        match choice {
            Choice::Required(position) => self.finish(node, position),
            Choice::Optional(position) => _ = node.place.taken.insert(position),
        }
        node.changes += 1;
        Change {
            key,
            before,
            after,
            revision,
        }
    }

    /// What could not be explained, where the search got furthest.
    fn explain(&self, node: &Node) -> String {
        let place = &node.place;
        let mut stuck: Vec<usize> = self.possible(place).collect();
        stuck.sort_by_key(|position| self.required[*position].end);
        let state = |key: Key| match place.state[key.0] {
            Some(content) => content.to_string(),
            None => "nothing".to_owned(),
        };
        let mut text = format!("no order explains what follows {} operations:", node.explained);
        for position in stuck.into_iter().take(6) {
            let operation = self.required[position].operation;
            text.push_str(&format!("\n  {operation}"));
            if let Some(key) = operation.request.key() {
                text.push_str(&format!(" (but {key} is {})", state(key)));
            }
        }
        if let Some(next) = self.known.get(place.known) {
            let what = match &next.what {
                Next::Write(position) => self.required[*position].operation.to_string(),
                Next::Deletion(key, write) => {
                    format!("the deletion of {write} from {key}, which is {}", state(*key))
                }
            };
            let (revision, deadline) = (next.revision, seconds(next.deadline));
            text.push_str(&format!(
                "\n  next by revision @{revision}, seen at {deadline}: {what}"
            ));
        }
        let objects: Vec<String> = (0..place.state.len())
            .map(|key| format!("{}={}", Key(key), state(Key(key))))
            .collect();
        text.push_str(&format!(
            "\n  state after @{}: {}",
            place.floor,
            objects.join(" ")
        ));
        text
    }
}

/// Whether it has changed something, or may have.
fn is_change(operation: &Operation) -> bool {
    match &operation.answer {
        None => operation.request.changes(),
        Some((_, answer)) => matches!(answer, Answer::Deleted | Answer::Written(_)),
    }
}
