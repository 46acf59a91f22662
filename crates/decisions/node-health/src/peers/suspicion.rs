//! What does the silence of a peer mean to the node that asked?
//!
//! Little, until it has lasted: a pause of half a second and the loss that is usual on the way are no
//! reason to call a node unreachable, and a peer that never answered may be behind a firewall. A late answer is
//! asked for again at once, so that a packet lost before a pause does not make it seem longer, and then at a faster
//! pace, so that a verdict rests on several asks. Silence that the
//! asker slept through is not silence of the peer. Nor, perhaps, is one that most other peers keep as well: then
//! nothing is said until it is clear who is cut off, and everything at once.

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_model::Text;

/// The most asks that are remembered as open.
const OPEN: usize = 64;
/// By chance, as many asks in a row are lost less often than this.
const CHANCE: f64 = 1e-4;
/// Bounds of the asks that have to stay open before a peer is called unreachable.
const MISSES: (usize, usize) = (3, 12);
/// An answer is late after this at least, whatever the round trips were.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// How much one ask counts for the usual loss.
const LOSS_SHARE: f64 = 1.0 / 64.0;
/// Answers in a row that make a peer reachable again, doubled by every relapse up to the second.
const ANSWERS: (u32, u32) = (2, 64);
/// A peer that stayed reachable for this long has no relapse.
const RELAPSE: Duration = Duration::from_secs(10);

/// How fast silence becomes an opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Time between two asks.
    pub every: Duration,
    /// The same while two answers are late.
    pub urgent: Duration,
    /// Silence that makes a peer unreachable, counted from the first ask without an answer.
    pub silence: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(250),
            urgent: Duration::from_millis(100),
            silence: Duration::from_millis(550),
        }
    }
}

impl Thresholds {
    /// As patient as the latency profile is whose nodes report this often: a network that heartbeats are spared
    /// on is one that loses and delays.
    pub fn of_report_period(period: Duration) -> Self {
        let scale = match period.as_secs() {
            0..=10 => 1,
            11..=20 => 2,
            _ => 4,
        };
        let Self {
            every,
            urgent,
            silence,
        } = Self::default();
        Self {
            every: every * scale,
            urgent: urgent * scale,
            silence: silence * scale,
        }
    }
}

/// What one node knows of one peer.
#[derive(Clone, Debug)]
pub struct Suspicion {
    /// When the asks went out that are younger than the last answer.
    open: VecDeque<Duration>,
    /// It has answered once.
    known: bool,
    /// When the youngest ask was sent that it answered.
    heard: Option<Duration>,
    unreachable: bool,
    /// Answers in a row while it is unreachable.
    answers: u32,
    /// Answers that it takes to be reachable again.
    needed: u32,
    restored: Option<Duration>,
    /// Share of asks that are lost usually.
    loss: f64,
    trip: Duration,
    variation: Duration,
    begin: Duration,
    asked: Option<Duration>,
}

impl Suspicion {
    fn new(begin: Duration) -> Self {
        Self {
            open: VecDeque::with_capacity(OPEN),
            known: false,
            heard: None,
            unreachable: false,
            answers: 0,
            needed: ANSWERS.0,
            restored: None,
            loss: 0.0,
            trip: Duration::ZERO,
            variation: Duration::ZERO,
            begin,
            asked: None,
        }
    }

    /// Whether the peer counts as unreachable.
    pub fn unreachable(&self) -> bool {
        self.unreachable
    }

    fn ask(&mut self, now: Duration) {
        if self.open.len() < OPEN {
            self.open.push_back(now);
        }
        self.asked = Some(now);
    }

    /// When to ask next, if no answer comes before.
    fn next(&self, thresholds: &Thresholds) -> Duration {
        let Some(asked) = self.asked else {
            return self.begin;
        };
        // Whoever answers again is soon asked often enough to be believed.
        let usual = if self.unreachable && self.answers > 0 {
            asked + thresholds.urgent
        } else {
            asked + thresholds.every
        };
        match self.open.front() {
            Some(first) if self.known && !self.unreachable => {
                let pace = match self.open.len() {
                    1 => Duration::ZERO,
                    _ => thresholds.urgent,
                };
                let late = *first + self.patience();
                usual.min(late.max(asked + pace))
            }
            _ => usual,
        }
    }

    /// An answer to the ask of `sent`. True when it changed the opinion.
    fn answered(&mut self, sent: Duration, now: Duration) -> bool {
        let mut lost = 0;
        while self.open.front().is_some_and(|open| *open <= sent) {
            lost += u32::from(self.open.pop_front() != Some(sent));
        }
        if !self.unreachable {
            for _ in 0..lost {
                self.loss += (1.0 - self.loss) * LOSS_SHARE;
            }
            self.loss *= 1.0 - LOSS_SHARE;
        }
        self.learn_trip(now.saturating_sub(sent));
        self.known = true;
        self.heard = self.heard.max(Some(sent));
        if !self.unreachable {
            return false;
        }
        self.answers = if lost == 0 { self.answers + 1 } else { 1 };
        if self.answers < self.needed {
            return false;
        }
        self.unreachable = false;
        self.restored = Some(now);
        true
    }

    /// Round trips as RFC 6298 estimates them.
    fn learn_trip(&mut self, trip: Duration) {
        if self.known {
            self.variation = self.variation * 3 / 4 + self.trip.abs_diff(trip) / 4;
            self.trip = self.trip * 7 / 8 + trip / 8;
        } else {
            (self.trip, self.variation) = (trip, trip / 2);
        }
    }

