//! What does the file tree of a cluster without root look like?
//!
//! The machine's files, hung one by one into an empty tree of the cluster's own. A tree that was copied from
//! the machine is locked: its `/run` could not be written to, and the kernel would not put the layers of
//! containers over it.

use super::advice::{Settings, powerless};
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, unmount,
};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Where the new tree grows; whatever is there is not needed any more.
const GROUND: &str = "/run";

/// Changes the root of the calling process, which must be in a mount namespace of its own. Records of
/// clusters are kept in `run_dir`, outside and inside.
pub fn plant(run_dir: &Path) -> anyhow::Result<()> {
    // It may be below the old /run.
    let records = rustix::fs::open(run_dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("opening {}", run_dir.display()))?;
    let place = std::env::current_dir().context("finding the current directory")?;
    // What is mounted here is seen nowhere else.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| telling("making mounts private", error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", GROUND, "tmpfs", flags, Some(c"mode=0755"))
        .map_err(|error| telling("mounting a file system", error))?;
    hang_files()?;
    let ground = Path::new(GROUND);
    for dir in ["run", "run/netns", "run/pointsman", "proc", "old"] {
        let dir = ground.join(dir);
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let source = format!("/proc/self/fd/{}", records.as_raw_fd());
    mount_bind_recursive(source, ground.join("run/pointsman"))
        .context("mounting the directory of records")?;
    mount(
        "proc",
        ground.join("proc"),
        "proc",
        flags | MountFlags::NOEXEC,
        None,
    )
    .map_err(|error| telling("mounting /proc", error))?;
    rustix::process::pivot_root(ground, ground.join("old")).context("changing the root")?;
    std::env::set_current_dir("/").context("entering the new root")?;
    unmount("/old", UnmountFlags::DETACH).context("leaving the old root")?;
    fs::remove_dir("/old").context("leaving the old root")?;
    std::env::set_current_dir(&place).with_context(|| format!("returning to {}", place.display()))
}

/// Shows everything of the machine's root but what the cluster has of its own.
fn hang_files() -> anyhow::Result<()> {
    for entry in fs::read_dir("/").context("listing /")? {
        let entry = entry.context("listing /")?;
        let (name, path, kind) = (entry.file_name(), entry.path(), entry.file_type()?);
        if ["run", "proc", "old"].iter().any(|own| name == *own) {
            continue;
        }
        let target = Path::new(GROUND).join(&name);
        let failed = || format!("showing {}", path.display());
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&path)?, &target).with_context(failed)?;
            continue;
        }
        match kind.is_dir() {
            true => fs::create_dir(&target).with_context(failed)?,
            false => drop(fs::File::create(&target).with_context(failed)?),
        }
        if let Err(error) = mount_bind_recursive(&path, &target) {
            // Something odd at the root need not keep a cluster from running.
            tracing::warn!(path = %path.display(), %error, "a directory is not seen in the cluster");
        }
    }
    Ok(())
}

/// The error, or what helps against it.
pub fn telling(doing: &str, error: Errno) -> anyhow::Error {
    match error {
        Errno::PERM | Errno::ACCESS => anyhow::anyhow!(powerless(doing, &Settings::read())),
        other => anyhow::Error::new(other).context(doing.to_owned()),
    }
}
