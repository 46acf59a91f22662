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
//! Volumes are hung up in it last ([`binds`]), when the host's tree cannot be reached any more.
//!
//! Everything happens in a mount namespace of the calling process, so that nothing is left when the last
//! process of the container has gone.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::binds;
use super::failure::Failure;
use super::mounts::{self, Share};
use super::protocol::{Launch, Root, file};
use crate::StartFailure;

/// Where the host's tree hangs for a moment, before it goes.
const OLD_ROOT: &str = "/.pointsman-host";
/// The mode of directories in which everybody may make files.
const STICKY: u32 = 0o1000;
/// A fresh namespace of the kernel has no more than this in `/dev`.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Gives the calling process the container's file tree. It must be in a mount namespace of its own.
pub fn enter(launch: &Launch, directory: &Path) -> Result<(), Failure> {
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| setup("keeping mounts to ourselves", error))?;
    let volumes: Vec<_> = launch.binds.iter().map(binds::take).collect::<Result<_, _>>()?;
    match launch.root {
        Root::Layer { size } => {
            let layers = build_layer(launch, &directory.join(file::ROOT), size)?;
            binds::hang(&volumes, true)?;
            if launch.security.read_only_root {
                for layer in &layers {
                    binds::remount_read_only(layer)
                        .map_err(|error| setup("making the root read-only", error))?;
                }
            }
            Ok(())
        }
        Root::Host => {
            binds::hang(&volumes, false)?;
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
        overlay(Path::new("/"), Path::new("merged"), 0, MountFlags::empty())
    };
    // A thread of its own, because the namespace and the directory are its own too.
    std::thread::scope(|scope| matches!(scope.spawn(attempt).join(), Ok(Ok(()))))
}

/// Builds the tree in `scratch` and makes it the only one there is. Returns the mounts that hold the host's files.
fn build_layer(launch: &Launch, scratch: &Path, size: u64) -> Result<Vec<OwnedFd>, Failure> {
    let layer = |error: io::Error| setup("giving the container a layer over the host's files", error);
    fs::create_dir_all(scratch).map_err(layer)?;
    mount_memory(scratch, size, "0755").map_err(layer)?;
    // Relative from here on, so that no path is misread as a list of options.
    std::env::set_current_dir(scratch).map_err(layer)?;
    let merged = Path::new("merged");
    // A device that a program makes there would be the host's.
    let flags = match launch.security.all_devices {
        true => MountFlags::empty(),
        false => MountFlags::NODEV,
    };
    overlay(Path::new("/"), merged, 0, flags).map_err(layer)?;
    let mut layers = vec![hold(merged).map_err(layer)?];
    for (number, share) in launch.shares.iter().enumerate() {
        layers.extend(share_mount(share, merged, number + 1, flags));
    }
    kernel_trees(merged, launch.security.all_devices).map_err(layer)?;
    let inside = |path: &Path| merged.join(path.strip_prefix("/").unwrap_or(path));
    hide(&inside(&launch.hidden))?;
    let old_root = inside(Path::new(OLD_ROOT));
    fs::create_dir(&old_root).map_err(layer)?;
    rustix::process::pivot_root(merged, &old_root).map_err(|error| layer(error.into()))?;
    std::env::set_current_dir("/").map_err(layer)?;
    let leaving = |error: io::Error| setup("leaving the host's tree", error);
    unmount(OLD_ROOT, UnmountFlags::DETACH).map_err(|error| leaving(error.into()))?;
    fs::remove_dir(OLD_ROOT).map_err(leaving)?;
    Ok(layers)
}

/// The root of the mount that is seen here.
fn hold(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Mounts `lower` under a layer of its own, which is the `number`th in the current directory.
fn overlay(lower: &Path, target: &Path, number: usize, flags: MountFlags) -> io::Result<()> {
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
        flags,
        Some(options.as_c_str()),
    )?)
}

/// Shows a mount of the host in the container. One that cannot be shown is an empty directory there. Returns its
/// layer, if it has one.
fn share_mount(share: &Share, merged: &Path, number: usize, flags: MountFlags) -> Option<OwnedFd> {
    let point = share.point();
    let target = merged.join(point.strip_prefix("/").unwrap_or(point));
    let is_layered =
        matches!(share, Share::Layer(_)) && point.is_dir() && overlay(point, &target, number, flags).is_ok();
    if is_layered {
        return hold(&target).ok();
    }
    let mode = fs::metadata(point).map(|metadata| metadata.permissions());
    let shown = mount_bind(point, &target).or_else(|error| match &mode {
        // What others use as scratch is better empty than read-only.
        Ok(mode) if mode.mode() & STICKY != 0 => Err(error),
        // In a user namespace a mount is inherited with the mounts below it or not at all.
        _ => mount_bind_recursive(point, &target),
    });
    match (shown, mode) {
        (Ok(()), _) if remount_read_only(&target).is_err() => {
            let _ = unmount(&target, UnmountFlags::DETACH);
        }
        (Err(_), Ok(mode)) => {
            let _ = fs::set_permissions(&target, mode);
        }
        _ => {}
    }
    None
}

fn kernel_trees(merged: &Path, all_devices: bool) -> io::Result<()> {
    let path = |name: &str| merged.join(name);
    mount_bind_recursive("/proc", path("proc"))?;
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let quiet = if all_devices {
        quiet
    } else {
        quiet | MountFlags::RDONLY
    };
    if mount("sysfs", path("sys"), "sysfs", quiet, None).is_err() {
        mount_bind_recursive("/sys", path("sys"))?;
    }
    mount_memory(&path("dev"), 1 << 20, "0755")?;
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
    if all_devices {
        show_devices(&path("dev"))?;
    }
    Ok(())
}

/// Shows what else the host has in `/dev`, one by one: what is made in the directory itself is not made on the host.
fn show_devices(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir("/dev")? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, directory.join(entry.file_name()));
        let is_device = kind.is_char_device() || kind.is_block_device();
        if target.exists() || !(kind.is_dir() || is_device) {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            File::create(&target)?;
        }
        mount_bind_recursive(entry.path(), &target)?;
    }
    Ok(())
}

fn mount_memory(target: &Path, size: u64, mode: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(format!("size={size},mode={mode}"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", target, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Makes a directory empty for the container; one that it does not see anyway may be missing.
fn hide(directory: &Path) -> Result<(), Failure> {
    if !directory.exists() {
        return Ok(());
    }
    let hidden = mount_memory(directory, 4 << 10, "0700").and_then(|()| remount_read_only(directory));
    hidden.map_err(|error| setup(format!("hiding {}", directory.display()), error))
}

fn remount_read_only(target: &Path) -> io::Result<()> {
    Ok(mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, "")?)
}

fn setup(doing: impl std::fmt::Display, error: impl Into<io::Error>) -> Failure {
    Failure::new(StartFailure::Setup, doing, error)
}
