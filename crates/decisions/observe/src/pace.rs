//! How often is a table read whose writer announces nothing?
//!
//! Reading it costs what the whole cluster is large, so the pause follows from what the last reading took: while rules have yet
//! to say something it is a twentieth of a core, and otherwise, when only edits by hand would be found, a hundredth.

use std::time::{Duration, Instant};

const WAITING: Pace = Pace {
    share: 20,
    least: Duration::from_millis(10),
};
const IDLE: Pace = Pace {
    share: 100,
    least: Duration::from_secs(5),
};

/// One in so many moments is spent reading, and no more often than this.
struct Pace {
    share: u32,
    least: Duration,
}

impl Pace {
    fn pause(&self, took: Duration) -> Duration {
        (took * (self.share - 1)).max(self.least)
    }
}

/// What the last reading took.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    pub ended: Instant,
    pub took: Duration,
}

impl Poll {
    /// When to read again, where rules have yet to say something or have not.
    pub fn next(&self, waiting: bool) -> Instant {
        let pace = if waiting { WAITING } else { IDLE };
        self.ended + pace.pause(self.took)
    }

    /// How long after they were written rules are known at the latest, on a machine that does nothing else.
    pub fn error(&self) -> Duration {
        WAITING.pause(self.took) + self.took * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_its_share_of_a_core_whatever_it_takes() {
        let ended = Instant::now();
        for micros in [50, 500, 5_000, 500_000] {
            let took = Duration::from_micros(micros);
            let poll = Poll { ended, took };
            for (waiting, share) in [(true, 20.0), (false, 100.0)] {
                let period = poll.next(waiting) - ended + took;
                assert!(
                    period.as_secs_f64() * 1.000001 >= took.as_secs_f64() * share,
                    "{took:?}"
                );
            }
            assert!(poll.next(true) - ended + took <= poll.error());
        }
    }
}
