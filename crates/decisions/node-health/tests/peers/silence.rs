//! What silence means to the node that asked.

use pointsman_model::Text;
use pointsman_node_health::peers::{Observer, Thresholds};
use std::cell::Cell;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Numbers without a pattern, the same every time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % end
    }
}

/// One node that asks one peer over a link; `answers(t)` says how long the answer to an ask of `t` takes.
struct Pair {
    observer: Observer,
    now: Duration,
    under_way: Vec<(Duration, Duration)>,
    asks: u32,
}

impl Pair {
    fn new() -> Self {
        let mut observer = Observer::new(Thresholds::default());
        observer.set_peers(&[Text::from("peer")], Duration::ZERO);
        Self {
            observer,
            now: Duration::ZERO,
            under_way: Vec::new(),
            asks: 0,
        }
    }

    /// Goes on until `end`; returns when opinions changed.
    fn until(&mut self, end: Duration, answer: impl Fn(Duration) -> Option<Duration>) -> Vec<Duration> {
        let mut changes = Vec::new();
        while self.now < end {
            self.now += MS;
            let now = self.now;
            let arrived: Vec<_> = self.under_way.extract_if(.., |(_, at)| *at <= now).collect();
            let mut changed = false;
            for (sent, _) in arrived {
                changed |= self.observer.answered("peer", sent, now);
            }
            if self.observer.wake_at().is_some_and(|at| at <= now) {
                let (asks, under_way) = (&mut self.asks, &mut self.under_way);
                changed |= self.observer.look(now, |_| {
                    *asks += 1;
                    under_way.extend(answer(now).map(|trip| (now, now + trip)));
                });
            }
            if changed {
                changes.push(now);
            }
        }
        changes
    }

    fn unreachable(&self) -> bool {
        self.observer.opinions().next().is_some()
    }
}

#[test]
fn a_peer_that_stops_answering_is_unreachable_soon_and_back_soon() {
    for phase in 0..250 {
        let mut pair = Pair::new();
        let cut = MS * (2000 + phase);
        assert_eq!(pair.until(cut, |_| Some(MS)), []);
        let lost = pair.until(cut + MS * 3000, |_| None);
        assert_eq!(lost.len(), 1);
        let after = lost[0] - cut;
        assert!(after > MS * 550 && after <= MS * 815, "{after:?}");
        let back = pair.now;
        let found = pair.until(back + MS * 3000, |_| Some(MS));
        // An ask that is answered, and another one soon after.
        assert!(found.len() == 1 && found[0] - back <= MS * 352, "{found:?}");
    }
}

#[test]
fn pauses_of_half_a_second_are_nothing() {
    for phase in 0..250 {
        let mut pair = Pair::new();
        let begin = MS * (2000 + phase);
        let end = begin + MS * 500;
        let answer = |at: Duration| {
            Some(if at >= begin && at < end {
                end - at + MS
            } else {
                MS
            })
        };
        assert_eq!(pair.until(MS * 5000, answer), [], "a pause at {begin:?}");
    }
}

#[test]
fn a_packet_that_is_lost_before_a_pause_does_not_make_it_longer() {
    for phase in 0..250 {
        let mut pair = Pair::new();
        let begin = MS * (2000 + phase);
        let end = begin + MS * 500;
        let lost = Cell::new(false);
        let answer = |at: Duration| {
            if at + MS * 250 >= begin && !lost.replace(true) {
                return None;
            }
            Some(if at >= begin && at < end {
                end - at + MS
            } else {
                MS
            })
        };
        assert_eq!(pair.until(MS * 5000, answer), [], "a pause at {begin:?}");
    }
}

#[test]
fn silence_that_the_asker_slept_through_is_not_the_peers() {
    let mut pair = Pair::new();
    pair.until(MS * 2000, |_| Some(MS));
    pair.until(MS * 2300, |_| None);
    pair.now += MS * 5000;
    assert_eq!(pair.until(MS * 9000, |_| Some(MS)), []);
}

