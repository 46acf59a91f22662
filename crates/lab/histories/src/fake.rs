//! A server that keeps its promises, in memory, with clients that lose answers: histories to try the judge on.

use crate::history::{
    Answer, Content, Event, Freshness, History, Key, Listing, Nanos, Operation, Request, Revision, Scope,
    Seen, Watch, WriteId,
};
use crate::linearize::Change;
use crate::timeline::Timeline;
use fastrand::Rng;
use std::collections::BTreeMap;

const KEYS: usize = 4;
const CLIENTS: usize = 5;
const WATCHERS: usize = 3;
/// Nothing is there yet.
const FIRST: Revision = 10;

/// A history of about `steps` operations, which nothing is wrong with.
pub fn history(seed: u64, steps: usize) -> History {
    Fake::new(seed).play(steps).finish()
}

/// The same, with the last acknowledged write to some object undone before everything is read once more.
pub fn history_with_a_lost_write(seed: u64, steps: usize) -> Option<History> {
    let mut fake = Fake::new(seed).play(steps);
    fake.settle();
    let acknowledged = |seen: Seen| {
        let operations = fake.history.operations.iter();
        operations.into_iter().any(|operation| {
            operation.request.write() == Some(seen.content.write)
                && matches!(operation.answer, Some((_, Answer::Written(_))))
        })
    };
    let key = (0..KEYS).find(|key| fake.state[*key].is_some_and(acknowledged))?;
    let last = fake.changes.iter().rposition(|change| change.key == Key(key))?;
    // A deletion without an answer would explain that nothing is there.
    let before = Some(fake.changes[last].before?);
    let content_of = |change: &&Change| change.after == before;
    let revision = fake.changes[..last]
        .iter()
        .rev()
        .find(content_of)
        .and_then(|change| change.revision);
    fake.state[key] = before
        .zip(revision)
        .map(|(content, revision)| Seen { content, revision });
    fake.read_everything();
    Some(fake.history)
}

struct Fake {
    random: Rng,
    now: Nanos,
    revision: Revision,
    state: Vec<Option<Seen>>,
    changes: Vec<Change>,
    history: History,
    clients: Vec<Option<Pending>>,
    /// Requests that nobody waits for any more, and that may still be carried out.
    orphans: Vec<usize>,
    /// Index of a running watch, and how many changes it has been through.
    watchers: Vec<Option<(usize, usize)>>,
    writes: u32,
}

struct Pending {
    operation: usize,
    answer: Option<Answer>,
}

