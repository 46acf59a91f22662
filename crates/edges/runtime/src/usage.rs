//! How much CPU and memory do pods use?

use std::time::{Duration, SystemTime};

use crate::{ContainerId, PodUid};

/// What a pod uses of which something runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    pub pod: PodUid,
    /// All of it together.
    pub total: Usage,
    /// Its containers that run, in order of name.
    pub containers: Vec<ContainerUsage>,
}

/// What a container uses that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUsage {
    pub id: ContainerId,
    /// When its main process was started.
    pub started_at: SystemTime,
    pub used: Usage,
}

/// What was used at a moment. What nobody counts here is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When it was read.
    pub at: SystemTime,
    /// The time of CPUs since the start.
    pub cpu: Option<Duration>,
    pub memory: Option<MemoryUse>,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What the kernel would not take back easily: all but files that were not read lately.
    pub working_set: u64,
    /// Everything that is charged, caches of files as well.
    pub total: Option<u64>,
    /// What belongs to no file.
    pub anonymous: Option<u64>,
}

impl PodUsage {
    /// A pod of which nobody knows more than of its containers.
    pub fn of_containers(pod: PodUid, containers: Vec<ContainerUsage>) -> Self {
        let latest = containers.iter().map(|container| container.used.at).max();
        let cpu = containers.iter().filter_map(|container| container.used.cpu);
        let memory = containers.iter().filter_map(|container| container.used.memory);
        let total = Usage {
            at: latest.unwrap_or(SystemTime::UNIX_EPOCH),
            cpu: cpu.reduce(Duration::saturating_add),
            memory: memory.reduce(MemoryUse::plus),
        };
        Self {
            pod,
            total,
            containers,
        }
    }
}

impl MemoryUse {
    fn plus(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self {
            working_set: self.working_set.saturating_add(other.working_set),
            total: sum(self.total, other.total),
            anonymous: sum(self.anonymous, other.anonymous),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ContainerName;

    #[test]
    fn a_pod_uses_what_its_containers_do_and_what_one_does_not_know_it_does_not() {
        let pod = PodUid::try_new("a").unwrap();
        let container = |name: &str, second: u64, total: Option<u64>| ContainerUsage {
            id: ContainerId {
                pod: pod.clone(),
                name: ContainerName::try_new(name).unwrap(),
                attempt: 0,
            },
            started_at: SystemTime::UNIX_EPOCH,
            used: Usage {
                at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
                cpu: Some(Duration::from_secs(second)),
                memory: Some(MemoryUse {
                    working_set: u64::MAX - 1,
                    total,
                    anonymous: Some(second),
                }),
            },
        };
        let containers = vec![container("a", 3, Some(7)), container("b", 2, None)];
        let both = PodUsage::of_containers(pod.clone(), containers).total;
        assert_eq!(both.at, SystemTime::UNIX_EPOCH + Duration::from_secs(3));
        assert_eq!(both.cpu, Some(Duration::from_secs(5)));
        let memory = MemoryUse {
            working_set: u64::MAX,
            total: None,
            anonymous: Some(5),
        };
        assert_eq!(both.memory, Some(memory));
        assert_eq!(PodUsage::of_containers(pod, Vec::new()).total.cpu, None);
    }
}