#[test]
fn a_peer_that_never_answered_is_not_called_unreachable() {
    let mut pair = Pair::new();
    assert_eq!(pair.until(MS * 60_000, |_| None), []);
    assert!(pair.asks <= 4 * 60 + 1, "{}", pair.asks);
}

#[test]
fn loss_and_long_ways_are_learned() {
    let mut chance = Chance(7);
    let mut pair = Pair::new();
    let draws: Vec<u32> = (0..300_000).map(|_| chance.below(100)).collect();
    // A third of the asks or answers is lost, and the way takes 200 to 300 ms.
    let answer = |at: Duration| {
        let draw = draws[at.as_millis() as usize];
        (draw >= 33).then(|| MS * (200 + draw))
    };
    let wrong = pair.until(MS * 240_000, answer).len();
    assert!(wrong <= 4, "{wrong} wrong opinions in four minutes");
    let cut = pair.now;
    let lost = pair.until(cut + MS * 5000, |_| None);
    assert!(pair.unreachable() && lost[0] - cut <= MS * 3000, "{lost:?}");
}

#[test]
fn a_peer_that_comes_and_goes_has_to_answer_longer_each_time() {
    let mut pair = Pair::new();
    pair.until(MS * 2000, |_| Some(MS));
    let mut waits = Vec::new();
    for _ in 0..8 {
        pair.until(pair.now + MS * 1500, |_| None);
        let back = pair.now;
        while pair.unreachable() {
            pair.until(pair.now + MS, |_| Some(MS));
        }
        waits.push(pair.now - back);
        pair.until(pair.now + MS * 500, |_| Some(MS));
    }
    assert!(waits[..7].is_sorted() && waits[0] <= MS * 352, "{waits:?}");
    assert!(waits[6..].iter().all(|wait| *wait > MS * 10_000), "{waits:?}");
}

#[test]
fn what_a_node_thinks_of_a_peer_goes_with_the_task_of_asking_it() {
    let mut pair = Pair::new();
    pair.until(MS * 2000, |_| Some(MS));
    pair.until(MS * 4000, |_| None);
    assert!(pair.unreachable());
    assert!(pair.observer.set_peers(&["other".into()], pair.now));
    assert!(!pair.unreachable());
}

/// A node whose own network fails cannot tell by one silent peer, but by most of them.
#[test]
fn who_loses_everybody_accuses_nobody_before_it_accuses_most() {
    let names: Vec<Text> = (0..6).map(|index| format!("peer-{index}").into()).collect();
    for seed in 0..500u64 {
        let mut chance = Chance(seed);
        let mut observer = Observer::new(Thresholds::default());
        // Peers that became known one after the other are asked one after the other.
        let mut known = 0;
        let (mut under_way, mut first) = (Vec::<(usize, Duration, Duration)>::new(), None);
        let cut = MS * (4000 + chance.below(250));
        let mut now = Duration::ZERO;
        while first.is_none() && now < MS * 8000 {
            now += MS;
            if known < names.len() && chance.below(100) == 0 {
                known += 1;
                observer.set_peers(&names[..known], now);
            }
            let arrived: Vec<_> = under_way.extract_if(.., |(_, _, at)| *at <= now).collect();
            for (peer, sent, _) in arrived {
                observer.answered(&names[peer], sent, now);
            }
            if observer.wake_at().is_some_and(|at| at <= now) {
                let changed = observer.look(now, |index| {
                    if now < cut && chance.below(100) >= 10 {
                        under_way.push((index, now, now + MS * (1 + chance.below(3))));
                    }
                });
                first = (changed && now > cut).then_some((now, observer.opinions().count()));
            }
        }
        let (at, accused) = first.expect("it notices");
        assert!(accused >= 4, "{accused} accused at {at:?}, seed {seed}");
        assert!(at - cut <= MS * 1300, "{at:?}, seed {seed}");
    }
}
