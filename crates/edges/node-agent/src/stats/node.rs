//! How much does the whole machine use?

use pointsman_runtime::{MemoryUse, Usage};
use std::time::{Duration, SystemTime};

/// The kernel's unit of time in `/proc/stat`, the same on all machines that we run on.
const TICK: Duration = Duration::from_millis(10);

/// What the machine uses, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeUse {
    pub(super) used: Usage,
    pub(super) booted: Option<SystemTime>,
    /// Bytes of memory that there are.
    pub(super) memory: Option<u64>,
}

impl NodeUse {
    pub(super) async fn read() -> Self {
        let (stat, meminfo) = tokio::join!(
            tokio::fs::read_to_string("/proc/stat"),
            tokio::fs::read_to_string("/proc/meminfo")
        );
        let (stat, meminfo) = (stat.unwrap_or_default(), meminfo.unwrap_or_default());
        Self::parse(&stat, &meminfo, SystemTime::now())
    }

    fn parse(stat: &str, meminfo: &str, at: SystemTime) -> Self {
        let seconds = line(stat, "btime").and_then(|seconds| seconds.trim().parse().ok());
        Self {
            used: Usage {
                at,
                cpu: line(stat, "cpu").and_then(cpu),
                memory: memory(meminfo),
            },
            booted: seconds.and_then(|it| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(it))),
            memory: bytes(meminfo, "MemTotal:"),
        }
    }
}

/// What follows a line's first word.
fn line<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    Some(lines.find(|(known, _)| *known == word)?.1)
}

/// User, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two. Idle time is not used, and
/// neither is what other machines on the same hardware took.
fn cpu(line: &str) -> Option<Duration> {
    let ticks: Option<Vec<u64>> = line.split_whitespace().map(|it| it.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() >= 7)?;
    let used = [0, 1, 2, 5, 6].iter().map(|at| u128::from(ticks[*at]));
    let millis = used.sum::<u128>() * TICK.as_millis();
    Some(Duration::from_millis(millis.try_into().ok()?))
}

fn memory(meminfo: &str) -> Option<MemoryUse> {
    let total = bytes(meminfo, "MemTotal:")?.checked_sub(bytes(meminfo, "MemFree:")?)?;
    let inactive = bytes(meminfo, "Inactive(file):").unwrap_or(0);
    Some(MemoryUse {
        working_set: total.saturating_sub(inactive),
        total: Some(total),
        anonymous: bytes(meminfo, "AnonPages:"),
    })
}

/// `MemTotal:       16384 kB`
fn bytes(meminfo: &str, name: &str) -> Option<u64> {
    let kib: u64 = line(meminfo, name)?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn a_machine_uses_what_is_neither_idle_nor_free_nor_a_file_of_long_ago() {
        let stat = "cpu  100 20 30 9000 400 5 6 77 50 0\ncpu0 1 2 3\nbtime 1700000000\n";
        let meminfo =
            "MemTotal:    1000 kB\nMemFree:   300 kB\nAnonPages:   99 kB\nInactive(file):  200 kB\n";
        let node = NodeUse::parse(stat, meminfo, AT);
        assert_eq!(node.used.cpu, Some(Duration::from_millis(1610)));
        let memory = MemoryUse {
            working_set: 500 << 10,
            total: Some(700 << 10),
            anonymous: Some(99 << 10),
        };
        assert_eq!((node.used.memory, node.memory), (Some(memory), Some(1000 << 10)));
        assert_eq!(node.booted, Some(AT + Duration::from_secs(1_700_000_000)));
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let most = u64::MAX;
        for stat in [
            "",
            "cpu",
            "cpu  1 2 3",
            "cpu  1 2 x 4 5 6 7 8",
            &format!("cpu {}", format!("{most} ").repeat(8)),
        ] {
            assert_eq!(NodeUse::parse(stat, "", AT).used.cpu, None, "{stat:?}");
        }
        for meminfo in [
            "",
            "MemTotal: 7 kB",
            "MemTotal: 1 kB\nMemFree: 2 kB",
            &format!("MemTotal: {most} kB\nMemFree: 1 kB"),
        ] {
            assert_eq!(NodeUse::parse("", meminfo, AT).used.memory, None, "{meminfo:?}");
        }
        assert_eq!(NodeUse::parse(&format!("btime {most}"), "", AT).booted, None);
    }

    #[tokio::test]
    async fn this_machine_says_what_it_uses() {
        let node = NodeUse::read().await;
        let memory = node.used.memory.unwrap();
        assert!(memory.working_set > 0 && memory.total <= node.memory, "{node:?}");
        assert!(node.used.cpu.unwrap() > Duration::ZERO && node.booted < Some(SystemTime::now()));
    }
}
