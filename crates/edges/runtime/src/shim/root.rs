//! What does a container see as its file tree?
//!
//! With [`Root::Layer`] it is an overlay: the host's files below, an empty layer in memory above. What the
//! program writes is its own and goes with it, mount points that the host does not have are made in the
//! layer, and no directory of the host is ever written to. The kernel's own file systems are separate:
//! `/proc` is the host's, `/sys` is that of the pod's network namespace, `/dev` holds the harmless devices.
//!
//! With [`Root::Host`], for kernels without overlay, the program sees the host's files themselves; volumes
//! can then only be mounted on paths that exist.
//!
//! Everything happens in a mount namespace of the calling process, so that nothing is left when the last
//! process of the container has gone.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::failure::Failure;
use super::mounts::{self, Share};
use super::protocol::{Bind, Launch, Root, file};
use crate::StartFailure;

/// Where the host's tree hangs while volumes are mounted.
const OLD_ROOT: &str = "/.pointsman-host";
/// A fresh namespace of the kernel has no more than this in `/dev`.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Gives the calling process the container's file tree. It must be in a mount namespace of its own.
pub fn enter(launch: &Launch, directory: &Path) -> Result<(), Failure> {
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| setup("keeping mounts to ourselves", error))?;
    match launch.root {
        Root::Layer { size } => {
            build_layer(&launch.shares, &directory.join(file::ROOT), &launch.hidden, size)?;
            for bind in &launch.binds {
                mount_volume(bind, Path::new(OLD_ROOT), true)?;
            }
            unmount(OLD_ROOT, UnmountFlags::DETACH)
                .map_err(|error| setup("leaving the host's tree", error))?;
            fs::remove_dir(OLD_ROOT).map_err(|error| setup("leaving the host's tree", error))
        }
        Root::Host => {
            for bind in &launch.binds {
                mount_volume(bind, Path::new("/"), false)?;
            }
            // The copies of other pods' namespaces would keep them alive.
            let mountinfo =
                fs::read_to_string("/proc/self/mountinfo").map_err(|error| setup("reading mounts", error))?;
            for other in mounts::parse(&mountinfo)
                .iter()
                .filter(|mount| mount.kind == "nsfs")
            {
                let _ = unmount(&other.point, UnmountFlags::DETACH);
            }
            hide(&launch.hidden)
        }
    }
}

/// Whether this kernel can give a container a layer of its own. Tried in a namespace that nobody sees.
pub fn can_layer(scratch: &Path) -> bool {
    let attempt = || -> io::Result<()> {
        super::unshare_mounts()?;
        mount_change(
            "/",
            MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
        )?;
        mount_memory(scratch, 1 << 20, "0755")?;
        std::env::set_current_dir(scratch)?;
        overlay(Path::new("/"), Path::new("merged"), 0)
    };
    // A thread of its own, because the namespace and the directory are its own too.
    std::thread::scope(|scope| matches!(scope.spawn(attempt).join(), Ok(Ok(()))))
}

/// Builds the tree in `scratch` and makes it the root; the host's hangs at [`OLD_ROOT`] then.
fn build_layer(shares: &[Share], scratch: &Path, hidden: &Path, size: u64) -> Result<(), Failure> {
    let layer = |error: io::Error| setup("giving the container a layer over the host's files", error);
    fs::create_dir_all(scratch).map_err(layer)?;
    mount_memory(scratch, size, "0755").map_err(layer)?;
    // Relative from here on, so that no path is misread as a list of options.
    std::env::set_current_dir(scratch).map_err(layer)?;
    let merged = Path::new("merged");
    overlay(Path::new("/"), merged, 0).map_err(layer)?;
    for (number, share) in shares.iter().enumerate() {
        share_mount(share, merged, number + 1);
    }
    kernel_trees(merged).map_err(layer)?;
    let inside = |path: &Path| merged.join(path.strip_prefix("/").unwrap_or(path));
    hide(&inside(hidden))?;
    let old_root = inside(Path::new(OLD_ROOT));
    fs::create_dir(&old_root).map_err(layer)?;
    rustix::process::pivot_root(merged, &old_root).map_err(|error| layer(error.into()))?;
    std::env::set_current_dir("/").map_err(layer)
}