    /// How long an answer may take.
    fn patience(&self) -> Duration {
        (self.trip + self.variation * 4).clamp(PATIENCE.0, PATIENCE.1)
    }

    /// How many asks in a row have to stay without an answer.
    fn misses(&self) -> usize {
        if self.loss <= f64::EPSILON {
            return MISSES.0;
        }
        let needed = (CHANCE.ln() / self.loss.min(0.99).ln()).ceil();
        (needed as usize).clamp(MISSES.0, MISSES.1)
    }

    /// When silence will be an opinion, if nothing comes.
    fn due(&self, thresholds: &Thresholds) -> Option<Duration> {
        if !self.known || self.unreachable {
            return None;
        }
        if self.open.len() < MISSES.0 {
            return None;
        }
        let first = *self.open.front()? + thresholds.silence;
        let last = *self.open.get(self.misses() - 1)?;
        Some(first.max(last) + self.patience())
    }

    /// Whether the silence has lasted long enough to change the opinion.
    fn is_silent(&self, thresholds: &Thresholds, now: Duration) -> bool {
        self.due(thresholds).is_some_and(|due| now >= due)
    }

    /// Whether it answered one of the last asks that it had the time to answer.
    fn is_heard(&self, thresholds: &Thresholds, now: Duration) -> bool {
        let lately = thresholds.every + thresholds.urgent + self.patience();
        self.heard.is_some_and(|sent| now <= sent + lately)
    }

    fn give_up(&mut self, now: Duration) {
        let relapse = self.restored.is_some_and(|at| now < at + RELAPSE);
        self.needed = if relapse {
            (self.needed * 2).min(ANSWERS.1)
        } else {
            ANSWERS.0
        };
        (self.unreachable, self.answers) = (true, 0);
    }

    fn forgive(&mut self) {
        self.open.clear();
    }
}

/// One node that asks its peers.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    thresholds: Thresholds,
    peers: Vec<(Text, Suspicion)>,
    /// When it last looked.
    looked: Option<Duration>,
}

impl Observer {
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            ..Self::default()
        }
    }

    /// Goes on with other thresholds.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
    }

    /// Asks these peers from now on; what is known of those that stay is kept. True when that changed an
    /// opinion.
    pub fn set_peers(&mut self, peers: &[Text], now: Duration) -> bool {
        let before = self.opinions().count();
        self.peers.retain(|(name, _)| peers.contains(name));
        let changed = self.opinions().count() != before;
        for name in peers {
            if !self.peers.iter().any(|(known, _)| known == name) {
                self.peers.push((name.clone(), Suspicion::new(now)));
            }
        }
        changed
    }

    /// Whom it asks, in the order of the numbers that [`Observer::look`] hands out.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (&Text, &Suspicion)> {
        self.peers.iter().map(|(name, suspicion)| (name, suspicion))
    }

    /// Whom it does not reach.
    pub fn opinions(&self) -> impl Iterator<Item = &Text> {
        let unreachable = self.peers.iter().filter(|(_, known)| known.unreachable);
        unreachable.map(|(name, _)| name)
    }

    /// An answer to an ask. Answers that have arrived have to be reported before [`Observer::look`]. True when
    /// it changed an opinion.
    pub fn answered(&mut self, peer: &str, sent: Duration, now: Duration) -> bool {
        let known = self.peers.iter_mut().find(|(name, _)| **name == *peer);
        known.is_some_and(|(_, suspicion)| suspicion.answered(sent, now))
    }

    /// Hands the number of every peer that is to be asked now to `ask`. True when silence changed an opinion.
    pub fn look(&mut self, now: Duration, mut ask: impl FnMut(usize)) -> bool {
        // Whoever did not look in time did not listen either: it was stopped, or starved.
        let slept = self
            .looked
            .is_some_and(|last| now > last + self.thresholds.every + self.thresholds.urgent);
        self.looked = Some(now);
        let mut changed = false;
        for index in 0..self.peers.len() {
            if slept {
                self.peers[index].1.forgive();
            }
            let silent = self.peers[index].1.is_silent(&self.thresholds, now);
            if silent && self.is_theirs(index, now) {
                self.peers[index].1.give_up(now);
                changed = true;
            }
            let suspicion = &mut self.peers[index].1;
            if suspicion.next(&self.thresholds) <= now {
                suspicion.ask(now);
                ask(index);
            }
        }
        changed
    }

    /// Whether the silence of a peer says something of the peer: at least half of the others are heard, or none is left that
    /// might still be.
    fn is_theirs(&self, silent: usize, now: Duration) -> bool {
        let (mut all, mut heard, mut open) = (0, 0, 0);
        for (index, (_, other)) in self.peers.iter().enumerate() {
            if index == silent || !other.known {
                continue;
            }
            all += 1;
            if other.is_heard(&self.thresholds, now) {
                heard += 1;
            } else if !other.unreachable && !other.is_silent(&self.thresholds, now) {
                open += 1;
            }
        }
        heard * 2 >= all || open == 0
    }

    /// When to look again.
    pub fn wake_at(&self) -> Option<Duration> {
        let soonest = |(_, suspicion): &(Text, Suspicion)| {
            // What was due at the last look waits for other peers.
            let due = suspicion.due(&self.thresholds);
            let due = due.filter(|due| Some(*due) > self.looked);
            let next = suspicion.next(&self.thresholds);
            due.map_or(next, |due| due.min(next))
        };
        self.peers.iter().map(soonest).min()
    }
}
