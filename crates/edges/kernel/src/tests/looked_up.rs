//! Does looking up what a large map should hold find what a listing would?

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pointsman_dataplane::{Index, Programmer, Written};
use pointsman_netlink::nft::{
    Chain, Element, Family, Generation, Name, Op, Rule, Set, Table, Transaction, Value,
};
use pointsman_netlink_io::{Buffers, Client, CommitError, RequestError};
use pointsman_nft::{Records, TABLE};
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

use crate::commits::Commits;
use crate::nftables_backend::NftablesBackend;
use crate::outside::NfTables;

const BACKENDS: Name = Name::fixed("backends");
const CLUSTER: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    endpoint default/web 10.0.2.5:8080 node=n2
    endpoint default/web 10.0.2.6:8080 node=n2
    service default/sticky 172.30.0.2:443 affinity=60
    endpoint default/sticky 10.0.1.6:8443 node=n1
    service default/empty 172.30.0.3:80";
const ONE_LEFT: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.2.5:8080 node=n2
    endpoint default/web 10.0.2.6:8080 node=n2";

/// A kernel that counts how often the map of endpoints is listed.
#[derive(Debug)]
struct Counting {
    inner: Client,
    listed: Arc<AtomicUsize>,
}

impl NfTables for Counting {
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError> {
        NfTables::commit(&mut self.inner, transaction, only_at)
    }

    fn generation(&mut self) -> Result<Generation, RequestError> {
        self.inner.generation()
    }

    fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError> {
        self.inner.tables(family)
    }

    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError> {
        self.inner.chains(family, table)
    }

    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, RequestError> {
        NfTables::rules(&mut self.inner, family, table)
    }

    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError> {
        self.inner.sets(family, table)
    }

    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, RequestError> {
        let listed = usize::from(set.name == BACKENDS);
        self.listed.fetch_add(listed, Ordering::Relaxed);
        self.inner.records(family, table, set)
    }

    fn count(&mut self, family: Family, table: &Name, set: &Name) -> Result<Option<u32>, RequestError> {
        self.inner.element_count(family, table, set)
    }

    fn records_of(
        &mut self,
        family: Family,
        table: &Name,
        set: &Set,
        keys: &mut dyn Iterator<Item = Value>,
    ) -> Result<Records, RequestError> {
        self.inner.records_of(family, table, set, keys)
    }
}

/// A process that finds a table, writes what is missing, and ends; and how often it listed the map of endpoints.
fn restart(mut index: Index<Ipv4Addr>) -> (Written, usize) {
    let listed = Arc::<AtomicUsize>::default();
    let kernel = Counting {
        inner: Client::open(Buffers::default()).expect("a socket"),
        listed: Arc::clone(&listed),
    };
    let settings = Cluster::parse(CLUSTER).settings();
    let mut backend =
        NftablesBackend::over(Box::new(kernel), settings, Commits::default()).listing_at_most(0);
    let batch = index.checkout();
    backend.prepare().expect("the table can be read");
    let written = backend.sync(&batch).expect("the table can be written");
    let _ = index.commit(batch);
    (written, listed.load(Ordering::Relaxed))
}

fn index() -> Index<Ipv4Addr> {
    Cluster::parse(CLUSTER).index()
}

/// Whether this kernel says how many elements a set has, as Linux 6.17 and later do; others list it.
fn kernel_counts() -> bool {
    let mut client = Client::open(Buffers::default()).expect("a socket");
    let count = client.element_count(Family::Ip, &TABLE, &BACKENDS);
    count.expect("it is there").is_some()
}

fn held() -> Vec<Element> {
    let mut client = Client::open(Buffers::default()).expect("a socket");
    let mut held = client
        .elements(Family::Ip, &TABLE, &BACKENDS)
        .expect("it is there");
    held.sort();
    held
}

fn plant(ops: Vec<Op>) {
    let mut transaction = Transaction::new(Family::Ip, TABLE);
    transaction.ops = ops;
    let mut client = Client::open(Buffers::default()).expect("a socket");
    client.commit(&[transaction], None).expect("it can be planted");
}

