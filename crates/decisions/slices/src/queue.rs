//! Which Service is handled next, and when?
//!
//! A lone change is handed out at once. Changes that arrive while their Service is being written are
//! merged and handed out when the write is done, so bursts cost one write per round trip and the last
//! state is never lost. Failures wait longer each time and are never given up.

use crate::service::ServiceKey;
use pointsman_model::Text;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// A point on the monotonic clock: the time since some fixed start.
pub type Tick = Duration;

/// Room that is kept for later when nothing is left to do: after a start it was made for all keys at once.
const KEPT: usize = 64;

/// How changes are merged and failures repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long a first change waits for more (`--endpointslice-updates-batch-period`).
    pub batch_period: Duration,
    /// Wait after the first failure.
    pub first_retry: Duration,
    /// Longest wait after a failure.
    pub last_retry: Duration,
}

impl Default for Pace {
    /// No batching. Retries start at 50 ms, since most failures are conflicts that a fresh look
    /// resolves; upstream starts at 1 s.
    fn default() -> Self {
        Self {
            batch_period: Duration::ZERO,
            first_retry: Duration::from_millis(50),
            last_retry: Duration::from_secs(60),
        }
    }
}

/// How the handling of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be.
    Done,
    /// To be tried again.
    Retry,
}

/// Keys with work to do, each at most once, and at most one handling of each at a time.
#[derive(Debug)]
pub struct WorkQueue<K> {
    pace: Pace,
    items: HashMap<K, Item>,
    ready: Ready<K>,
    timers: BTreeSet<(Tick, K)>,
}

/// Keys that are due, the oldest of each namespace in turn: one with hundreds of Services that all change at once, as
/// when it goes away, must not hold up a pod that waits elsewhere to be taken out of use.
#[derive(Debug)]
struct Ready<K> {
    namespace: fn(&K) -> Text,
    waiting: HashMap<Text, VecDeque<K>>,
    /// The namespaces of `waiting`, the next one first.
    turns: VecDeque<Text>,
    len: usize,
}

impl<K> Ready<K> {
    fn push(&mut self, key: K) {
        let namespace = (self.namespace)(&key);
        let keys = self.waiting.entry(namespace.clone()).or_default();
        if keys.is_empty() {
            self.turns.push_back(namespace);
        }
        keys.push_back(key);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<K> {
        let namespace = self.turns.pop_front()?;
        let keys = self.waiting.get_mut(&namespace).expect("a turn has keys");
        let key = keys.pop_front();
        if keys.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        self.len -= 1;
        key
    }
}

#[derive(Debug)]
struct Item {
    state: State,
    failures: u32,
}

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Failed before, nothing to do since; only remembered between `next` and `finish`.
    Idle,
    /// In `timers` until this tick.
    Waiting(Tick),
    /// In `ready`.
    Ready,
    /// Handed out; with the tick at which it is due again, if something changed since.
    InFlight(Option<Tick>),
}

impl WorkQueue<ServiceKey> {
    /// An empty queue in which namespaces take turns.
    pub fn by_namespace(pace: Pace) -> Self {
        let mut queue = Self::new(pace);
        queue.ready.namespace = |key| key.namespace.clone();
        queue
    }
}

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    /// An empty queue that hands out first what came first.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            items: HashMap::new(),
            ready: Ready {
                namespace: |_| Text::default(),
                waiting: HashMap::new(),
                turns: VecDeque::new(),
                len: 0,
            },
            timers: BTreeSet::new(),
        }
    }

    /// The key has work to do, as soon as possible.
    pub fn add(&mut self, key: &K, now: Tick) {
        self.add_at(key, now, now);
    }

    /// The key has work to do that may be merged with more to come within the batch period.
    pub fn add_batched(&mut self, key: &K, now: Tick) {
        self.add_at(key, now.saturating_add(self.pace.batch_period), now);
    }

    /// Hands out the next key, which then is in flight until [`WorkQueue::finish`].
    pub fn next(&mut self, now: Tick) -> Option<K> {
        while let Some((due, _)) = self.timers.first() {
            if *due > now {
                break;
            }
            let (_, key) = self.timers.pop_first().expect("there is a first one");
            self.make_ready(key);
        }
        let key = self.ready.pop()?;
        self.items.get_mut(&key).expect("a ready key has an item").state = State::InFlight(None);
        Some(key)
    }

    /// The handling of a key ended.
    pub fn finish(&mut self, key: &K, outcome: Outcome, now: Tick) {
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let State::InFlight(again) = item.state else {
            return;
        };
        item.state = State::Idle;
        let retry = match outcome {
            Outcome::Done => {
                item.failures = 0;
                None
            }
            Outcome::Retry => {
                let doubled = self.pace.first_retry.saturating_mul(1 << item.failures.min(30));
                item.failures = item.failures.saturating_add(1);
                Some(now.saturating_add(doubled.min(self.pace.last_retry)))
            }
        };
        match again.into_iter().chain(retry).min() {
            Some(due) => self.add_at(key, due, now),
            None => {
                self.items.remove(key);
                if self.items.is_empty() {
                    self.items.shrink_to(KEPT);
                    self.ready.waiting.shrink_to(KEPT);
                    self.ready.turns.shrink_to(KEPT);
                }
            }
        }
    }

    /// The earliest tick at which [`WorkQueue::next`] may have something, if not now.
    pub fn wake_at(&self) -> Option<Tick> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// How many keys have work to do and are not in flight.
    pub fn len(&self) -> usize {
        self.ready.len + self.timers.len()
    }

    /// Whether no key has work to do, those in flight aside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key has work to do at `due`, or sooner if something else says so.
    pub fn add_at(&mut self, key: &K, due: Tick, now: Tick) {
        let item = self.items.entry(key.clone()).or_insert(Item {
            state: State::Idle,
            failures: 0,
        });
        match item.state {
            State::Ready => {}
            // The window opens with the first change and does not slide.
            State::InFlight(again) => {
                item.state = State::InFlight(Some(again.map_or(due, |known| known.min(due))))
            }
            State::Waiting(until) if until <= due => {}
            State::Waiting(until) => {
                self.timers.remove(&(until, key.clone()));
                self.wait_or_ready(key.clone(), due, now);
            }
            State::Idle => self.wait_or_ready(key.clone(), due, now),
        }
    }

    fn wait_or_ready(&mut self, key: K, due: Tick, now: Tick) {
        if due <= now {
            self.make_ready(key);
            return;
        }
        self.items.get_mut(&key).expect("the caller has its item").state = State::Waiting(due);
        self.timers.insert((due, key));
    }

    fn make_ready(&mut self, key: K) {
        self.items.get_mut(&key).expect("the caller has its item").state = State::Ready;
        self.ready.push(key);
    }
}
