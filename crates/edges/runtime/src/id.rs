//! Which pod, which container, which run of it?
//!
//! These names become file, cgroup and link names, so they cannot hold anything that would leave a
//! directory or collide with a name of ours.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A name that cannot stand in a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a pod, container or volume: 1 to 128 letters, digits, '-', '_' and inner '.'")]
pub struct BadId(pub String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes letters, digits, `-`, `_` and inner `.`; refuses everything else.
            pub fn try_new(text: &str) -> Result<Self, BadId> {
                if fits_in_a_path(text) {
                    Ok(Self(Arc::from(text)))
                } else {
                    Err(BadId(text.to_owned()))
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                Self::try_new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// The unique id of a pod; two pods of one name never share it.
    PodUid
}
name! {
    /// The name of a container within its pod.
    ContainerName
}
name! {
    /// The name of a volume within its pod.
    VolumeName
}

fn fits_in_a_path(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=128).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with('.')
        && !text.ends_with('.')
}

/// One run of a container: a restart is a new attempt with records and a log of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerId {
    pub pod: PodUid,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// Counts the runs from 0, as the restart count does.
    pub attempt: u32,
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.pod, self.name, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for good in ["web", "8f14e45f-ceea-467f-a8d7-3e3f6b2f6d11", "a.b", "my_volume"] {
            assert_eq!(PodUid::try_new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../x",
            ".hidden",
            "a.",
            "a b",
            "a\0b",
            &"x".repeat(129),
        ] {
            assert_eq!(PodUid::try_new(bad), Err(BadId(bad.to_owned())));
        }
    }

    #[test]
    fn a_stored_name_is_checked_when_it_is_read_back() {
        assert!(serde_json::from_str::<ContainerName>("\"web\"").is_ok());
        assert!(serde_json::from_str::<ContainerName>("\"../web\"").is_err());
    }
}