impl Fake {
    fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            now: 0,
            revision: FIRST,
            state: vec![None; KEYS],
            changes: Vec::new(),
            history: History {
                keys: KEYS,
                ..History::default()
            },
            clients: (0..CLIENTS).map(|_| None).collect(),
            orphans: Vec::new(),
            watchers: vec![None; WATCHERS],
            writes: 0,
        }
    }

    fn play(mut self, steps: usize) -> Self {
        while self.history.operations.len() < steps {
            self.now += self.random.u64(1..50);
            match self.random.u32(0..12) {
                0 => self.drive_orphan(),
                1..=3 => self.drive_watcher(),
                _ => self.drive_client(),
            }
        }
        self
    }

    fn finish(mut self) -> History {
        self.settle();
        self.read_everything();
        if self.random.bool() {
            // Somebody saw everything.
            self.open_from(WATCHERS - 1, Some(FIRST));
        }
        for watcher in 0..WATCHERS {
            while self.deliver(watcher) {}
            if let Some((watch, _)) = self.watchers[watcher] {
                self.history.watches[watch].must_reach = Some(self.revision);
            }
        }
        self.history
    }

    /// Lets all clients finish.
    fn settle(&mut self) {
        for client in 0..CLIENTS {
            while self.clients[client].is_some() {
                self.now += 7;
                self.advance(client);
            }
        }
    }

    fn read_everything(&mut self) {
        let gets = (0..KEYS).map(|key| Request::Get { key: Key(key) });
        for request in gets.chain([Request::List(Freshness::Newest)]) {
            self.now += 5;
            let operation = self.begin(request);
            let answer = self.carry_out(request);
            self.now += 5;
            self.history.operations[operation].answer = Some((self.now, answer));
        }
    }

    fn begin(&mut self, request: Request) -> usize {
        self.history.operations.push(Operation {
            request,
            server: 0,
            start: self.now,
            answer: None,
        });
        self.history.operations.len() - 1
    }

    fn drive_client(&mut self) {
        let client = self.random.usize(0..CLIENTS);
        if self.clients[client].is_some() {
            self.advance(client);
        } else {
            let request = self.request();
            let operation = self.begin(request);
            self.clients[client] = Some(Pending {
                operation,
                answer: None,
            });
        }
    }

    /// The request is carried out, then answered; either may be lost on the way.
    fn advance(&mut self, client: usize) {
        let Some(mut pending) = self.clients[client].take() else {
            return;
        };
        let lost = self.random.u32(0..20) == 0;
        match pending.answer.take() {
            None if lost => self.orphans.push(pending.operation),
            None => {
                let request = self.history.operations[pending.operation].request;
                pending.answer = Some(self.carry_out(request));
                self.clients[client] = Some(pending);
            }
            Some(_) if lost => {}
            Some(answer) => self.history.operations[pending.operation].answer = Some((self.now, answer)),
        }
    }

    fn drive_orphan(&mut self) {
        if !self.orphans.is_empty() {
            let at = self.random.usize(0..self.orphans.len());
            let operation = self.orphans.swap_remove(at);
            if self.random.bool() {
                self.carry_out(self.history.operations[operation].request);
            }
        }
    }

    fn request(&mut self) -> Request {
        let key = Key(self.random.usize(0..KEYS));
        self.writes += 1;
        let write = WriteId(self.writes);
        // Now and then an old version is expected.
        let expected = match self.random.u32(0..3) {
            0 => None,
            1 => self.state[key.0].map(|seen| seen.content.write),
            _ => self
                .changes
                .iter()
                .rev()
                .take(6)
                .filter(|change| change.key == key)
                .find_map(|change| change.after.map(|content| content.write)),
        };
        match self.random.u32(0..13) {
            0 | 1 => Request::Create { key, write },
            2..=4 => Request::Put { key, write, expected },
            5 => Request::Patch { key, write },
            6 => Request::Delete { key, expected },
            7..=9 => Request::Get { key },
            10 => Request::List(Freshness::Newest),
            11 => Request::List(Freshness::Any),
            _ => Request::List(Freshness::NotOlderThan(self.revision)),
        }
    }

    fn carry_out(&mut self, request: Request) -> Answer {
        let present = request.key().and_then(|key| self.state[key.0]);
        let expects =
            |expected: Option<WriteId>, seen: Seen| expected.is_none_or(|write| write == seen.content.write);
        match (request, present) {
            (Request::Create { .. }, Some(_)) => Answer::Exists,
            (Request::Create { key, write }, None) => self.set(key, Content::whole(write)),
            (
                Request::Put { .. } | Request::Patch { .. } | Request::Delete { .. } | Request::Get { .. },
                None,
            ) => Answer::Missing,
            (Request::Put { key, write, expected }, Some(seen)) if expects(expected, seen) => {
                self.set(key, Content::whole(write))
            }
            (Request::Patch { key, write }, Some(seen)) => self.set(
                key,
                Content {
                    write,
                    base: seen.content.base,
                },
            ),
            (Request::Delete { key, expected }, Some(seen)) if expects(expected, seen) => {
                let revision = self.next_revision();
                self.changed(key, None, revision);
                Answer::Deleted
            }
            (Request::Put { .. } | Request::Delete { .. }, Some(_)) => Answer::Conflict,
            (Request::Get { .. }, Some(seen)) => Answer::Found(seen),
            (Request::List(_), _) => {
                let objects = self.state.iter().enumerate();
                let objects = objects.filter_map(|(key, seen)| Some((Key(key), (*seen)?)));
                Answer::Listed(Listing {
                    revision: self.revision,
                    objects: objects.collect::<BTreeMap<_, _>>(),
                })
            }
        }
    }

    /// Writes elsewhere take revisions, too.
    fn next_revision(&mut self) -> Revision {
        self.revision += self.random.u64(1..4);
        self.revision
    }

    fn set(&mut self, key: Key, content: Content) -> Answer {
        let revision = self.next_revision();
        self.changed(key, Some(content), revision);
        Answer::Written(Seen { content, revision })
    }

    fn changed(&mut self, key: Key, after: Option<Content>, revision: Revision) {
        self.changes.push(Change {
            key,
            before: self.state[key.0].map(|seen| seen.content),
            after,
            revision: Some(revision),
        });
        self.state[key.0] = after.map(|content| Seen { content, revision });
    }

    fn drive_watcher(&mut self) {
        let watcher = self.random.usize(0..WATCHERS);
        match (self.watchers[watcher], self.random.u32(0..30)) {
            (None, _) => self.open(watcher),
            (Some(_), 0) => self.watchers[watcher] = None,
            (Some((watch, through)), 1) => {
                let revision = match self.changes.get(through) {
                    // Somewhere between the last change that was shown and the next one.
                    Some(next) => next.revision.expect("all have one here") - 1,
                    None => self.revision,
                };
                self.history.watches[watch]
                    .events
                    .push((self.now, Event::Bookmark(revision)));
            }
            (Some(_), _) => _ = self.deliver(watcher),
        }
    }

    fn open(&mut self, watcher: usize) {
        let from = self.random.bool().then(|| self.random.u64(FIRST..=self.revision));
        self.open_from(watcher, from);
    }

    fn open_from(&mut self, watcher: usize, from: Option<Revision>) {
        let scope = if watcher == 0 { Scope::Even } else { Scope::All };
        let mut events = Vec::new();
        let start = from.unwrap_or(self.revision);
        if from.is_none() {
            for (key, seen) in self.state.iter().enumerate() {
                if let Some(seen) = seen.filter(|seen| scope.covers(seen.content)) {
                    events.push((self.now, Event::Added(Key(key), seen)));
                }
            }
            events.push((self.now, Event::InitialEnd(start)));
        }
        let through = Timeline::new(KEYS, self.changes.clone()).after(start);
        self.watchers[watcher] = Some((self.history.watches.len(), through));
        self.history.watches.push(Watch {
            server: 0,
            scope,
            from,
            from_the_start: from == Some(FIRST),
            events,
            must_reach: None,
        });
    }

    /// Shows the next change to a watcher; false if there is none.
    fn deliver(&mut self, watcher: usize) -> bool {
        let Some((watch, through)) = self.watchers[watcher] else {
            return false;
        };
        let Some(change) = self.changes.get(through) else {
            return false;
        };
        self.watchers[watcher] = Some((watch, through + 1));
        let scope = self.history.watches[watch].scope;
        let covered = |content: Option<Content>| content.filter(|content| scope.covers(*content));
        let seen = |content| Seen {
            content,
            revision: change.revision.expect("all have one here"),
        };
        let event = match (covered(change.before), covered(change.after)) {
            (None, Some(content)) => Event::Added(change.key, seen(content)),
            (Some(_), Some(content)) => Event::Modified(change.key, seen(content)),
            (Some(content), None) => Event::Deleted(change.key, seen(content)),
            (None, None) => return true,
        };
        self.history.watches[watch].events.push((self.now, event));
        true
    }
}
