//! What may a container's program do, and what not?

use serde::{Deserialize, Serialize};

/// What a container is kept from, besides its user and its files. The default is what container runtimes give
/// a container that asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Whether the program can gain nothing by files with the set-user-id bit or capabilities.
    pub no_new_privileges: bool,
    /// Whether the program can write to its volumes only.
    pub read_only_root: bool,
    pub capabilities: Capabilities,
    /// Whether it sees all devices of the host and may write to `/sys` (`privileged`).
    pub all_devices: bool,
    pub system_calls: SystemCalls,
}

/// Which capabilities the processes of a container can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// No process of the container ever has others.
    pub bound: CapabilitySet,
    /// Those that were asked for by name. Users other than root have these too.
    pub asked: CapabilitySet,
}

/// Which system calls the processes of a container can make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemCalls {
    /// All of them (`Unconfined`).
    #[default]
    All,
    /// Those that programs need which do not administer the machine (`RuntimeDefault`).
    Ordinary,
}

/// A set of capabilities of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitySet(u64);

/// In the order of their numbers in linux/capability.h.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What containerd and Docker give a container that asks for nothing.
const USUAL: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

impl CapabilitySet {
    pub const NONE: Self = Self(0);
    /// Also those of newer kernels.
    pub const ALL: Self = Self(u64::MAX);

    /// The capability of this name, such as `NET_ADMIN` or `CAP_NET_ADMIN`.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        let number = NAMES.iter().position(|known| *known == name)?;
        Some(Self(1 << number))
    }

    /// What a container has that asks for nothing.
    pub fn usual() -> Self {
        USUAL
            .into_iter()
            .filter_map(Self::named)
            .fold(Self::NONE, Self::with)
    }

    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn contains(self, other: Self) -> bool {
        other.without(self) == Self::NONE
    }

    /// As the kernel counts them.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The names of those that have one.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let held = move |number: &usize| self.0 & (1 << number) != 0;
        (0..NAMES.len()).filter(held).map(|number| NAMES[number])
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl std::fmt::Display for CapabilitySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

impl Capabilities {
    /// What a container gets that asks for some and gives up others, each by name or as `ALL`: the runtimes' order
    /// is `ALL` first, then what is added, then what is dropped. The error is a name that is none.
    pub fn of(add: &[String], drop: &[String]) -> Result<Self, String> {
        let is_all = |name: &&String| name.eq_ignore_ascii_case("ALL");
        let named = |names: &[String]| {
            let mut single = names.iter().filter(|name| !is_all(name));
            single.try_fold(CapabilitySet::NONE, |set, name| {
                CapabilitySet::named(name)
                    .map(|one| set.with(one))
                    .ok_or_else(|| name.clone())
            })
        };
        let (added, dropped) = (named(add)?, named(drop)?);
        let base = if drop.iter().any(|name| is_all(&name)) {
            CapabilitySet::NONE
        } else if add.iter().any(|name| is_all(&name)) {
            CapabilitySet::ALL
        } else {
            CapabilitySet::usual()
        };
        let bound = base.with(added).without(dropped);
        Ok(Self {
            bound,
            asked: added.within(bound),
        })
    }

    /// Everything (`privileged`).
    pub const ALL: Self = Self {
        bound: CapabilitySet::ALL,
        asked: CapabilitySet::NONE,
    };
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            bound: CapabilitySet::usual(),
            asked: CapabilitySet::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(add: &[&str], drop: &[&str]) -> (String, String) {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let sets = Capabilities::of(&owned(add), &owned(drop)).unwrap();
        (sets.bound.to_string(), sets.asked.to_string())
    }

    #[test]
    fn names_are_added_to_the_usual_ones_and_dropped_from_them() {
        assert_eq!(Capabilities::of(&[], &[]), Ok(Capabilities::default()));
        let two = |bound: &str, asked: &str| (bound.to_owned(), asked.to_owned());
        assert_eq!(shown(&[], &["all"]), two("", ""));
        assert_eq!(
            shown(&["CAP_NET_ADMIN", "sys_time"], &["ALL"]),
            two("NET_ADMIN, SYS_TIME", "NET_ADMIN, SYS_TIME")
        );
        assert!(!shown(&[], &["NET_RAW"]).0.contains("NET_RAW"));
        assert!(
            shown(&["ALL"], &["SYS_ADMIN"])
                .0
                .ends_with("BPF, CHECKPOINT_RESTORE")
        );
        assert!(!shown(&["ALL"], &["SYS_ADMIN"]).0.contains("SYS_ADMIN"));
        assert_eq!(shown(&["KILL"], &["KILL"]).1, "", "who drops it does not have it");
        assert_eq!(
            Capabilities::of(&["NO_SUCH".into()], &[]),
            Err("NO_SUCH".to_owned())
        );
    }

    #[test]
    fn capabilities_have_the_numbers_of_the_kernel() {
        let number = |name: &str| CapabilitySet::named(name).unwrap().bits().trailing_zeros();
        assert_eq!(
            ["CHOWN", "NET_ADMIN", "SYS_ADMIN", "SYSLOG", "BPF"].map(number),
            [0, 12, 21, 34, 39]
        );
    }
}
