//! Which path of the node does a container mount?
//!
//! The runtime opens paths by name. A path within a volume may lead through links that a program planted there, so
//! it is opened here, kept within the volume by the kernel, and what was found is hung up in a place that no program
//! can change.

use crate::process::launch::refused;
use crate::shim::binds::open_source;
use crate::shim::protocol::Bind;
use crate::{RuntimeError, StartFailure};
use rustix::mount::mount_bind_recursive;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Makes paths of binds, below `scratch` where they cannot be given as they are.
pub fn prepare(binds: &[Bind], scratch: &Path) -> Result<Vec<super::messages::Mount>, RuntimeError> {
    let mut mounts = Vec::new();
    for (number, bind) in binds.iter().enumerate() {
        let cannot = |error: std::io::Error| RuntimeError::CannotStart {
            reason: StartFailure::Mount,
            message: format!(
                "cannot mount {} at {}: {error}",
                shown(bind).display(),
                bind.target.display()
            ),
        };
        let path = match &bind.sub_path {
            None => {
                fs::metadata(&bind.source).map_err(cannot)?;
                bind.source.clone()
            }
            Some(_) => {
                let found = open_source(bind).map_err(cannot)?;
                hang_up(&found, &scratch.join(format!("sub-path-{number}"))).map_err(cannot)?
            }
        };
        let text = |path: &Path| match path.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(refused(format!("{path:?} is not text"))),
        };
        mounts.push(super::messages::Mount {
            container_path: text(&bind.target)?,
            host_path: text(&path)?,
            readonly: bind.read_only,
        });
    }
    Ok(mounts)
}

fn shown(bind: &Bind) -> PathBuf {
    match &bind.sub_path {
        Some(inner) => bind.source.join(inner),
        None => bind.source.clone(),
    }
}

/// Mounts what was opened on a place of ours.
fn hang_up(found: &OwnedFd, place: &Path) -> std::io::Result<PathBuf> {
    let is_directory =
        rustix::fs::fstat(found).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())?;
    if is_directory {
        fs::create_dir(place)?;
    } else {
        fs::write(place, "")?;
    }
    mount_bind_recursive(format!("/proc/self/fd/{}", found.as_raw_fd()), place)?;
    Ok(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_leads_nowhere_outside_of_its_volume() {
        let outer = tempfile::tempdir().unwrap();
        let volume = outer.path().join("volume");
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::write(outer.path().join("secret"), "").unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink("/etc", volume.join("etc")).unwrap();
        symlink("inside", volume.join("link")).unwrap();
        let open = |path: &str, make_sub_path| {
            open_source(&Bind {
                source: volume.clone(),
                sub_path: Some(path.into()),
                make_sub_path,
                target: "/x".into(),
                read_only: false,
            })
        };
        for bad in [
            "up",
            "etc",
            "etc/passwd",
            "etc/new",
            "../secret",
            "link/../../secret",
        ] {
            assert!(open(bad, true).is_err(), "{bad}");
        }
        assert!(!Path::new("/etc/new").exists());
        assert!(open("link", true).is_ok() && open("link/new/deep", true).is_ok());
        let mode = fs::metadata(volume.join("inside/new/deep"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o777, "the pod's programs may write there");
        assert!(open("missing", false).is_err());
    }
}