/// Mounts `lower` under a layer of its own, which is the `number`th in the current directory.
fn overlay(lower: &Path, target: &Path, number: usize) -> io::Result<()> {
    let (upper, work) = (format!("upper{number}"), format!("work{number}"));
    for directory in [Path::new(&upper), Path::new(&work), target] {
        if !directory.is_dir() {
            DirBuilder::new().mode(0o755).create(directory)?;
        }
    }
    if number > 0 {
        // The layer's own directory is what the container sees, so that it takes the mode of the host's.
        fs::set_permissions(&upper, fs::metadata(lower)?.permissions())?;
    }
    let lower = lower.to_str().filter(|text| !text.contains([',', ':', '\\']));
    let lower = lower.ok_or(io::ErrorKind::InvalidInput)?;
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let options = std::ffi::CString::new(options)?;
    Ok(mount(
        "overlay",
        target,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )?)
}

/// Shows a mount of the host in the container. One that cannot be shown is an empty directory there.
fn share_mount(share: &Share, merged: &Path, number: usize) {
    let point = share.point();
    let target = merged.join(point.strip_prefix("/").unwrap_or(point));
    let is_layered =
        matches!(share, Share::Layer(_)) && point.is_dir() && overlay(point, &target, number).is_ok();
    if !is_layered && mount_bind(point, &target).is_ok() && remount_read_only(&target).is_err() {
        let _ = unmount(&target, UnmountFlags::DETACH);
    }
}

fn kernel_trees(merged: &Path) -> io::Result<()> {
    let path = |name: &str| merged.join(name);
    mount_bind_recursive("/proc", path("proc"))?;
    let quiet = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if mount("sysfs", path("sys"), "sysfs", quiet, None).is_err() {
        mount_bind_recursive("/sys", path("sys"))?;
    }
    mount_memory(&path("dev"), 64 << 10, "0755")?;
    for device in DEVICES {
        let (host, inside) = (Path::new("/dev").join(device), path("dev").join(device));
        if host.exists() {
            File::create(&inside)?;
            mount_bind(&host, &inside)?;
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        std::os::unix::fs::symlink(target, path("dev").join(name))?;
    }
    for name in ["shm", "pts"] {
        fs::create_dir(path("dev").join(name))?;
    }
    mount_memory(&path("dev/shm"), 64 << 20, "1777")?;
    // Without pseudo-terminals nothing but a terminal is missing.
    let _ = mount_bind("/dev/pts", path("dev/pts"));
    Ok(())
}

fn mount_memory(target: &Path, size: u64, mode: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(format!("size={size},mode={mode}"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", target, "tmpfs", flags, Some(options.as_c_str()))?)
}

fn hide(directory: &Path) -> Result<(), Failure> {
    let hidden = mount_memory(directory, 4 << 10, "0700").and_then(|()| remount_read_only(directory));
    hidden.map_err(|error| setup(format!("hiding {}", directory.display()), error))
}

fn remount_read_only(target: &Path) -> io::Result<()> {
    Ok(mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, "")?)
}

/// Mounts a volume whose source is found below `host`.
fn mount_volume(bind: &Bind, host: &Path, may_make: bool) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let doing = format!("mounting {} at {}", bind.source.display(), bind.target.display());
        Failure::new(StartFailure::Mount, doing, error)
    };
    let source = open_source(bind, host).map_err(failed)?;
    let is_directory = rustix::fs::fstat(&source)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .map_err(|error| failed(error.into()))?;
    if !bind.target.exists() {
        if !may_make {
            let message = format!(
                "mounting at {}: the host has no such path, and this kernel has no overlay to make it in",
                bind.target.display()
            );
            let reason = StartFailure::Mount;
            return Err(Failure { reason, message });
        }
        make_target(&bind.target, is_directory).map_err(failed)?;
    }
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount_bind_recursive(source, &bind.target).map_err(|error| failed(error.into()))?;
    if bind.read_only {
        remount_read_only(&bind.target).map_err(failed)?;
    }
    Ok(())
}

fn make_target(target: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if target.is_symlink() {
        // It leads nowhere, as `/etc/resolv.conf` does on some hosts. This is the container's own layer.
        fs::remove_file(target)?;
    }
    File::create(target).map(drop)
}

/// Opens what is to be mounted. A program may have planted symbolic links in a volume it can write, so
/// that a path within one is never followed out of it.
fn open_source(bind: &Bind, host: &Path) -> io::Result<OwnedFd> {
    let source = host.join(bind.source.strip_prefix("/").unwrap_or(&bind.source));
    let volume = rustix::fs::open(&source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
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
        let name = PathBuf::from(name);
        match rustix::fs::mkdirat(&current, &name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        current = open_beneath(&current, &name)?;
    }
    Ok(current)
}

fn setup(doing: impl std::fmt::Display, error: impl Into<io::Error>) -> Failure {
    Failure::new(StartFailure::Setup, doing, error)
}
