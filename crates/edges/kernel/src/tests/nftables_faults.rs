//! Whatever nf_tables answers, and whenever, the table ends as a fresh one.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pointsman_dataplane::{Index, Programmer};
use pointsman_netlink::netlink::Errno;
use pointsman_netlink::nft::{Chain, Family, Fault, Generation, Name, Rule, Set, Table, Transaction, Value};
use pointsman_netlink_io::{Buffers, Client, CommitError, RequestError};
use pointsman_nft::Records;
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

use crate::commits::Commits;
use crate::nftables_backend::NftablesBackend;
use crate::outside::NfTables;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The kernel was interrupted, lacks memory or buffers: once.
    Passing(Errno),
    /// The kernel refuses.
    Refused(Errno),
    /// Somebody else committed.
    Overtaken,
    /// The kernel did it, but its answer is lost.
    Unanswered,
    /// Somebody flushes the whole ruleset just before.
    Flushed,
}

/// A kernel that fails at one call.
#[derive(Debug)]
struct Faulty {
    inner: Client,
    calls: Arc<AtomicUsize>,
    fail_at: usize,
    trouble: Trouble,
}

impl Faulty {
    fn strikes(&self) -> bool {
        let now = self.calls.fetch_add(1, Ordering::Relaxed) == self.fail_at;
        if now && matches!(self.trouble, Trouble::Flushed) {
            let flushed = Command::new("nft").args(["flush", "ruleset"]).status();
            assert!(flushed.expect("nft is installed").success());
            return false;
        }
        now
    }

    fn read<T>(
        &mut self,
        read: impl FnOnce(&mut Client) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        if !self.strikes() {
            return read(&mut self.inner);
        }
        Err(match self.trouble {
            Trouble::Passing(errno) | Trouble::Refused(errno) => RequestError::Refused { errno },
            Trouble::Overtaken => RequestError::Disturbed(10),
            Trouble::Unanswered | Trouble::Flushed => RequestError::Unfinished,
        })
    }
}

impl NfTables for Faulty {
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError> {
        if !self.strikes() {
            return NfTables::commit(&mut self.inner, transaction, only_at);
        }
        let fault = |errno| Fault {
            errno,
            message: None,
            op: None,
            element: None,
            attribute: None,
        };
        Err(match self.trouble {
            Trouble::Passing(errno) => CommitError::TryAgain(fault(errno)),
            Trouble::Refused(errno) => CommitError::Refused(vec![fault(errno)]),
            Trouble::Overtaken => CommitError::GenerationChanged,
            Trouble::Unanswered | Trouble::Flushed => {
                NfTables::commit(&mut self.inner, transaction, only_at)?;
                CommitError::Unacknowledged
            }
        })
    }

    fn generation(&mut self) -> Result<Generation, RequestError> {
        self.read(Client::generation)
    }

    fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError> {
        self.read(|client| client.tables(family))
    }

    // These and the elements of most sets are read as the sets are, which stand for them.
    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError> {
        self.inner.chains(family, table)
    }

    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, RequestError> {
        NfTables::rules(&mut self.inner, family, table)
    }

    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError> {
        self.read(|client| client.sets(family, table))
    }

    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, RequestError> {
        if set.name.as_str() == "cluster-ips" {
            self.read(|client| client.records(family, table, set))
        } else {
            self.inner.records(family, table, set)
        }
    }

    fn count(&mut self, family: Family, table: &Name, set: &Name) -> Result<Option<u32>, RequestError> {
        self.read(|client| client.element_count(family, table, set))
    }

    fn records_of(
        &mut self,
        family: Family,
        table: &Name,
        set: &Set,
        keys: &mut dyn Iterator<Item = Value>,
    ) -> Result<Records, RequestError> {
        self.read(|client| client.records_of(family, table, set, keys))
    }
}

const BEFORE: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    endpoint default/web 10.0.2.5:8080 node=n2
    service default/api 172.30.0.2:443
    endpoint default/api 10.0.1.6:8443 node=n1";
const AFTER: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    service default/new 172.30.0.3:443
    endpoint default/new 10.0.1.7:8443 node=n1";