fn add(elements: Vec<Element>) -> Op {
    let set = BACKENDS;
    Op::AddElements { set, elements }
}

fn delete(element: &Element) -> Op {
    Op::DeleteElements {
        set: BACKENDS,
        elements: vec![element.clone()],
    }
}

/// An element of a slot that nobody has.
fn foreign(like: &Element) -> Element {
    let mut key = like.key.as_bytes().to_vec();
    let slot = key.len() - 4;
    key[slot..].copy_from_slice(&77u32.to_ne_bytes());
    Element {
        key: Value::try_new(&key).expect("as long as another"),
        ..like.clone()
    }
}

#[test]
fn a_correct_map_is_looked_up_and_neither_listed_nor_written() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        restart(index());
        assert_eq!(held().len(), 3);
        let listed = usize::from(!kernel_counts());
        assert_eq!(restart(index()), (Written::default(), listed));
    });
}

#[test]
fn slots_that_history_put_in_another_order_are_taken_as_they_are_found() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        let mut index = index();
        let settings = Cluster::parse(CLUSTER).settings();
        let mut backend = NftablesBackend::open(settings, Commits::default()).expect("a socket");
        for cluster in [CLUSTER, ONE_LEFT] {
            Cluster::parse(cluster).fold_into(&mut index);
            let batch = index.checkout();
            backend.sync(&batch).expect("the table can be written");
            let _ = index.commit(batch);
        }
        let before = held();
        index.force_full();
        let listed = usize::from(!kernel_counts());
        assert_eq!(restart(index), (Written::default(), listed));
        assert_eq!((before.len(), held()), (2, before));
    });
}

#[test]
fn whatever_differs_is_found_and_put_right() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        restart(index());
        let right = held();
        let [first, second, _] = right.as_slice() else {
            panic!("three endpoints, not {right:?}");
        };
        let wrong = Element {
            data: second.data.clone(),
            ..first.clone()
        };
        let mut many = vec![delete(second)];
        many.extend((78..90).map(|slot: u32| {
            let mut key = first.key.as_bytes().to_vec();
            let end = key.len() - 4;
            key[end..].copy_from_slice(&slot.to_ne_bytes());
            let key = Value::try_new(&key).expect("as long as another");
            add(vec![Element { key, ..first.clone() }])
        }));
        // What is planted, and whether it takes a listing to find it.
        let faults = [
            (vec![delete(first)], false),
            (vec![delete(first), delete(second)], false),
            (vec![delete(first), add(vec![wrong])], false),
            (vec![add(vec![foreign(first)])], true),
            // As many as there should be, and one of them another.
            (vec![delete(first), add(vec![foreign(first)])], true),
            (many, true),
        ];
        for (fault, by_list) in faults {
            let fault_text = format!("{fault:?}");
            plant(fault);
            assert_ne!(held(), right, "{fault_text} is in the kernel");
            let (written, listed) = restart(index());
            assert!(written.elements > 0, "{fault_text} was not found");
            assert_eq!(listed, usize::from(by_list || !kernel_counts()), "{fault_text}");
            assert_eq!(held(), right, "after {fault_text}");
        }
        assert_eq!(restart(index()).0, Written::default());
    });
}

#[test]
fn an_element_for_all_other_keys_makes_a_count_worthless() {
    require_netns!();
    Namespace::new().unwrap().run(|| {
        restart(index());
        let mut client = Client::open(Buffers::default()).expect("a socket");
        let count = |client: &mut Client| {
            client
                .element_count(Family::Ip, &TABLE, &BACKENDS)
                .expect("it is there")
        };
        assert!(!kernel_counts() || count(&mut client) == Some(3));
        let planted = Command::new("nft")
            .args([
                "add",
                "element",
                "ip",
                "pointsman",
                "backends",
                "{ * : 10.0.9.9 . 80 }",
            ])
            .status();
        assert!(planted.expect("nft is installed").success());
        assert_eq!(count(&mut client), None);
    });
}
