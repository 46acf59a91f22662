//! How do a pod's volumes come to be on disk?
//!
//! Given files are written as the kubelet does, so that programs that watch them work: the files are in a
//! directory of their own, `..data` is a link to it, and every visible name is a link through `..data`.
//! Renaming a new `..data` over the old one switches all files at once.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::shim::mounts;
use crate::{FileSet, Medium, Refusal, RuntimeError, VolumeSource};

/// The link that is switched.
const DATA: &str = "..data";

/// Makes a volume, or completes it.
pub fn prepare(directory: &Path, source: &VolumeSource, group: Option<u32>) -> Result<(), RuntimeError> {
    let failed = |error| RuntimeError::system(format!("make the volume {}", directory.display()), error);
    match source {
        VolumeSource::Scratch { medium, size_limit } => {
            fs::create_dir_all(directory).map_err(failed)?;
            if *medium == Medium::Memory {
                mount_memory(directory, *size_limit).map_err(failed)?;
            }
            // Any user of the pod may write; with a group of its own, new files belong to that group.
            fs::set_permissions(
                directory,
                fs::Permissions::from_mode(group.map_or(0o777, |_| 0o2777)),
            )
            .map_err(failed)?;
            chown(directory, None, group).map_err(failed)
        }
        VolumeSource::Files(files) => {
            if files.in_memory {
                fs::create_dir_all(directory).map_err(failed)?;
                mount_memory(directory, None).map_err(failed)?;
            }
            write_files(directory, files, group)
        }
        VolumeSource::Host(_) => Ok(()),
    }
}

/// Replaces the files of a volume at once. Equal files change nothing.
pub fn write_files(directory: &Path, files: &FileSet, group: Option<u32>) -> Result<(), RuntimeError> {
    if let Some(bad) = files.files.keys().find(|path| !is_inner_path(path)) {
        return Err(RuntimeError::Refused {
            reason: Refusal::InvalidSpec,
            message: format!("{bad:?} is not a path within a volume"),
        });
    }
    let failed = |error| RuntimeError::system(format!("write the files of {}", directory.display()), error);
    if is_same(directory, files, group) {
        return Ok(());
    }
    fs::create_dir_all(directory)
        .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
        .and_then(|()| switch_files(directory, files, group))
        .map_err(failed)
}

/// Unmounts everything below a directory that is about to be removed.
pub fn unmount_below(directory: &Path) -> io::Result<()> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points: Vec<PathBuf> = mounts::parse(&mountinfo)
        .into_iter()
        .map(|mount| mount.point)
        .collect();
    points.retain(|point| point.starts_with(directory));
    for point in points.iter().rev() {
        unmount(point, UnmountFlags::DETACH)?;
    }
    Ok(())
}

fn mount_memory(directory: &Path, size_limit: Option<u64>) -> io::Result<()> {
    let parent = directory.parent().unwrap_or(directory);
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
    if device(directory)? != device(parent)? {
        return Ok(());
    }
    let options = size_limit.map_or("mode=0777".to_owned(), |size| format!("mode=0777,size={size}"));
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount(
        "tmpfs",
        directory,
        "tmpfs",
        flags,
        Some(options.as_c_str()),
    )?)
}

fn is_inner_path(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

fn is_same(directory: &Path, files: &FileSet, group: Option<u32>) -> bool {
    let data = directory.join(DATA);
    let mut present = BTreeSet::new();
    if collect(&data, Path::new(""), &mut present).is_err() || present.len() != files.files.len() {
        return false;
    }
    files.files.iter().all(|(path, content)| {
        let path = data.join(path);
        let wanted = effective_mode(content.mode, group);
        let fits = |found: fs::Metadata| {
            found.mode() & 0o7777 == wanted && content.owner.is_none_or(|owner| owner == found.uid())
        };
        fs::metadata(&path).is_ok_and(fits) && fs::read(&path).is_ok_and(|bytes| bytes == content.bytes)
    })
}

fn collect(base: &Path, below: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(base.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(base, &path, found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

fn switch_files(directory: &Path, files: &FileSet, group: Option<u32>) -> io::Result<()> {
    let old = fs::read_link(directory.join(DATA)).ok();
    let generation = old
        .as_deref()
        .and_then(Path::to_str)
        .and_then(|name| name.strip_prefix("..")?.parse().ok());
    let name = format!("..{}", generation.map_or(0, |generation: u64| generation + 1));
    let fresh = directory.join(&name);
    // A crash may have left one half written.
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    fs::create_dir(&fresh)?;
    for (path, content) in &files.files {
        write_file(&fresh, path, content, group)?;
    }
    let link = directory.join("..data.new");
    let _ = fs::remove_file(&link);
    symlink(&name, &link)?;
    fs::rename(&link, directory.join(DATA))?;
    link_names(directory, files)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != *name {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn write_file(base: &Path, path: &str, content: &crate::FileContent, group: Option<u32>) -> io::Result<()> {
    let path = base.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Nobody else reads it before it is as it should be.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(&content.bytes)?;
    chown(&path, content.owner, group)?;
    file.set_permissions(fs::Permissions::from_mode(effective_mode(content.mode, group)))
}

/// With a group of its own, the file's owner and that group may read it, whatever its mode says (the kubelet's rule).
fn effective_mode(mode: u32, group: Option<u32>) -> u32 {
    mode & 0o7777 | group.map_or(0, |_| 0o440)
}

/// Makes the visible names lead through `..data`, and removes those that lead nowhere any more.
fn link_names(directory: &Path, files: &FileSet) -> io::Result<()> {
    let first = |path: &String| path.split('/').next().unwrap_or(path).to_owned();
    let wanted: BTreeSet<String> = files.files.keys().map(first).collect();
    for name in &wanted {
        match symlink(Path::new(DATA).join(name), directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => outcome?,
        }
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_symlink() && !name.starts_with("..") && !wanted.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileContent;

    fn files(entries: &[(&str, &str)]) -> FileSet {
        let entry = |(path, text): &(&str, &str)| {
            let content = FileContent {
                bytes: text.as_bytes().to_vec(),
                mode: 0o644,
                owner: None,
            };
            ((*path).to_owned(), content)
        };
        FileSet {
            files: entries.iter().map(entry).collect(),
            in_memory: false,
        }
    }

    #[test]
    fn all_files_change_at_once_and_old_names_vanish() {
        let directory = tempfile::tempdir().unwrap();
        let read = |path: &str| fs::read_to_string(directory.path().join(path)).ok();
        write_files(directory.path(), &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!((read("a"), read("sub/b")), (Some("1".into()), Some("2".into())));
        let before = fs::read_link(directory.path().join(DATA)).unwrap();
        write_files(directory.path(), &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(
            fs::read_link(directory.path().join(DATA)).unwrap(),
            before,
            "nothing had changed"
        );
        // A reader that holds the old directory keeps seeing the old files.
        let old = fs::File::open(directory.path().join("a")).unwrap();
        write_files(directory.path(), &files(&[("a", "3")]), None).unwrap();
        assert_eq!(io::read_to_string(old).unwrap(), "1");
        assert_eq!((read("a"), read("sub/b")), (Some("3".into()), None));
        assert!(!directory.path().join("sub").is_symlink());
    }

    #[test]
    fn a_path_that_leaves_the_volume_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["", "/etc/passwd", "../x", "a/../../x", "..data", "..x"] {
            let refused = write_files(directory.path(), &files(&[(path, "x")]), None);
            assert!(matches!(refused, Err(RuntimeError::Refused { .. })), "{path:?}");
        }
    }
}
