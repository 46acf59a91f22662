//! Where is everything of a pod?
//!
//! ```text
//! ROOT/addresses/IP                          whose address it is
//! ROOT/pods/UID/sandbox.json                 the pod; removed last
//! ROOT/pods/UID/etc/                         hosts, hostname, resolv.conf
//! ROOT/pods/UID/volumes/NAME/                its volumes
//! ROOT/pods/UID/containers/NAME/ATTEMPT/     one run: see `shim::protocol::file`
//! ROOT/logs/NAMESPACE_POD_UID/NAME/N.log     its output
//! /run/netns/pod-UID-TAG                     the pod's network namespace
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{ContainerId, ContainerName, PodUid, SandboxSpec, VolumeName};

/// The paths and names of one runtime.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
    tag: String,
}

impl Layout {
    /// Makes the root directory, for nobody but root. `root` may be relative.
    pub fn create(root: &Path) -> io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))?;
        let root = root.canonicalize()?;
        for part in ["addresses", "pods", "logs"] {
            fs::create_dir_all(root.join(part))?;
        }
        let tag = format!("{:04x}", hash(root.as_os_str().as_encoded_bytes()) & 0xffff);
        Ok(Self { root, tag })
    }

    /// The root directory, absolute and without symbolic links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tells the names of this runtime from those of another on the same machine.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// One file for each address in use.
    pub fn addresses(&self) -> PathBuf {
        self.root.join("addresses")
    }

    /// Everything of a pod but its logs.
    pub fn pod(&self, pod: &PodUid) -> PathBuf {
        self.root.join("pods").join(pod.as_str())
    }

    /// The pods that have a directory, in order.
    pub fn pods(&self) -> io::Result<Vec<PodUid>> {
        names(&self.root.join("pods"), |name| PodUid::try_new(name).ok())
    }

    /// The record of a pod.
    pub fn sandbox(&self, pod: &PodUid) -> PathBuf {
        self.pod(pod).join("sandbox.json")
    }

    /// The files of a pod's `/etc`.
    pub fn etc(&self, pod: &PodUid) -> PathBuf {
        self.pod(pod).join("etc")
    }

    pub fn volume(&self, pod: &PodUid, volume: &VolumeName) -> PathBuf {
        self.pod(pod).join("volumes").join(volume.as_str())
    }

    /// One run of a container.
    pub fn container(&self, id: &ContainerId) -> PathBuf {
        let containers = self.pod(&id.pod).join("containers");
        containers.join(id.name.as_str()).join(id.attempt.to_string())
    }

    /// The runs of a pod's containers that have a directory, in order.
    pub fn containers(&self, pod: &PodUid) -> io::Result<Vec<ContainerId>> {
        let containers = self.pod(pod).join("containers");
        let mut ids = Vec::new();
        for name in names(&containers, |name| ContainerName::try_new(name).ok())? {
            let attempts = names(&containers.join(name.as_str()), |attempt| attempt.parse().ok())?;
            ids.extend(attempts.into_iter().map(|attempt| ContainerId {
                pod: pod.clone(),
                name: name.clone(),
                attempt,
            }));
        }
        Ok(ids)
    }

    /// The logs of a pod, named for people.
    pub fn logs(&self, spec: &SandboxSpec) -> PathBuf {
        let plain = |text: &str| text.replace(['/', '\0'], "-");
        let name = format!("{}_{}_{}", plain(&spec.namespace), plain(&spec.name), spec.pod);
        self.root.join("logs").join(name)
    }

    /// The log of one run.
    pub fn log(&self, spec: &SandboxSpec, id: &ContainerId) -> PathBuf {
        self.logs(spec)
            .join(id.name.as_str())
            .join(format!("{}.log", id.attempt))
    }

    /// The name of a pod's network namespace.
    pub fn netns(&self, pod: &PodUid) -> String {
        format!("pod-{pod}-{}", self.tag)
    }

    /// Whose network namespace has this name, if it is one of ours.
    pub fn pod_of_netns(&self, name: &str) -> Option<PodUid> {
        let inner = name
            .strip_prefix("pod-")?
            .strip_suffix(&self.tag)?
            .strip_suffix('-')?;
        PodUid::try_new(inner).ok()
    }

    /// The name of a pod's link in the node's namespace; a link's name has at most 15 bytes.
    pub fn link(&self, pod: &PodUid) -> String {
        format!("pod{:012x}", hash(pod.as_str().as_bytes()) & 0xffff_ffff_ffff)
    }
}

fn names<T: Ord>(directory: &Path, parse: impl Fn(&str) -> Option<T>) -> io::Result<Vec<T>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(&parse));
    }
    names.sort_unstable();
    Ok(names)
}

/// FNV-1a: the same on every machine and in every version.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_lead_back_to_their_pod() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::create(&directory.path().join("node")).unwrap();
        let other = Layout::create(&directory.path().join("other")).unwrap();
        let pod = PodUid::try_new("8f14e45f-ceea-467f-a8d7-3e3f6b2f6d11").unwrap();
        assert_eq!(layout.pod_of_netns(&layout.netns(&pod)), Some(pod.clone()));
        assert_eq!(other.pod_of_netns(&layout.netns(&pod)), None);
        assert_eq!(layout.link(&pod).len(), 15);
    }

    #[test]
    fn runs_are_found_in_order_and_strangers_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::create(directory.path()).unwrap();
        let pod = PodUid::try_new("a").unwrap();
        assert!(layout.containers(&pod).unwrap().is_empty());
        for path in ["web/0", "web/10", "web/9", "init/0", "web/x", ".tmp/0"] {
            fs::create_dir_all(layout.pod(&pod).join("containers").join(path)).unwrap();
        }
        let found: Vec<String> = layout
            .containers(&pod)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, ["a/init/0", "a/web/0", "a/web/9", "a/web/10"]);
        assert_eq!(layout.pods().unwrap(), [pod]);
    }
}
