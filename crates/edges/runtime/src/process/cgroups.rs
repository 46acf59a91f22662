//! Where do the cgroups of this node's pods live?
//!
//! ```text
//! MOUNT/pointsman-TAG/podUID/shim             the pod's shims
//! MOUNT/pointsman-TAG/podUID/NAME-ATTEMPT     a container; commands run in it are in exec0, exec1, ...
//! ```
//!
//! Limits need the controllers. Where the host gave them to version 1, a container with a limit has a group of the same
//! name there besides, and every container one that counts its memory; where they are not to be had, the limit is refused
//! ([`super::abilities`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};

use crate::cgroup::Cgroup;
use crate::shim::mounts;
use crate::shim::protocol::CgroupPaths;
use crate::{ContainerId, Limits, PodUid};

/// The controllers we would use.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// The kernel counts a process out of its group a moment after it has ended.
const EMPTY_WAIT: Duration = Duration::from_secs(5);

/// The cgroups of one runtime.
#[derive(Clone, Debug)]
pub struct Cgroups {
    base: PathBuf,
    cpu: Controller,
    memory: Controller,
}

/// Where a limit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    /// Into the container's own group.
    Unified,
    /// Into a group of version 1 below this one.
    Legacy(PathBuf),
    Absent,
}

impl Cgroups {
    /// Finds where version 2 is mounted, or mounts it in `own_mount`, and makes a group for this runtime.
    pub fn open(own_mount: &Path, tag: &str) -> io::Result<Self> {
        let mounts = mounts::parse(&fs::read_to_string("/proc/self/mountinfo")?);
        let mounted = mounts
            .iter()
            .find(|mount| mount.kind == "cgroup2" && !mount.read_only);
        let root = match mounted {
            Some(mount) => mount.point.clone(),
            None => {
                fs::create_dir_all(own_mount)?;
                mount("cgroup2", own_mount, "cgroup2", MountFlags::empty(), None)?;
                own_mount.to_owned()
            }
        };
        hand_down(&root);
        let name = format!("pointsman-{tag}");
        let base = root.join(&name);
        // Whether we may make groups is known when we have made one.
        make(&base)?;
        let offered = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        let controller = |wanted: &str| {
            if offered.split_whitespace().any(|offered| offered == wanted) {
                return Controller::Unified;
            }
            let mut legacy = mounts
                .iter()
                .filter(|mount| mount.kind == "cgroup" && !mount.read_only);
            let found = legacy.find(|mount| mount.has_option(wanted));
            let group = found.map(|mount| mount.point.join(&name));
            let can_make = |group: &PathBuf| make(group).and_then(|()| fs::remove_dir(group)).is_ok();
            group
                // One with pods of before in it can be made by us, or was.
                .filter(|group| group.is_dir() || can_make(group))
                .map_or(Controller::Absent, Controller::Legacy)
        };
        let groups = Self {
            cpu: controller("cpu"),
            memory: controller("memory"),
            base,
        };
        groups.remove_empty_base();
        Ok(groups)
    }

    /// Whether limits of CPU are enforced.
    pub fn limits_cpu(&self) -> bool {
        self.cpu != Controller::Absent
    }

    /// Whether limits of memory are enforced.
    pub fn limits_memory(&self) -> bool {
        self.memory != Controller::Absent
    }

