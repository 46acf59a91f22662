//! When does each hollow programmer commit what?
//!
//! Pure: versions come in, and lines of programmers that have just committed come out as time passes. A
//! programmer that is committing takes what came meanwhile with its next commit, as a proxy does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::watermark::{Progress, Watermark};
use pointsman_telemetry::FineSnapshot;

/// Longest pause that a commit may take.
const LONGEST: usize = 1000;

#[derive(Debug, Default)]
struct Programmer {
    planned: Watermark,
    committed: Watermark,
    /// Samples that the running commit will give: when their changes happened.
    triggers: Vec<Moment>,
    /// How far into the shared list of triggers it has come.
    seen_triggers: u64,
    committing: bool,
    counts: BTreeMap<u32, u64>,
    sum: f64,
}

/// All hollow programmers.
#[derive(Debug)]
pub struct Hollow {
    programmers: Vec<Programmer>,
    received: Watermark,
    /// Trigger times that not all programmers have taken up, and the number of the first of them.
    triggers: VecDeque<Moment>,
    first_trigger: u64,
    /// Who commits in how many milliseconds from now.
    wheel: VecDeque<Vec<u32>>,
    idle: Vec<u32>,
    shortest: u64,
    spread: u64,
    chance: u64,
}

impl Hollow {
    /// So many programmers whose commits take between these two times.
    pub fn new(count: usize, shortest: Duration, longest: Duration, seed: u64) -> Self {
        let millis = |time: Duration| (time.as_millis() as u64).min(LONGEST as u64 - 1);
        let (shortest, longest) = (millis(shortest), millis(longest).max(millis(shortest)));
        Self {
            programmers: (0..count).map(|_| Programmer::default()).collect(),
            received: Watermark::default(),
            triggers: VecDeque::new(),
            first_trigger: 0,
            wheel: (0..LONGEST).map(|_| Vec::new()).collect(),
            idle: (0..count as u32).collect(),
            shortest,
            spread: longest - shortest + 1,
            chance: seed | 1,
        }
    }

    /// The shared watches have delivered everything up to here.
    pub fn receive(&mut self, watermark: Watermark, trigger: Option<Moment>) {
        self.received.services = self.received.services.max(watermark.services);
        self.received.slices = self.received.slices.max(watermark.slices);
        self.triggers.extend(trigger);
        for at in std::mem::take(&mut self.idle) {
            self.begin(at);
        }
    }

    /// A millisecond passes: returns who has committed.
    pub fn tick(&mut self, now: Moment) -> Vec<u32> {
        let mut due = self.wheel.pop_front().unwrap_or_default();
        self.wheel.push_back(Vec::new());
        for at in &due {
            let programmer = &mut self.programmers[*at as usize];
            programmer.committed = programmer.planned;
            programmer.committing = false;
            for trigger in std::mem::take(&mut programmer.triggers) {
                let took = now.since(trigger);
                let millis = took.as_micros().div_ceil(1000).clamp(1, 300_000) as u32;
                *programmer.counts.entry(millis).or_default() += 1;
                programmer.sum += took.as_secs_f64();
            }
        }
        for at in &due {
            if self.programmers[*at as usize].committed == self.received {
                self.idle.push(*at);
            } else {
                self.begin(*at);
            }
        }
        self.forget_triggers();
        due.sort_unstable();
        due
    }

    fn begin(&mut self, at: u32) {
        // A xorshift is chance enough for pauses.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let pause = self.shortest + self.chance % self.spread;
        let programmer = &mut self.programmers[at as usize];
        if programmer.committing {
            return;
        }
        programmer.committing = true;
        programmer.planned = self.received;
        let from = programmer.seen_triggers.max(self.first_trigger) - self.first_trigger;
        programmer.triggers.extend(self.triggers.range(from as usize..));
        programmer.seen_triggers = self.first_trigger + self.triggers.len() as u64;
        self.wheel[pause as usize].push(at);
    }

    /// Nobody is further behind than the longest pause, so a short list is enough.
    fn forget_triggers(&mut self) {
        while self.triggers.len() > 4 * LONGEST {
            self.triggers.pop_front();
            self.first_trigger += 1;
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.programmers.len()
    }

    /// How far a programmer is.
    pub fn progress(&self, at: u32) -> Progress {
        let programmer = &self.programmers[at as usize];
        Progress {
            received: self.received,
            planned: programmer.planned,
            committed: programmer.committed,
        }
    }

    /// What a programmer has measured.
    pub fn measured(&self, at: u32) -> FineSnapshot {
        let programmer = &self.programmers[at as usize];
        FineSnapshot {
            counts: programmer.counts.clone(),
            above: 0,
            sum: programmer.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_model::Revision;

    fn marks(slices: u64) -> Watermark {
        Watermark {
            services: None,
            slices: Some(Revision(slices)),
        }
    }

    #[test]
    fn everybody_commits_within_its_pause_and_takes_along_what_came_meanwhile() {
        let millis = Duration::from_millis;
        let mut hollow = Hollow::new(50, millis(2), millis(9), 7);
        hollow.receive(marks(5), Some(Moment(0)));
        hollow.receive(marks(6), Some(Moment(1000)));
        let mut commits = 0;
        for tick in 1..=25 {
            commits += hollow.tick(Moment(tick * 1000)).len();
        }
        assert_eq!(commits, 100, "once for 5 and once for 6");
        for at in 0..50 {
            let Progress {
                received,
                planned,
                committed,
            } = hollow.progress(at);
            assert_eq!([received, planned, committed], [marks(6); 3]);
            assert_eq!(hollow.measured(at).count(), 2);
        }
        assert!(hollow.tick(Moment(99_000)).is_empty());
    }

    #[test]
    fn a_flood_gives_one_commit_for_many_versions() {
        let mut hollow = Hollow::new(1, Duration::from_millis(10), Duration::from_millis(10), 7);
        let mut commits = 0;
        for tick in 0..1000 {
            hollow.receive(marks(tick + 1), Some(Moment(0)));
            commits += hollow.tick(Moment(0)).len();
        }
        assert!((80..110).contains(&commits), "{commits}");
        assert!(hollow.measured(0).count() > 900);
    }
}
