//! Between which two readings is it said how much CPU is used?
//!
//! Like the kubelet's, an answer is about ten seconds where they were watched. A reading of more than a minute ago says
//! little about now: then a new pair is read, a second apart.

use super::node::NodeUse;
use pointsman_runtime::{ContainerUsage, PodUsage, Usage};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The shortest time to say something about.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);
/// The kubelet's usual one.
const USUAL: Duration = Duration::from_secs(10);
/// How long ago a reading may be to say something about now.
const LONGEST: Duration = Duration::from_secs(60);
/// How far apart the readings are that are kept: so there are a dozen of them at most, however often somebody asks.
const SPACING: Duration = Duration::from_secs(5);

/// Everything that was used at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) taken: Instant,
    pub(super) node: NodeUse,
    pub(super) pods: Vec<PodUsage>,
}

/// Those of the last minute, in order.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<Sample>);

impl Samples {
    /// The one to compare with: the latest of those that are old enough, or else the oldest.
    pub(super) fn before(&self, now: Instant) -> Option<&Sample> {
        let age = |sample: &&Sample| now.saturating_duration_since(sample.taken);
        let young = self.0.iter().filter(|sample| age(sample) <= LONGEST);
        let usual = young.clone().rfind(|sample| age(sample) >= USUAL);
        usual.or_else(|| young.clone().next().filter(|sample| age(sample) >= SHORTEST))
    }

    /// Keeps it for later questions, unless there is one of about the same time.
    pub(super) fn keep(&mut self, sample: Sample) {
        let now = sample.taken;
        self.0
            .retain(|old| now.saturating_duration_since(old.taken) <= LONGEST);
        let last = self
            .0
            .back()
            .map(|last| now.saturating_duration_since(last.taken));
        if last.is_none_or(|age| age >= SPACING) {
            self.0.push_back(sample);
        }
    }
}

impl Sample {
    /// What a pod used all together.
    pub(super) fn pod(&self, pod: &PodUsage) -> Option<Usage> {
        let found = self.pods.binary_search_by(|known| known.pod.cmp(&pod.pod));
        Some(self.pods[found.ok()?].total)
    }

    /// What a container used; one that started since had used nothing then.
    pub(super) fn container(&self, container: &ContainerUsage) -> Usage {
        let found = self
            .pods
            .binary_search_by(|known| known.pod.cmp(&container.id.pod));
        let pod = found.ok().map(|at| &self.pods[at]);
        let mut known = pod.into_iter().flat_map(|pod| &pod.containers);
        let known = known.find(|known| known.id == container.id);
        known.map_or_else(|| nothing(container.started_at), |known| known.used)
    }
}

/// What something used when it began.
pub(super) fn nothing(at: SystemTime) -> Usage {
    Usage {
        at,
        cpu: Some(Duration::ZERO),
        memory: None,
    }
}

/// How many billionths of a CPU were used on average, and over which time.
pub(super) fn rate(now: &Usage, then: &Usage) -> Option<(u64, Duration)> {
    let window = now.at.duration_since(then.at).ok().filter(|it| !it.is_zero())?;
    // Less than before is somebody else with the same name.
    let used = now.cpu?.checked_sub(then.cpu?)?;
    let rate = used.as_nanos().checked_mul(1_000_000_000)? / window.as_nanos();
    Some((rate.try_into().ok()?, window))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(at: u64, cpu: Option<u64>) -> Usage {
        Usage {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
            cpu: cpu.map(Duration::from_millis),
            memory: None,
        }
    }

    fn sample(taken: Instant) -> Sample {
        let node = NodeUse {
            used: usage(0, None),
            booted: None,
            memory: None,
        };
        Sample {
            taken,
            node,
            pods: Vec::new(),
        }
    }

    #[test]
    fn a_rate_is_what_was_used_in_between() {
        let rate = |now, then| rate(&now, &then).map(|(rate, window)| (rate, window.as_secs()));
        assert_eq!(
            rate(usage(14, Some(6000)), usage(10, Some(4000))),
            Some((500_000_000, 4))
        );
        for (now, then) in [
            (usage(10, Some(5)), usage(10, Some(4))),
            (usage(9, Some(5)), usage(10, Some(4))),
            (usage(11, Some(3)), usage(10, Some(4))),
            (usage(11, None), usage(10, Some(4))),
            (usage(11, Some(5)), usage(10, None)),
        ] {
            assert_eq!(rate(now, then), None, "{now:?} {then:?}");
        }
    }

    #[test]
    fn ten_seconds_are_better_than_one_and_a_minute_is_too_long() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut samples = Samples::default();
        let before = |samples: &Samples, now| {
            let found = samples.before(at(now));
            found.map(|sample| (sample.taken - start).as_secs())
        };
        assert_eq!(before(&samples, 0), None);
        samples.keep(sample(at(0)));
        assert_eq!(before(&samples, 0), None, "that was just now");
        assert_eq!(before(&samples, 1), Some(0));
        for second in 1..=30 {
            samples.keep(sample(at(second)));
        }
        assert_eq!(samples.0.len(), 7, "one every five seconds");
        assert_eq!(before(&samples, 30), Some(20));
        assert_eq!(before(&samples, 89), Some(30));
        assert_eq!(before(&samples, 91), None, "nobody asked for a minute");
        samples.keep(sample(at(200)));
        assert_eq!(samples.0.len(), 1, "nothing older is kept");
    }
}