    /// Makes the groups of a pod.
    pub fn make_pod(&self, pod: &PodUid) -> io::Result<()> {
        let group = self.pod(pod);
        make(&self.base)?;
        match make(&group) {
            // The last pod of before has just gone, and the base with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&self.base)?;
                make(&group)?;
            }
            outcome => outcome?,
        }
        for group in [&self.base, &group] {
            hand_down(group);
        }
        make(&group.join("shim"))
    }

    /// Makes the group of a container and limits it. A limit that cannot be written is an error.
    pub fn make_container(&self, id: &ContainerId, limits: Limits) -> io::Result<CgroupPaths> {
        let pod = self.pod(&id.pod);
        let container = pod.join(container_name(id));
        make(&container)?;
        let mut paths = CgroupPaths {
            shim: pod.join("shim"),
            container,
            limits: Vec::new(),
        };
        if let Some(millis) = limits.cpu_millis {
            // In 100 ms of time, as the kernel's default has it; it takes no less than 1 ms.
            let quota = (millis * 100).max(1_000).to_string();
            match self.group(&self.cpu, id, &mut paths)? {
                (group, true) => group.write("cpu.max", &format!("{quota} 100000"))?,
                (group, false) => {
                    group.write("cpu.cfs_period_us", "100000")?;
                    group.write("cpu.cfs_quota_us", &quota)?;
                }
            }
        }
        if limits.memory_bytes.is_none() && matches!(self.memory, Controller::Legacy(_)) {
            // Only to count what it uses: nothing fails for want of that.
            let _ = self.group(&self.memory, id, &mut paths);
        }
        if let Some(bytes) = limits.memory_bytes {
            let bytes = bytes.to_string();
            let (group, swap, none) = match self.group(&self.memory, id, &mut paths)? {
                (group, true) => {
                    group.write("memory.max", &bytes)?;
                    (group, "memory.swap.max", "0")
                }
                (group, false) => {
                    group.write("memory.limit_in_bytes", &bytes)?;
                    (group, "memory.memsw.limit_in_bytes", bytes.as_str())
                }
            };
            // A kernel that does not count swap has no such file.
            match group.write(swap, none) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(paths)
    }

    /// The group that a controller limits a container in, and whether it is of version 2.
    fn group(
        &self,
        controller: &Controller,
        id: &ContainerId,
        paths: &mut CgroupPaths,
    ) -> io::Result<(Cgroup, bool)> {
        match controller {
            Controller::Unified => Ok((Cgroup::open(&paths.container)?, true)),
            Controller::Legacy(base) => {
                let group = base.join(pod_name(&id.pod)).join(container_name(id));
                fs::create_dir_all(&group)?;
                let opened = Cgroup::open(&group)?;
                paths.limits.push(group);
                Ok((opened, false))
            }
            Controller::Absent => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn legacy(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cpu, &self.memory]
            .into_iter()
            .filter_map(|controller| match controller {
                Controller::Legacy(base) => Some(base),
                Controller::Unified | Controller::Absent => None,
            })
    }

    /// Kills what is left in a container's group and removes it. What is missing is fine.
    pub fn remove_container(&self, id: &ContainerId) -> io::Result<()> {
        remove(&self.pod(&id.pod).join(container_name(id)))?;
        for base in self.legacy() {
            remove(&base.join(pod_name(&id.pod)).join(container_name(id)))?;
        }
        Ok(())
    }

    /// Kills what is left of a pod, shims included, and removes its groups. What is missing is fine.
    pub fn remove_pod(&self, pod: &PodUid) -> io::Result<()> {
        remove(&self.pod(pod))?;
        for base in self.legacy() {
            remove(&base.join(pod_name(pod)))?;
        }
        self.remove_empty_base();
        Ok(())
    }

    /// The pods that have a group.
    pub fn pods(&self) -> io::Result<Vec<PodUid>> {
        let mut pods = Vec::new();
        let entries = match fs::read_dir(&self.base) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pods),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let uid = name.to_str().and_then(|name| name.strip_prefix("pod"));
            pods.extend(uid.and_then(|uid| PodUid::try_new(uid).ok()));
        }
        Ok(pods)
    }

    /// Removes the runtime's own group, if no pod is in it; the kernel refuses otherwise.
    pub fn remove_empty_base(&self) {
        for base in self.legacy().chain([&self.base]) {
            let _ = fs::remove_dir(base);
        }
    }

    /// Where the groups of version 2 are.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// Where memory is counted.
    pub(super) fn memory(&self) -> &Controller {
        &self.memory
    }

    fn pod(&self, pod: &PodUid) -> PathBuf {
        self.base.join(pod_name(pod))
    }
}

pub(super) fn pod_name(pod: &PodUid) -> String {
    format!("pod{pod}")
}

pub(super) fn container_name(id: &ContainerId) -> String {
    format!("{}-{}", id.name, id.attempt)
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Lets the groups within this one have limits, each kind for itself: the host may offer only some.
fn hand_down(group: &Path) {
    let Ok(group) = Cgroup::open(group) else {
        return;
    };
    let offered = group.read("cgroup.controllers").unwrap_or_default();
    let ours = offered
        .split_whitespace()
        .filter(|name| CONTROLLERS.contains(name));
    for controller in ours {
        // Where processes are in the group itself this is refused; then there are no limits.
        let _ = group.write("cgroup.subtree_control", &format!("+{controller}"));
    }
}

fn remove(group: &Path) -> io::Result<()> {
    let open = match Cgroup::open(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        open => open?,
    };
    let give_up = Instant::now() + EMPTY_WAIT;
    // A group that another removed meanwhile has no files to read.
    while open.is_populated().unwrap_or(false) && Instant::now() < give_up {
        open.kill()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    match remove_tree(group, give_up) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn remove_tree(group: &Path, give_up: Instant) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path(), give_up)?;
        }
    }
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}
