//! Which of the host's mounts do containers share, and for how long is that believed?
//!
//! The kernel takes microseconds for each mount it lists, and each pod of the machine is one. Many containers
//! that start at once share one look at the list.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::shim::mounts::{self, Share};

/// How long what was seen is used again.
const FRESH: Duration = Duration::from_secs(1);

/// The mounts that containers share.
#[derive(Debug)]
pub struct Shares {
    hidden: PathBuf,
    seen: Mutex<Option<(Instant, Vec<Share>)>>,
}

impl Shares {
    /// Containers do not see what is in `hidden`.
    pub fn new(hidden: PathBuf) -> Self {
        Self {
            hidden,
            seen: Mutex::new(None),
        }
    }

    /// What containers share that start now.
    pub fn at(&self, now: Instant) -> io::Result<Vec<Share>> {
        let mut seen = self.seen.lock();
        if let Some((at, shares)) = &*seen
            && now.saturating_duration_since(*at) < FRESH
        {
            return Ok(shares.clone());
        }
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
        let shares = mounts::plan(&mounts::parse(&mountinfo), &self.hidden);
        *seen = Some((now, shares.clone()));
        Ok(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_mounts_is_used_for_a_second() {
        let shares = Shares::new("/nowhere".into());
        let now = Instant::now();
        let truth = shares.at(now).unwrap();
        *shares.seen.lock() = Some((now, Vec::new()));
        assert_eq!(shares.at(now + FRESH / 2).unwrap(), []);
        assert_eq!(shares.at(now + FRESH).unwrap(), truth);
    }
}
