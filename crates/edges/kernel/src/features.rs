//! Can this kernel hold the nftables table?
//!
//! Asked once at the start, so that an old kernel gives one clear sentence instead of a refused transaction
//! after the other.

use std::fmt;

use pointsman_dataplane::Settings;
use pointsman_model::Address;
use pointsman_netlink::nft::{Name, Op, Transaction};
use pointsman_netlink_io::{Buffers, Client, CommitError, SocketError};
use pointsman_nft::{Ruleset, TABLE, TableSettings, family};

/// The oldest kernel that nftables mode is made for: the release with deletions from the packet path, after
/// `reject` in prerouting (5.9) and sets of concatenated ranges (5.6).
pub const OLDEST: Release = Release { major: 5, minor: 13 };

/// Where the probe is written; it has no hooks, so no packet sees it.
const PROBE: Name = Name::fixed("pointsman-probe");

/// Upstream's way to say that a kernel of an older number has what is needed, as distributors' do.
const SKIP_VERSION: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// The first two numbers of a kernel release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
}

impl Release {
    /// Reads the beginning of `uname -r`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .trim()
            .split(|letter: char| !letter.is_ascii_digit())
            .map(str::parse);
        Some(Self {
            major: numbers.next()?.ok()?,
            minor: numbers.next()?.ok()?,
        })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why nftables mode cannot work here.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// The kernel was built without it, or this process may not use it.
    #[error("nf_tables cannot be reached")]
    Unreachable(#[source] SocketError),
    /// The kernel is too old.
    #[error("nftables mode needs Linux {OLDEST} or later, and this is {found}")]
    TooOld { found: Release },
    /// The kernel says no to part of the table.
    #[error(
        "this kernel cannot hold the table of nftables mode (Linux {OLDEST} or later with nf_tables is needed)"
    )]
    Refused(#[source] Box<CommitError>),
}

/// Finds out whether the kernel can hold the table of a family. A table that is already there is proof
/// enough, and then nothing is written.
pub fn probe_nftables<A: Address>() -> Result<(), Unsupported> {
    if std::env::var_os(SKIP_VERSION).is_none_or(|value| value.is_empty()) {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        check_release(release.as_deref().unwrap_or_default())?;
    }
    let mut client = Client::open(Buffers::default()).map_err(Unsupported::Unreachable)?;
    let family = family::<A>();
    if let Ok(tables) = client.tables(family)
        && tables.iter().any(|table| table.name == TABLE)
    {
        return Ok(());
    }
    let ruleset = Ruleset::new(&TableSettings::new(Settings::<A>::default()));
    // A predecessor that was killed in the middle may have left one; adding to it would conflict.
    let mut remove = Transaction::new(family, PROBE);
    remove.ops.push(Op::DeleteTable);
    let probe = ruleset.probe(PROBE);
    let _ = client.commit(std::slice::from_ref(&remove), None);
    let outcome = client.commit(std::slice::from_ref(&probe), None);
    let outcome = outcome.map_err(|error| Unsupported::Refused(Box::new(error)));
    // Not there if the kernel refused it.
    let _ = client.commit(std::slice::from_ref(&remove), None);
    outcome
}

/// An unreadable release is given the benefit of the doubt: the probe decides.
fn check_release(text: &str) -> Result<(), Unsupported> {
    match Release::parse(text) {
        Some(found) if found < OLDEST => Err(Unsupported::TooOld { found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_told_apart_by_their_numbers() {
        for (text, fine) in [
            ("5.12.19-generic", false),
            ("4.18.0-513.el8", false),
            ("5.13.0", true),
            ("6.1.0-18-amd64", true),
            ("10.0", true),
            ("nonsense", true),
        ] {
            assert_eq!(check_release(text).is_ok(), fine, "{text}");
        }
        let error = check_release("4.18.0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "nftables mode needs Linux 5.13 or later, and this is 4.18"
        );
    }
}
