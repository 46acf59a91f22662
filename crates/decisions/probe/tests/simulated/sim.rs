//! A container whose answers are given by a function of time, and a clock that jumps from one
//! event to the next.

use pointsman_probe::{Container, Effects, Floors, Kind, Outcome, Pace, Start, Tick, Timing, Verdict};
use serde_json::Value;
use std::time::Duration;

/// How a container answers: at a millisecond, to a kind of probe, with an outcome after a while.
pub type Answer = Box<dyn FnMut(u64, Kind) -> (Outcome, u64)>;

pub struct Sim {
    pub container: Container,
    pub pace: Pace,
    pub now: u64,
    answer: Answer,
    under_way: Vec<(u64, Kind, Outcome)>,
    /// When which check began.
    pub begun: Vec<(u64, Kind)>,
    /// When which verdict changed to what.
    pub verdicts: Vec<(u64, Kind, Verdict)>,
    /// Everything that outcomes led to.
    pub effects: Vec<(u64, Effects)>,
}

/// The timing of a probe as the API carries it.
pub fn timing(kind: Kind, probe: &Value) -> Timing {
    let probe = serde_json::from_value(probe.clone()).expect("a probe");
    Timing::of(kind, &probe, Floors::default())
}

pub fn at(millis: u64) -> Tick {
    Tick(1_000_000_000_000) + Duration::from_millis(millis)
}

impl Sim {
    pub fn new(probes: &[(Kind, Value)], answer: impl FnMut(u64, Kind) -> (Outcome, u64) + 'static) -> Self {
        let probes = probes.iter().map(|(kind, probe)| (*kind, timing(*kind, probe)));
        Self {
            container: Container::new(probes, false),
            pace: Pace::default(),
            now: 0,
            answer: Box::new(answer),
            under_way: Vec::new(),
            begun: Vec::new(),
            verdicts: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// A running container with one probe that answers at once.
    pub fn of(kind: Kind, probe: Value, mut answer: impl FnMut(u64) -> Outcome + 'static) -> Self {
        let mut sim = Self::new(&[(kind, probe)], move |now, _| (answer(now), 0));
        sim.start();
        sim
    }

    pub fn start(&mut self) {
        self.container.start(Start::default(), at(self.now));
    }

    pub fn stop(&mut self) {
        if let Some(verdict) = self.container.stop() {
            self.verdicts.push((self.now, Kind::Readiness, verdict));
        }
    }

    /// Lets everything happen up to and including this millisecond.
    pub fn until(&mut self, end: u64) {
        loop {
            let finish = self.under_way.iter().map(|(at, _, _)| *at).min();
            let due = Kind::ALL.into_iter().filter_map(|kind| self.container.due(kind));
            let due = due
                .min()
                .map(|due| due.since(at(0)).as_nanos().div_ceil(1_000_000) as u64);
            let Some(next) = [finish, due]
                .into_iter()
                .flatten()
                .min()
                .map(|at| at.max(self.now))
            else {
                break;
            };
            if next > end {
                break;
            }
            self.now = next;
            self.step();
        }
        self.now = end;
    }

    fn step(&mut self) {
        let now = self.now;
        let ended: Vec<_> = self.under_way.extract_if(.., |(at, _, _)| *at <= now).collect();
        for (_, kind, outcome) in ended {
            let effects = self.container.finish(kind, outcome, at(now), self.pace);
            self.effects.push((now, effects));
            if let Some(verdict) = effects.verdict {
                self.verdicts.push((now, kind, verdict));
            }
        }
        for kind in Kind::ALL {
            if self.container.begin(kind, at(now), self.pace).is_some() {
                self.begun.push((now, kind));
                let (outcome, takes) = (self.answer)(now, kind);
                self.under_way.push((now + takes, kind, outcome));
            }
        }
    }

    /// When checks of this kind began.
    pub fn times(&self, kind: Kind) -> Vec<u64> {
        self.begun
            .iter()
            .filter(|(_, of)| *of == kind)
            .map(|(at, _)| *at)
            .collect()
    }
}

/// Answers success from this millisecond on.
pub fn good_from(first: u64) -> impl FnMut(u64) -> Outcome {
    move |now| {
        if now >= first {
            Outcome::Success
        } else {
            Outcome::Failure
        }
    }
}
