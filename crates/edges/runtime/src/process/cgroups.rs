//! Where do the cgroups of this node's pods live?
//!
//! ```text
//! MOUNT/pointsman-TAG/podUID/shim             the pod's shims
//! MOUNT/pointsman-TAG/podUID/NAME-ATTEMPT     a container; commands run in it are in exec0, exec1, ...
//! ```
//!
//! Limits need the controllers of version 2. Where the host gave them to version 1, groups are still made,
//! for killing, and limits are not enforced.

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
}

impl Cgroups {
    /// Finds where version 2 is mounted, or mounts it in `own_mount`, and makes a group for this runtime.
    pub fn open(own_mount: &Path, tag: &str) -> io::Result<Self> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
        let mounted = mounts::parse(&mountinfo)
            .into_iter()
            .find(|mount| mount.kind == "cgroup2" && !mount.read_only);
        let root = match mounted {
            Some(mount) => mount.point,
            None => {
                fs::create_dir_all(own_mount)?;
                mount("cgroup2", own_mount, "cgroup2", MountFlags::empty(), None)?;
                own_mount.to_owned()
            }
        };
        hand_down(&root);
        let groups = Self {
            base: root.join(format!("pointsman-{tag}")),
        };
        // Whether we may make groups is known when we have made one.
        make(&groups.base)?;
        groups.remove_empty_base();
        Ok(groups)
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

    /// Makes the group of a container and limits it, as far as the kernel lets us.
    pub fn make_container(&self, id: &ContainerId, limits: Limits) -> io::Result<CgroupPaths> {
        let pod = self.pod(&id.pod);
        let container = pod.join(container_name(id));
        make(&container)?;
        let group = Cgroup::open(&container)?;
        if let Some(millis) = limits.cpu_millis {
            // In 100 ms of time, as the kernel's default has it; it takes no less than 1 ms.
            let quota = (millis * 100).max(1_000);
            ignore_missing(group.write("cpu.max", &format!("{quota} 100000")))?;
        }
        if let Some(bytes) = limits.memory_bytes {
            ignore_missing(group.write("memory.max", &bytes.to_string()))?;
        }
        Ok(CgroupPaths {
            shim: pod.join("shim"),
            container,
        })
    }

    /// Kills what is left in a container's group and removes it. What is missing is fine.
    pub fn remove_container(&self, id: &ContainerId) -> io::Result<()> {
        remove(&self.pod(&id.pod).join(container_name(id)))
    }

    /// Kills what is left of a pod, shims included, and removes its groups. What is missing is fine.
    pub fn remove_pod(&self, pod: &PodUid) -> io::Result<()> {
        remove(&self.pod(pod))?;
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
        let _ = fs::remove_dir(&self.base);
    }

    fn pod(&self, pod: &PodUid) -> PathBuf {
        self.base.join(format!("pod{pod}"))
    }
}

fn container_name(id: &ContainerId) -> String {
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

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        outcome => outcome,
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