/// Brings everything into the kernel, however often that has to be tried.
fn settle(backend: &mut NftablesBackend<Ipv4Addr>, index: &mut Index<Ipv4Addr>, mut full: bool) {
    for _ in 0..6 {
        if std::mem::take(&mut full) {
            index.force_full();
        }
        if !index.has_changes() && backend.is_undisturbed().is_ok_and(|undisturbed| undisturbed) {
            return;
        }
        if !index.has_changes() {
            index.force_full();
        }
        let batch = index.checkout();
        match backend.sync(&batch) {
            Ok(_) => drop(index.commit(batch)),
            Err(error) => index.abort(batch, error.recovery()),
        }
    }
    panic!("it never ends");
}

fn dump() -> Vec<String> {
    let output = Command::new("nft")
        .args(["list", "table", "ip", "pointsman"])
        .output();
    let text = String::from_utf8(output.expect("nft is installed").stdout).expect("text");
    let mut parts: Vec<String> = text
        .split([',', '\n', '{', '}'])
        .map(|part| part.trim().to_owned())
        .collect();
    parts.sort();
    parts
}

/// One life for each call at which the trouble can strike; each must end in the table of a fresh start.
fn survives(trouble: Trouble) {
    require_netns!();
    let fresh = Namespace::new().unwrap().run(|| {
        let after = Cluster::parse(AFTER);
        let mut index = Cluster::parse(BEFORE).index::<Ipv4Addr>();
        after.fold_into(&mut index);
        let mut backend = NftablesBackend::open(after.settings(), Commits::default()).expect("a socket");
        settle(&mut backend, &mut index, false);
        dump()
    });
    assert!(fresh.len() > 100);
    Namespace::new().unwrap().run(move || {
        for fail_at in 0.. {
            if live(trouble, fail_at, &fresh) <= fail_at {
                assert!(fail_at > 10, "{trouble:?} struck at {fail_at} calls only");
                break;
            }
        }
    });
}

#[test]
fn an_interruption_at_any_call_leaves_no_trace() {
    survives(Trouble::Passing(Errno::INTR));
}

#[test]
fn a_lack_of_buffers_at_any_call_leaves_no_trace() {
    survives(Trouble::Passing(Errno::NOBUFS));
}

#[test]
fn a_refusal_at_any_call_leaves_no_trace() {
    survives(Trouble::Refused(Errno::BUSY));
}

#[test]
fn another_writer_at_any_call_leaves_no_trace() {
    survives(Trouble::Overtaken);
}

#[test]
fn a_lost_answer_at_any_call_leaves_no_trace() {
    survives(Trouble::Unanswered);
}

#[test]
fn a_flush_before_any_call_leaves_no_trace() {
    survives(Trouble::Flushed);
}

/// A life with a fault at one call; returns the number of calls it took.
fn live(trouble: Trouble, fail_at: usize, fresh: &[String]) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let kernel = Faulty {
        inner: Client::open(Buffers::default()).expect("a socket"),
        calls: Arc::clone(&calls),
        fail_at,
        trouble,
    };
    let (before, after) = (Cluster::parse(BEFORE), Cluster::parse(AFTER));
    // The map of endpoints is looked up as if it were large.
    let mut backend =
        NftablesBackend::over(Box::new(kernel), before.settings(), Commits::default()).listing_at_most(0);
    let mut index = before.index::<Ipv4Addr>();
    settle(&mut backend, &mut index, false);
    after.fold_into(&mut index);
    settle(&mut backend, &mut index, false);
    settle(&mut backend, &mut index, true);
    let taken = calls.load(Ordering::Relaxed);
    let found = dump();
    let differing: Vec<_> = found
        .iter()
        .filter(|part| !fresh.contains(part))
        .chain(fresh.iter().filter(|part| !found.contains(part)))
        .take(5)
        .collect();
    assert!(
        differing.is_empty() && found.len() == fresh.len(),
        "{trouble:?} at call {fail_at}: {differing:?}"
    );
    Command::new("nft")
        .args(["flush", "ruleset"])
        .status()
        .expect("nft is installed");
    taken
}
