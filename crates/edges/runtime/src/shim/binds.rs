//! How do volumes get to their places in a container's file tree?
//!
//! In two steps, between which the host's tree goes. While it is there, every volume is taken as a copy of its
//! mount that hangs nowhere ([`take`]). When nothing but the container's own tree can be reached, the copies are hung
//! up in it ([`hang`]). A program may have planted symbolic links in a volume that it can write to: none is followed
//! there, and elsewhere none leads out of the tree. Places are held by descriptors, so that nobody can exchange them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount_remount, move_mount, open_tree};

use super::failure::Failure;
use super::protocol::Bind;
use crate::StartFailure;

/// A volume on its way.
pub struct Taken<'a> {
    bind: &'a Bind,
    /// The copy of its mount.
    tree: OwnedFd,
    is_directory: bool,
}

/// Takes what is to be mounted from the host's tree.
pub fn take(bind: &Bind) -> Result<Taken<'_>, Failure> {
    let taken = || -> io::Result<Taken<'_>> {
        let source = open_source(bind)?;
        let is_directory = FileType::from_raw_mode(rustix::fs::fstat(&source)?.st_mode).is_dir();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(&source, c"", flags)?;
        Ok(Taken {
            bind,
            tree,
            is_directory,
        })
    };
    taken().map_err(|error| failure(bind, error))
}

/// Mounts what was taken, in this order, in the tree whose root is the calling process's. What is missing is made,
/// if that may be.
pub fn hang(volumes: &[Taken<'_>], may_make: bool) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for (number, volume) in volumes.iter().enumerate() {
        let bind = volume.bind;
        let failed = |error: io::Error| failure(bind, error);
        let root = rustix::fs::open("/", flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let place = Place::of(&bind.target, &root, &volumes[..number]);
        let target = match place.find() {
            Err(Errno::NOENT) if may_make => place.make(volume.is_directory).map_err(failed)?,
            Err(Errno::NOENT) => {
                let message = format!(
                    "mounting at {}: the host has no such path, and this kernel has no overlay to make it in",
                    bind.target.display()
                );
                let reason = StartFailure::Mount;
                return Err(Failure { reason, message });
            }
            found => found.map_err(|error| failed(error.into()))?,
        };
        let here = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&volume.tree, c"", &target, c"", here).map_err(|error| failed(error.into()))?;
        if bind.read_only {
            remount_read_only(&volume.tree).map_err(failed)?;
        }
    }
    Ok(())
}

/// Refuses writes through a mount, of which this is the root.
pub fn remount_read_only(mount: &OwnedFd) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")?)
}

/// Where a volume goes: a path below a directory, and which links may be followed on the way.
struct Place<'a> {
    base: &'a OwnedFd,
    path: &'a Path,
    resolve: ResolveFlags,
}

impl<'a> Place<'a> {
    /// A place below an earlier volume, or in the tree of this root.
    fn of(target: &'a Path, root: &'a OwnedFd, earlier: &'a [Taken<'_>]) -> Self {
        let mut volumes = earlier.iter().rev();
        let below = volumes.find_map(|volume| Some((volume, target.strip_prefix(&volume.bind.target).ok()?)));
        match below {
            Some((volume, path)) => Self {
                base: &volume.tree,
                path,
                resolve: ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            },
            // The host's own links, such as /var/run to /run, are followed.
            None => Self {
                base: root,
                path: target.strip_prefix("/").unwrap_or(target),
                resolve: ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            },
        }
    }

    fn find(&self) -> rustix::io::Result<OwnedFd> {
        self.open(self.path)
    }

    fn open(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        if path.as_os_str().is_empty() {
            return rustix::io::fcntl_dupfd_cloexec(self.base, 0);
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(self.base, path, flags, Mode::empty(), self.resolve)
    }

    /// Makes what is missing on the way, and a directory or an empty file at its end.
    fn make(&self, is_directory: bool) -> io::Result<OwnedFd> {
        let mut seen = std::path::PathBuf::new();
        let mut current = self.open(&seen)?;
        for part in self.path.components() {
            let Component::Normal(name) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            seen.push(name);
            current = match self.open(&seen) {
                Err(Errno::NOENT) => make_one(&current, Path::new(name), is_directory || seen != self.path)?,
                found => found?,
            };
        }
        Ok(current)
    }
}

fn make_one(parent: &OwnedFd, name: &Path, is_directory: bool) -> io::Result<OwnedFd> {
    if is_directory {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644));
        match create() {
            // A link that leads nowhere, as `/etc/resolv.conf` is on some hosts. This is the container's own layer:
            // in a volume the link itself was in the way.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::empty())?;
                create()?;
            }
            created => drop(created?),
        }
    }
    Ok(open_plain(parent, name)?)
}

fn open_plain(directory: &OwnedFd, name: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve)
}

/// Opens what is to be mounted. A path within a volume is never followed out of it.
pub(crate) fn open_source(bind: &Bind) -> io::Result<OwnedFd> {
    let volume = rustix::fs::open(&bind.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let Some(sub_path) = &bind.sub_path else {
        return Ok(volume);
    };
    match open_beneath(&volume, sub_path) {
        Err(Errno::NOENT) if bind.make_sub_path => make_beneath(volume, sub_path),
        opened => Ok(opened?),
    }
}

fn open_beneath(directory: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)
}

fn make_beneath(volume: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut current = volume;
    for component in path.components() {
        let Component::Normal(name) = component else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let name = Path::new(name);
        match rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => open_to_all(&current, name)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        current = open_beneath(&current, name)?;
    }
    Ok(current)
}

/// What was made in a volume is the pod's, whoever its programs run as and whatever our own mask is. No link is followed:
/// a program may have been faster.
fn open_to_all(above: &OwnedFd, name: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let made = rustix::fs::openat2(above, name, flags, Mode::empty(), resolve)?;
    Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(0o777))?)
}

fn failure(bind: &Bind, error: io::Error) -> Failure {
    let doing = format!("mounting {} at {}", bind.source.display(), bind.target.display());
    Failure::new(StartFailure::Mount, doing, error)
}
