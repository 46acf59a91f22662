//! Which kernel settings does a proxy need besides rules?
//!
//! Those of connection tracking that kube-proxy also sets. Each is written only if it differs.

use std::io;
use std::path::Path;
use std::time::Duration;

/// The limit of tracked connections that scaling by processors never exceeds (upstream's number).
const LARGEST_SCALED: u64 = 1_048_576;
/// Tracked connections for each bucket of the hash table (upstream's number).
const PER_BUCKET: u64 = 4;
const NETFILTER: &str = "/proc/sys/net/netfilter";
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Settings of connection tracking; what is not set stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// The most connections that are tracked.
    pub max: Option<u64>,
    /// How long an established TCP connection may be silent.
    pub tcp_established: Option<Duration>,
    /// How long a half-closed one may be.
    pub tcp_close_wait: Option<Duration>,
    /// How long a UDP flow without an answer is remembered.
    pub udp: Option<Duration>,
    /// How long one with answers is.
    pub udp_stream: Option<Duration>,
    /// Accept TCP packets outside of the window.
    pub tcp_be_liberal: bool,
}

/// The limit of tracked connections for a machine; `None` leaves it as it is.
pub fn conntrack_limit(per_core: u64, least: u64, cores: u64) -> Option<u64> {
    let scaled = per_core.saturating_mul(cores);
    match per_core {
        0 => None,
        _ if scaled > LARGEST_SCALED => Some(LARGEST_SCALED),
        _ => Some(scaled.max(least)),
    }
}

/// Makes it so; returns what could not be set. In a network namespace of its own, the limits of the whole
/// machine cannot.
pub fn apply(settings: &Conntrack) -> Vec<(String, io::Error)> {
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs());
    let wanted = [
        ("nf_conntrack_max", settings.max),
        (
            "nf_conntrack_tcp_timeout_established",
            seconds(settings.tcp_established),
        ),
        (
            "nf_conntrack_tcp_timeout_close_wait",
            seconds(settings.tcp_close_wait),
        ),
        ("nf_conntrack_udp_timeout", seconds(settings.udp)),
        ("nf_conntrack_udp_timeout_stream", seconds(settings.udp_stream)),
        (
            "nf_conntrack_tcp_be_liberal",
            settings.tcp_be_liberal.then_some(1),
        ),
    ];
    let mut failed = Vec::new();
    for (name, value) in wanted {
        let Some(value) = value else { continue };
        if let Err(error) = set(&Path::new(NETFILTER).join(name), |found| found != value, value) {
            failed.push((name.to_owned(), error));
        }
    }
    if let Some(max) = settings.max
        && let Err(error) = set(
            Path::new(BUCKETS),
            |found| found < max / PER_BUCKET,
            max / PER_BUCKET,
        )
    {
        failed.push(("hashsize".to_owned(), error));
    }
    failed
}

fn set(path: &Path, differs: impl Fn(u64) -> bool, value: u64) -> io::Result<()> {
    let found = std::fs::read_to_string(path)?.trim().parse().ok();
    if found.is_none_or(differs) {
        std::fs::write(path, value.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_with_processors_up_to_a_million() {
        assert_eq!(conntrack_limit(32_768, 131_072, 2), Some(131_072));
        assert_eq!(conntrack_limit(32_768, 131_072, 8), Some(262_144));
        assert_eq!(conntrack_limit(32_768, 2_000_000, 64), Some(1_048_576));
        assert_eq!(conntrack_limit(0, 131_072, 8), None);
    }

    #[test]
    fn nothing_is_written_that_is_already_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "7\n").unwrap();
        set(file.path(), |found| found != 7, 7).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "7\n");
        set(file.path(), |found| found != 8, 8).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "8");
    }
}
