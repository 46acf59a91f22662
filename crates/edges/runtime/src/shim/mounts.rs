//! Which of the host's mounts does a container see, and how?
//!
//! Pure: the text of `/proc/self/mountinfo` in, a list of what to do out.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A mount of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    pub point: PathBuf,
    /// Its kind of file system.
    pub kind: String,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// The options of its file system.
    pub options: String,
}

impl HostMount {
    /// Whether its file system has an option of this name.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// How a container gets a mount of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// Under a layer of the container's own.
    Layer(PathBuf),
    /// As it is, but read-only.
    ReadOnly(PathBuf),
}

/// Reads `/proc/self/mountinfo`; lines that are none are left out.
pub fn parse(mountinfo: &str) -> Vec<HostMount> {
    mountinfo.lines().filter_map(parse_line).collect()
}

/// What to do about each mount below `/`, parents first. `/proc`, `/sys` and `/dev` are not among them,
/// for a container gets its own; nor is what would keep other pods' resources alive.
pub fn plan(mounts: &[HostMount], hidden: &Path) -> Vec<Share> {
    let left_out = ["/proc", "/sys", "/dev", "/run/netns"].map(Path::new);
    let kinds = [
        "nsfs", "autofs", "overlay", "cgroup", "cgroup2", "proc", "sysfs", "devtmpfs", "devpts",
    ];
    let mut shares: Vec<Share> = Vec::new();
    for mount in mounts {
        // The kind comes first: on a node with many pods nearly all mounts are their namespaces.
        let is_left_out = kinds.contains(&mount.kind.as_str())
            || mount.point == Path::new("/")
            || mount.point.starts_with(hidden)
            || left_out.iter().any(|path| mount.point.starts_with(path));
        if is_left_out {
            continue;
        }
        // Of several mounts on one point the last is the one that is seen.
        shares.retain(|share| share.point() != mount.point);
        shares.push(if mount.read_only {
            Share::ReadOnly(mount.point.clone())
        } else {
            Share::Layer(mount.point.clone())
        });
    }
    shares
}

impl Share {
    pub fn point(&self) -> &Path {
        match self {
            Self::Layer(point) | Self::ReadOnly(point) => point,
        }
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &str) -> Option<HostMount> {
    let (own, shared) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(4);
    let (point, options) = (own.next()?, own.next()?);
    let mut shared = shared.split(' ');
    let kind = shared.next()?.to_owned();
    let of_file_system = shared.nth(1).unwrap_or_default();
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Some(HostMount {
        point: PathBuf::from(OsString::from_vec(unescape(point.as_bytes()))),
        kind,
        read_only: read_only(options) || read_only(of_file_system),
        options: of_file_system.to_owned(),
    })
}

/// The kernel writes a space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| first == b'\\');
        let digits = code.and_then(|code| std::str::from_utf8(code).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_mounts_are_shared_and_the_kernels_own_are_not() {
        let text = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:6 / /sys rw - sysfs sysfs rw
25 24 0:7 / /sys/fs/cgroup rw - cgroup2 none rw
26 22 0:8 / /tmp rw shared:5 - tmpfs tmpfs rw
27 22 8:1 / /mnt/my\\040disk rw - ext4 /dev/sdb1 ro
28 22 0:4 net:[1] /run/netns/a rw - nsfs nsfs rw
29 22 0:9 / /var/lib/node/pods/x/volumes/y rw - tmpfs tmpfs rw
30 22 0:10 / /tmp ro - tmpfs tmpfs rw
not a mount";
        let shares = plan(&parse(text), Path::new("/var/lib/node"));
        assert_eq!(
            shares,
            [
                Share::ReadOnly("/mnt/my disk".into()),
                Share::ReadOnly("/tmp".into())
            ]
        );
    }
}
