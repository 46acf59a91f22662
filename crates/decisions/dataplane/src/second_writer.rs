//! Does another service proxy write rules on this node?
//!
//! Two proxies undo each other's work, or send packets by two opinions. What a predecessor left is no second writer:
//! only rules that appear or change after ours replaced its are. A writer that has not written for longer than
//! kube-proxy leaves its rules alone is gone, and what it wrote is a leftover.

use std::time::{Duration, Instant};

/// kube-proxy rewrites all of its rules within an hour, whatever happens.
const QUIET: Duration = Duration::from_secs(70 * 60);
/// Where its rules do not stay, because we write over them: it comes back with every sync period.
const QUIET_WITHOUT_TRACE: Duration = Duration::from_secs(10 * 60);

/// Who writes, by where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Writer {
    Iptables,
    Nftables,
    Ipvs,
}

impl Writer {
    pub const ALL: [Self; 3] = [Self::Iptables, Self::Nftables, Self::Ipvs];

    /// The mode of kube-proxy that writes so.
    pub const fn mode(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// A number that changes whenever a writer's rules are written, for each of [`Writer::ALL`]; `None` if there are none.
pub type Traces = [Option<u64>; 3];

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was not at work before.
    Began(Writer),
    /// Its rules are gone.
    Gone(Writer),
    /// It does not write any more, and its rules stay.
    LeftOver(Writer),
}

/// A writer that is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    pub writer: Writer,
    /// When it was first seen writing, and last.
    pub since: Instant,
    pub last: Instant,
}

/// What is known about other writers.
#[derive(Clone, Debug)]
pub struct SecondWriters {
    traces: Traces,
    active: [Option<Active>; 3],
}

impl SecondWriters {
    /// Begins with what stands when our rules have replaced a predecessor's: leftovers.
    pub const fn new(leftovers: Traces) -> Self {
        Self {
            traces: leftovers,
            active: [None; 3],
        }
    }

    /// Takes in what stands now.
    pub fn observe(&mut self, now: Instant, found: Traces) -> Vec<Change> {
        let before = std::mem::replace(&mut self.traces, found);
        let mut changes = Vec::new();
        for (at, writer) in Writer::ALL.into_iter().enumerate() {
            if found[at].is_some() && found[at] != before[at] {
                changes.extend(self.wrote(now, writer));
                continue;
            }
            let Some(active) = self.active[at] else { continue };
            let quiet = now.saturating_duration_since(active.last);
            let change = match (before[at], found[at]) {
                (Some(_), None) => Change::Gone(writer),
                (None, None) if quiet > QUIET_WITHOUT_TRACE => Change::Gone(writer),
                // The trace of IPVS mode is its link, which stays the same while it writes.
                (_, Some(_)) if quiet > QUIET && writer != Writer::Ipvs => Change::LeftOver(writer),
                _ => continue,
            };
            self.active[at] = None;
            changes.push(change);
        }
        changes
    }

    /// It was seen writing over our rules.
    pub fn wrote(&mut self, now: Instant, writer: Writer) -> Option<Change> {
        let known = &mut self.active[writer as usize];
        let began = known.is_none().then_some(Change::Began(writer));
        let since = known.map_or(now, |active| active.since);
        *known = Some(Active {
            writer,
            since,
            last: now,
        });
        began
    }

    /// Those that are at work.
    pub fn active(&self) -> impl Iterator<Item = Active> + '_ {
        self.active.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Traces = [None; 3];

    fn nftables(trace: u64) -> Traces {
        [None, Some(trace), None]
    }

    fn active(writers: &SecondWriters) -> Vec<Writer> {
        writers.active().map(|active| active.writer).collect()
    }

    #[test]
    fn leftovers_are_no_second_writer_however_long_they_stay() {
        let start = Instant::now();
        let mut writers = SecondWriters::new([Some(1), Some(2), Some(3)]);
        for hour in 0..48 {
            let now = start + Duration::from_secs(hour * 3600);
            assert_eq!(writers.observe(now, [Some(1), Some(2), Some(3)]), []);
        }
        assert_eq!(
            writers.observe(start + QUIET, NOTHING),
            [],
            "somebody removed them"
        );
        assert_eq!(active(&writers), []);
    }

    #[test]
    fn rules_that_appear_or_change_have_a_writer_and_it_is_said_once() {
        let start = Instant::now();
        for leftovers in [NOTHING, nftables(1)] {
            let mut writers = SecondWriters::new(leftovers);
            let began = [Change::Began(Writer::Nftables)];
            assert_eq!(writers.observe(start, nftables(2)), began);
            let later = start + Duration::from_secs(60);
            assert_eq!(writers.observe(later, nftables(3)), []);
            let expected = Active {
                writer: Writer::Nftables,
                since: start,
                last: later,
            };
            assert_eq!(writers.active().collect::<Vec<_>>(), [expected]);
            assert_eq!(writers.observe(later, NOTHING), [Change::Gone(Writer::Nftables)]);
            assert_eq!(
                writers.observe(later, nftables(3)),
                began,
                "and again if it comes back"
            );
        }
    }

    #[test]
    fn a_writer_that_wrote_nothing_for_longer_than_an_hour_has_left_its_rules_over() {
        let start = Instant::now();
        let mut writers = SecondWriters::new(NOTHING);
        writers.observe(start, nftables(1));
        assert_eq!(writers.observe(start + QUIET, nftables(1)), []);
        let much_later = start + QUIET + Duration::from_secs(1);
        let left = [Change::LeftOver(Writer::Nftables)];
        assert_eq!(writers.observe(much_later, nftables(1)), left);
        assert_eq!(writers.observe(much_later, nftables(1)), []);
    }

    #[test]
    fn as_long_as_the_link_of_ipvs_mode_stands_it_is_at_work() {
        let start = Instant::now();
        let mut writers = SecondWriters::new(NOTHING);
        let link = [None, None, Some(7)];
        assert_eq!(writers.observe(start, link), [Change::Began(Writer::Ipvs)]);
        let much_later = start + 2 * QUIET;
        assert_eq!(writers.observe(much_later, link), []);
        assert_eq!(active(&writers), [Writer::Ipvs]);
        assert_eq!(writers.observe(much_later, NOTHING), [Change::Gone(Writer::Ipvs)]);
    }

    #[test]
    fn one_that_writes_over_our_rules_is_gone_when_it_stops() {
        let start = Instant::now();
        let mut writers = SecondWriters::new(NOTHING);
        let began = Some(Change::Began(Writer::Iptables));
        assert_eq!(writers.wrote(start, Writer::Iptables), began);
        let later = start + QUIET_WITHOUT_TRACE;
        assert_eq!(writers.wrote(later, Writer::Iptables), None);
        assert_eq!(writers.observe(later + QUIET_WITHOUT_TRACE, NOTHING), []);
        let end = later + QUIET_WITHOUT_TRACE + Duration::from_secs(1);
        assert_eq!(writers.observe(end, NOTHING), [Change::Gone(Writer::Iptables)]);
    }
}
