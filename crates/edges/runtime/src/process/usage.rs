//! How much CPU and memory do the groups of a pod and its containers say they use?
//!
//! Three files for each group, read when somebody asks. The time of CPUs is in the group of version 2 wherever the
//! controllers are; memory is counted where its controller is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::Inner;
use super::cgroups::{Cgroups, Controller, container_name, pod_name};
use crate::{ContainerUsage, MemoryUse, PodUid, PodUsage, Usage};

impl Inner {
    /// Everything that runs.
    pub(super) fn usage(&self) -> Vec<PodUsage> {
        let mut pods: BTreeMap<PodUid, Vec<ContainerUsage>> = BTreeMap::new();
        for (id, started_at) in self.table.running() {
            let used = self.of_group(&Path::new(&pod_name(&id.pod)).join(container_name(&id)));
            let containers = pods.entry(id.pod.clone()).or_default();
            containers.push(ContainerUsage { id, started_at, used });
        }
        let whole = |(pod, containers)| PodUsage {
            total: self.of_group(Path::new(&pod_name(&pod))),
            pod,
            containers,
        };
        pods.into_iter().map(whole).collect()
    }

    fn of_group(&self, name: &Path) -> Usage {
        let read = self.cgroups.as_ref().map(|groups| groups.used(name));
        let (cpu, memory) = read.unwrap_or_default();
        Usage {
            at: SystemTime::now(),
            cpu,
            memory,
        }
    }
}

impl Cgroups {
    /// What a group below the runtime's own says.
    fn used(&self, name: &Path) -> (Option<Duration>, Option<MemoryUse>) {
        let unified = self.base().join(name);
        let cpu = text(&unified, "cpu.stat").and_then(|text| cpu(&text));
        let memory = match self.memory() {
            Controller::Unified => memory(&unified, &UNIFIED),
            Controller::Legacy(base) => memory(&base.join(name), &LEGACY),
            Controller::Absent => None,
        };
        (cpu, memory)
    }
}

/// What the kernel calls what we read.
struct Names {
    total: &'static str,
    inactive_file: &'static str,
    anonymous: &'static str,
}

const UNIFIED: Names = Names {
    total: "memory.current",
    inactive_file: "inactive_file",
    anonymous: "anon",
};
/// Those that begin with `total` have the groups below in them.
const LEGACY: Names = Names {
    total: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file",
    anonymous: "total_rss",
};

fn memory(group: &Path, names: &Names) -> Option<MemoryUse> {
    let total = text(group, names.total)?;
    let details = text(group, "memory.stat").unwrap_or_default();
    memory_use(&total, &details, names)
}

fn text(group: &Path, file: &str) -> Option<String> {
    // A group that has gone meanwhile uses nothing.
    fs::read_to_string(group.join(file)).ok()
}

/// `usage_usec 12345` in a `cpu.stat`.
fn cpu(stat: &str) -> Option<Duration> {
    number(stat, "usage_usec").map(Duration::from_micros)
}

fn memory_use(total: &str, details: &str, names: &Names) -> Option<MemoryUse> {
    let total: u64 = total.trim().parse().ok()?;
    let inactive = number(details, names.inactive_file).unwrap_or(0);
    Some(MemoryUse {
        working_set: total.saturating_sub(inactive),
        total: Some(total),
        anonymous: number(details, names.anonymous),
    })
}

/// The number in the line that begins with this name.
fn number(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_versions_say_the_same() {
        let v2 = "anon 300\nfile 900\ninactive_anon 1\nactive_file 500\ninactive_file 400\n";
        let v1 = "cache 9\nrss 1\ninactive_file 2\ntotal_rss 300\ntotal_inactive_file 400\n";
        let expected = MemoryUse {
            working_set: 1000,
            total: Some(1400),
            anonymous: Some(300),
        };
        assert_eq!(memory_use("1400\n", v2, &UNIFIED), Some(expected));
        assert_eq!(memory_use("1400\n", v1, &LEGACY), Some(expected));
        let stat = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n";
        assert_eq!(cpu(stat), Some(Duration::from_millis(2500)));
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        for stat in [
            "",
            "usage_usec",
            "usage_usec -1\n",
            "user_usec 7\n",
            "usage_usec x",
        ] {
            assert_eq!(cpu(stat), None, "{stat:?}");
        }
        assert_eq!(memory_use("max\n", "", &UNIFIED), None);
        // Without the details all of it counts; more that is inactive than there is was read a moment later.
        let without = memory_use("7", "inactive_file many\n", &UNIFIED).unwrap();
        assert_eq!((without.working_set, without.anonymous), (7, None));
        assert_eq!(
            memory_use("7", "inactive_file 8", &UNIFIED).unwrap().working_set,
            0
        );
        let nowhere = Path::new("/nowhere/at/all");
        assert_eq!(memory(nowhere, &UNIFIED), None);
        assert_eq!(text(nowhere, "cpu.stat"), None);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(total in "\\PC{0,24}|[0-9]{1,24}", details in "(?s).{0,80}|(inactive_file|anon) [0-9]{1,24}\n?") {
            let _ = cpu(&details);
            if let Some(used) = memory_use(&total, &details, &UNIFIED) {
                prop_assert!(Some(used.working_set) <= used.total);
            }
        }
    }
}
