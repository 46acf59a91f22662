//! Which pod has which address?
//!
//! An address in use is a file named after it that holds the pod's id, made by `link`, which the file
//! system lets succeed once. So no address is given out twice, whatever crashes, and the files are the
//! whole state; they are read once, and what is kept in memory follows them. Addresses are given out in
//! turn, so that one that was freed rests for as long as possible: others may still send to the pod that
//! had it. Whose turn it is outlives the program as well.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::{AddressRange, PodUid, RuntimeError};

/// The addresses of one node.
#[derive(Debug)]
pub struct Addresses {
    directory: PathBuf,
    ranges: Vec<AddressRange>,
    /// What the files say.
    owned: BTreeMap<PodUid, Vec<IpAddr>>,
    last: BTreeMap<AddressRange, IpAddr>,
}

impl Addresses {
    /// Looks at the files in `directory` and frees the addresses of pods that do not exist.
    pub fn open(directory: PathBuf, exists: impl Fn(&PodUid) -> bool) -> io::Result<Self> {
        let mut owned: BTreeMap<PodUid, Vec<IpAddr>> = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_name() == LAST {
                continue;
            }
            let address: Option<IpAddr> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let owner = PodUid::try_new(fs::read_to_string(entry.path())?.trim_end());
            match (address, owner.ok().filter(|pod| exists(pod))) {
                (Some(address), Some(pod)) => owned.entry(pod).or_default().push(address),
                _ => fs::remove_file(entry.path())?,
            }
        }
        for addresses in owned.values_mut() {
            addresses.sort_unstable();
        }
        let last = read_last(&fs::read_to_string(directory.join(LAST)).unwrap_or_default());
        Ok(Self {
            directory,
            ranges: Vec::new(),
            owned,
            last,
        })
    }

    /// Says which addresses may be given out from now on.
    pub fn set_ranges(&mut self, ranges: &[AddressRange]) {
        self.ranges = ranges.to_vec();
        // IPv4 first: a pod's first address is its primary one.
        self.ranges.sort_by_key(|range| !range.is_ipv4());
    }

    /// The pod's addresses, one of each range: those it has, or new ones.
    pub fn claim(&mut self, pod: &PodUid) -> Result<Vec<IpAddr>, RuntimeError> {
        let failed = |error| RuntimeError::system("give the pod an address", error);
        let mut has = self.of(pod);
        if has.is_empty() && self.ranges.is_empty() {
            return Err(RuntimeError::NoAddress {
                range: "the node, which has no pod range yet".to_owned(),
            });
        }
        if has.is_empty() {
            for range in self.ranges.clone() {
                match self.claim_from(range, pod).map_err(failed) {
                    Ok(Some(address)) => has.push(address),
                    Ok(None) => {
                        self.release(pod).map_err(failed)?;
                        let range = range.to_string();
                        return Err(RuntimeError::NoAddress { range });
                    }
                    Err(error) => {
                        self.release(pod).map_err(failed)?;
                        return Err(error);
                    }
                }
            }
        }
        Ok(has)
    }

    /// Frees the pod's addresses.
    pub fn release(&mut self, pod: &PodUid) -> io::Result<()> {
        for address in self.of(pod) {
            match fs::remove_file(self.directory.join(address.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.owned.remove(pod);
        Ok(())
    }

    /// The addresses a pod has, IPv4 first.
    pub fn of(&self, pod: &PodUid) -> Vec<IpAddr> {
        self.owned.get(pod).cloned().unwrap_or_default()
    }

    fn claim_from(&mut self, range: AddressRange, pod: &PodUid) -> io::Result<Option<IpAddr>> {
        let mut claim = tempfile_in(&self.directory, pod)?;
        claim.flush()?;
        let last = self.last.get(&range).copied();
        let after = range
            .hosts()
            .filter(|address| last.is_none_or(|last| *address > last));
        let before = range
            .hosts()
            .filter(|address| last.is_some_and(|last| *address <= last));
        let temporary = self.directory.join(TEMPORARY);
        let mut taken = None;
        for address in after.chain(before) {
            match fs::hard_link(&temporary, self.directory.join(address.to_string())) {
                Ok(()) => {
                    taken = Some(address);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        fs::remove_file(&temporary)?;
        if let Some(address) = taken {
            self.owned.entry(pod.clone()).or_default().push(address);
            self.last.insert(range, address);
            // Without it a freed address would only rest for less time after a restart.
            let lines = self.last.iter().map(|(range, last)| format!("{range} {last}\n"));
            fs::write(self.directory.join(LAST), lines.collect::<String>()).ok();
        }
        Ok(taken)
    }
}

/// A claim before it has its name.
const TEMPORARY: &str = ".claim";
/// A range and the address that was last given out of it, a line each.
const LAST: &str = ".last";

/// Lines that are no longer or not yet whole are left out.
fn read_last(text: &str) -> BTreeMap<AddressRange, IpAddr> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter_map(|(range, last)| Some((range.parse().ok()?, last.parse().ok()?)))
        .collect()
}

fn tempfile_in(directory: &std::path::Path, pod: &PodUid) -> io::Result<fs::File> {
    let mut file = fs::File::create(directory.join(TEMPORARY))?;
    writeln!(file, "{pod}")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pod(number: usize) -> PodUid {
        PodUid::try_new(&format!("p{number}")).unwrap()
    }

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_pod_gets_one_address_of_each_family_and_keeps_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(directory.path().into(), |_| true).unwrap();
        assert!(matches!(
            addresses.claim(&pod(1)),
            Err(RuntimeError::NoAddress { .. })
        ));
        addresses.set_ranges(&ranges(&["fd00:1::/64", "10.1.0.0/24"]));
        let first = addresses.claim(&pod(1)).unwrap();
        assert_eq!(
            first,
            [
                "10.1.0.1".parse::<IpAddr>().unwrap(),
                "fd00:1::1".parse().unwrap()
            ]
        );
        drop(addresses);
        // Another range after a restart moves no pod.
        let mut addresses = Addresses::open(directory.path().into(), |_| true).unwrap();
        addresses.set_ranges(&ranges(&["10.2.0.0/24"]));
        assert_eq!(addresses.claim(&pod(1)).unwrap(), first);
    }

    #[test]
    fn a_freed_address_rests_until_the_others_were_used_also_over_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        for number in 0..7 {
            let mut addresses = Addresses::open(directory.path().into(), |_| true).unwrap();
            addresses.set_ranges(&ranges(&["10.1.0.0/29"]));
            let claimed = addresses.claim(&pod(number)).unwrap();
            addresses.release(&pod(number)).unwrap();
            seen.push(claimed[0].to_string());
        }
        assert_eq!(seen[..6].iter().collect::<BTreeSet<_>>().len(), 6);
        assert_eq!(seen[6], seen[0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn no_two_pods_have_one_address_whatever_crashes_in_between(
            steps in proptest::collection::vec((0usize..8, 0u8..4), 1..60),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let open = |alive: &BTreeSet<PodUid>| {
                let mut opened = Addresses::open(directory.path().into(), |pod| alive.contains(pod)).unwrap();
                opened.set_ranges(&ranges(&["10.1.0.0/29"]));
                opened
            };
            let mut alive = BTreeSet::new();
            let mut addresses = open(&alive);
            for (number, step) in steps {
                let pod = pod(number);
                match step {
                    0 | 1 => {
                        if addresses.claim(&pod).is_ok() {
                            alive.insert(pod);
                        } else {
                            prop_assert!(alive.len() >= 6, "an address was lost");
                        }
                    }
                    2 => {
                        addresses.release(&pod).unwrap();
                        alive.remove(&pod);
                    }
                    // A crash after the pod's directory was removed, or before it was made.
                    _ => {
                        alive.remove(&pod);
                        addresses = open(&alive);
                    }
                }
                let taken: Vec<IpAddr> = alive.iter().flat_map(|pod| addresses.of(pod)).collect();
                prop_assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), alive.len());
            }
        }
    }
}
