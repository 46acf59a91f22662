//! When is it time to write to the kernel again?
//!
//! A lone change goes at once; changes that arrive while a sync is running, or before the minimum interval
//! is over, go together in the next one. After a failure the next try comes by itself, sooner at first.
//! Time is an argument, so every promise below is a test.

use std::time::{Duration, Instant};

/// How the schedule waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// The least time from the end of a sync to the start of the next; zero by default.
    pub least: Duration,
    /// The wait after a first failure; it doubles with each further one.
    pub first_retry: Duration,
    /// The longest wait after a failure (the sync period).
    pub longest_retry: Duration,
    /// The longest time without a sync, even if nothing asks for one.
    pub longest: Duration,
}

impl Default for Intervals {
    /// Upstream's sync period and its hour without a change; no artificial batching.
    fn default() -> Self {
        Self {
            least: Duration::ZERO,
            first_retry: Duration::from_millis(250),
            longest_retry: Duration::from_secs(30),
            longest: Duration::from_secs(3600),
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start a sync.
    Run,
    /// Look again at this moment, or when something is requested.
    Wait(Instant),
    /// A sync is running; its end decides.
    Running,
}

/// Decides when to sync.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    intervals: Intervals,
    requested: bool,
    running: bool,
    /// The end of the last sync.
    ended: Option<Instant>,
    /// When the last failure asks for another try.
    retry_at: Option<Instant>,
    failures: u32,
}

impl Schedule {
    /// A schedule that has not run yet.
    pub fn new(intervals: Intervals) -> Self {
        Self {
            intervals,
            requested: false,
            running: false,
            ended: None,
            retry_at: None,
            failures: 0,
        }
    }

    pub fn request(&mut self) {
        self.requested = true;
    }

    /// What to do at this moment.
    pub fn next(&self, now: Instant) -> Next {
        if self.running {
            return Next::Running;
        }
        let earliest = self.ended.map_or(now, |ended| ended + self.intervals.least);
        let due = if self.requested {
            Some(earliest)
        } else {
            self.retry_at.map(|at| at.max(earliest))
        };
        let idle_until = self.ended.map_or(now + self.intervals.longest, |ended| {
            ended + self.intervals.longest
        });
        let due = due.map_or(idle_until, |due| due.min(idle_until.max(earliest)));
        if due <= now { Next::Run } else { Next::Wait(due) }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Whether the last sync failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// A sync starts and takes everything requested so far with it.
    pub fn started(&mut self) {
        self.running = true;
        self.requested = false;
        self.retry_at = None;
    }

    /// The sync ended well; a pending retry is moot.
    pub fn succeeded(&mut self, now: Instant) {
        self.running = false;
        self.ended = Some(now);
        self.failures = 0;
    }

    /// The sync failed; another try comes by itself.
    pub fn failed(&mut self, now: Instant) {
        self.running = false;
        self.ended = Some(now);
        let factor = 2u32.saturating_pow(self.failures.min(16));
        let wait = self
            .intervals
            .first_retry
            .saturating_mul(factor)
            .min(self.intervals.longest_retry);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant);

    impl Clock {
        fn at(&self, millis: u64) -> Instant {
            self.0 + Duration::from_millis(millis)
        }
    }

    fn setup(least: u64) -> (Clock, Schedule) {
        let intervals = Intervals {
            least: Duration::from_millis(least),
            ..Intervals::default()
        };
        (Clock(Instant::now()), Schedule::new(intervals))
    }

    #[test]
    fn a_lone_change_goes_at_once_and_an_idle_schedule_waits_for_the_hour() {
        let (clock, mut schedule) = setup(0);
        schedule.request();
        assert_eq!(schedule.next(clock.at(0)), Next::Run);
        schedule.started();
        assert_eq!(schedule.next(clock.at(1)), Next::Running);
        schedule.succeeded(clock.at(5));
        assert_eq!(schedule.next(clock.at(6)), Next::Wait(clock.at(3_600_005)));
        assert_eq!(schedule.next(clock.at(3_600_005)), Next::Run);
        schedule.request();
        assert_eq!(schedule.next(clock.at(6)), Next::Run);
    }

    #[test]
    fn changes_during_a_sync_go_together_in_the_next() {
        let (clock, mut schedule) = setup(0);
        schedule.request();
        schedule.started();
        schedule.request();
        schedule.request();
        schedule.succeeded(clock.at(10));
        assert_eq!(schedule.next(clock.at(10)), Next::Run);
        schedule.started();
        schedule.succeeded(clock.at(20));
        assert!(matches!(schedule.next(clock.at(20)), Next::Wait(_)));
    }

    #[test]
    fn the_least_interval_counts_from_the_end_of_the_last_sync() {
        let (clock, mut schedule) = setup(1_000);
        schedule.request();
        assert_eq!(
            schedule.next(clock.at(0)),
            Next::Run,
            "the first sync does not wait"
        );
        schedule.started();
        schedule.succeeded(clock.at(500));
        schedule.request();
        assert_eq!(schedule.next(clock.at(600)), Next::Wait(clock.at(1_500)));
        assert_eq!(schedule.next(clock.at(1_500)), Next::Run);
    }

    #[test]
    fn failures_are_retried_with_growing_waits_and_success_ends_that() {
        let (clock, mut schedule) = setup(0);
        let mut now = 0;
        for wait in [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            schedule.started();
            schedule.failed(clock.at(now));
            assert_eq!(schedule.next(clock.at(now)), Next::Wait(clock.at(now + wait)));
            now += wait;
            assert_eq!(schedule.next(clock.at(now)), Next::Run);
        }
        schedule.started();
        schedule.succeeded(clock.at(now));
        assert_eq!(
            schedule.next(clock.at(now)),
            Next::Wait(clock.at(now + 3_600_000))
        );
        schedule.started();
        schedule.failed(clock.at(now));
        assert_eq!(
            schedule.next(clock.at(now)),
            Next::Wait(clock.at(now + 250)),
            "it starts anew"
        );
    }

    #[test]
    fn a_retry_respects_the_least_interval_and_a_change_does_not_wait_for_the_retry() {
        let (clock, mut schedule) = setup(1_000);
        schedule.started();
        schedule.failed(clock.at(0));
        assert_eq!(schedule.next(clock.at(0)), Next::Wait(clock.at(1_000)));
        let (clock, mut schedule) = setup(0);
        schedule.started();
        schedule.failed(clock.at(0));
        schedule.request();
        assert_eq!(schedule.next(clock.at(1)), Next::Run);
    }
}
