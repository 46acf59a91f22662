//! How much does a pod have on disk?

use super::layout::Layout;
use super::pod::sandbox_record;
use crate::{ContainerName, DiskUse, Medium, PodUid, RuntimeError, VolumeSource};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What there is below the root directory: scratch volumes on disk, and logs.
pub(crate) fn below_root(layout: &Layout, pod: &PodUid) -> Result<DiskUse, RuntimeError> {
    let Some(record) = sandbox_record(layout, pod)? else {
        return Err(RuntimeError::NoSuchPod(pod.clone()));
    };
    let failed = |error| RuntimeError::system(format!("look how much pod {pod} has on disk"), error);
    let mut used = DiskUse::default();
    for volume in &record.spec.volumes {
        if let VolumeSource::Scratch {
            medium: Medium::Disk, ..
        } = volume.source
        {
            let size = size(&layout.volume(pod, &volume.name));
            used.volumes.insert(volume.name.clone(), size);
        }
    }
    let logs = match fs::read_dir(layout.logs(&record.spec)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(used),
        logs => logs.map_err(failed)?,
    };
    for entry in logs {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if let Some(Ok(name)) = name.to_str().map(ContainerName::try_new) {
            used.containers.insert(name, size(&entry.path()));
        }
    }
    Ok(used)
}

/// The bytes on disk of a directory and all in it, as `du` counts them: holes are not there, a file with several names is
/// there once. What cannot be read is not there: it vanished meanwhile, or its path is longer than the kernel takes.
fn size(directory: &Path) -> u64 {
    let mut linked = HashSet::new();
    let mut directories = vec![directory.to_owned()];
    let mut bytes = 0;
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries {
            // Links are not followed.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                directories.push(entry.path());
            } else if found.nlink() > 1 && !linked.insert((found.dev(), found.ino())) {
                continue;
            }
            bytes += found.blocks() * 512;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_on_disk_counts_once_and_nothing_else_does() {
        let directory = tempfile::tempdir().unwrap();
        let (inside, outside) = (directory.path().join("inside"), directory.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::write(&outside, vec![1; 1 << 20]).unwrap();
        let empty = size(&inside);
        fs::write(inside.join("a/b/file"), vec![1; 64 << 10]).unwrap();
        let once = size(&inside);
        assert!(
            once >= empty + (64 << 10) && once < empty + (80 << 10),
            "{empty} {once}"
        );
        fs::hard_link(inside.join("a/b/file"), inside.join("a/again")).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(directory.path(), inside.join("up")).unwrap();
        fs::File::create(inside.join("hole"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        assert!(size(&inside) < once + (16 << 10));
        assert_eq!(size(&directory.path().join("missing")), 0);
    }
}
