//! Failing at any operation, losing power at any operation, and a full disk.

use super::sim::{Plan, SimDisk};
use super::{events_after, open};
use crate::{Event, Expect, Op, Outcome, Range, Revision, Store, StoreError, Transaction};
use std::collections::BTreeMap;

const WRITERS: usize = 3;
const WRITES: usize = 12;
/// At how many points a run is disturbed.
const POINTS: u64 = 120;
/// How many keys each transaction writes.
const KEYS: usize = 3;

/// Transaction `n` of a writer: the same text to several keys.
fn transaction(writer: usize, n: usize) -> Transaction {
    let text = format!("{writer}-{n}-{}", "x".repeat(700 * (n % 4)));
    let ops = (0..KEYS)
        .map(|key| Op::Put(format!("/{writer}/{key}/{}", n % 5).into(), text.clone().into()))
        .collect();
    Transaction {
        expect: Vec::new(),
        ops,
    }
}

/// Writes from several tasks and returns what was acknowledged: the text of each revision.
async fn work(store: &crate::embedded::EmbeddedStore) -> BTreeMap<u64, String> {
    let writer = async |writer: usize| {
        let mut acknowledged = Vec::new();
        for n in 0..WRITES {
            let transaction = transaction(writer, n);
            let Op::Put(_, text) = transaction.ops[0].clone() else {
                unreachable!()
            };
            if let Ok(Outcome::Committed(revision)) = store.commit(transaction).await {
                acknowledged.push((revision.0, String::from_utf8_lossy(&text).into_owned()));
            }
            if writer == 0 && n == WRITES / 2 {
                // Compaction in the middle, up to the beginning only, so that history can be checked.
                let _ = store.compact(Revision(1)).await;
            }
        }
        acknowledged
    };
    let all = futures::future::join_all((0..WRITERS).map(writer)).await;
    let mut acknowledged = BTreeMap::new();
    for (revision, text) in all.into_iter().flatten() {
        let twice = acknowledged.insert(revision, text);
        assert!(twice.is_none(), "revision {revision} was given out twice");
    }
    acknowledged
}

/// Checks that all acknowledged transactions are in the history, and every transaction as a whole.
async fn check(store: &crate::embedded::EmbeddedStore, acknowledged: &BTreeMap<u64, String>) {
    let events = events_after(store, Revision(1))
        .await
        .expect("history can be read");
    let mut by_revision: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for event in &events {
        let Event::Put { entry, .. } = event else {
            panic!("nothing was removed: {event:?}")
        };
        let text = String::from_utf8_lossy(&entry.value).into_owned();
        by_revision.entry(entry.revision.0).or_default().push(text);
    }
    for (revision, texts) in &by_revision {
        assert_eq!(texts.len(), KEYS, "revision {revision} is there by half");
        assert!(
            texts.iter().all(|text| text == &texts[0]),
            "revision {revision} is mixed"
        );
    }
    for (revision, text) in acknowledged {
        let found = by_revision.get(revision).map(|texts| &texts[0]);
        assert_eq!(found, Some(text), "acknowledged revision {revision}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

/// How many disk operations making a store takes, and how many an undisturbed run.
fn operations() -> (u64, u64) {
    let disk = SimDisk::new(Plan::Sound);
    let store = open(&disk).expect("a sound disk opens");
    let made = disk.operations();
    let acknowledged = runtime().block_on(work(&store));
    assert_eq!(
        acknowledged.len(),
        WRITERS * WRITES,
        "without faults everything is acknowledged"
    );
    (made, disk.operations())
}

/// About `count` points over a run. Making a store is left out: a file gets its name only when that
/// is done.
fn points(count: u64) -> impl Iterator<Item = u64> {
    let (made, total) = operations();
    assert!(total > made + 100, "every commit reaches the disk");
    (made + 1..=total).step_by(((total - made) / count).max(1) as usize)
}

#[test]
fn a_power_loss_at_any_operation_loses_nothing_acknowledged() {
    for point in points(POINTS) {
        let disk = SimDisk::new(Plan::PowerLoss(point));
        let store = open(&disk).expect("the disk fails later");
        let acknowledged = runtime().block_on(work(&store));
        drop(store);
        for seed in 0..3 {
            let after = disk.after_power_loss(point * 7 + seed);
            let store = open(&after).unwrap_or_else(|error| panic!("after operation {point}: {error}"));
            runtime().block_on(async {
                check(&store, &acknowledged).await;
                let again = store
                    .commit(transaction(0, 0))
                    .await
                    .expect("the disk is sound now");
                let last = acknowledged.keys().next_back().copied().unwrap_or(1);
                assert!(matches!(again, Outcome::Committed(revision) if revision.0 > last));
            });
        }
    }
}

#[test]
fn a_failed_operation_is_told_and_the_store_goes_on() {
    for point in points(POINTS) {
        let disk = SimDisk::new(Plan::FailOnce(point));
        let store = open(&disk).expect("the disk fails later");
        let acknowledged = runtime().block_on(work(&store));
        if disk.lost_a_sync() {
            continue;
        }
        assert!(
            acknowledged.len() >= WRITERS * WRITES - 2 * WRITERS,
            "one group fails, at most two"
        );
        let seen = runtime().block_on(async {
            check(&store, &acknowledged).await;
            events_after(&store, Revision(1))
                .await
                .expect("history can be read")
        });
        drop(store);
        disk.heal();
        let store = open(&disk).expect("the disk is sound now");
        let kept = runtime()
            .block_on(events_after(&store, Revision(1)))
            .expect("history can be read");
        assert_eq!(
            seen, kept,
            "what readers saw is what is on disk, at operation {point}"
        );
    }
}

/// Checks that nothing can be read or written, so that nobody takes for durable what is not.
async fn check_ended(store: &crate::embedded::EmbeddedStore) {
    let range = Range {
        prefix: "/".into(),
        after: None,
        limit: 1,
        at: None,
    };
    let answers = [
        store.commit(transaction(0, 0)).await.err(),
        store.range(range).await.err(),
        store.revision().await.err(),
        store.compact(Revision(1)).await.err(),
        match store.watch(String::new(), Revision(1)).await {
            Ok(mut watch) => watch.next().await.err(),
            Err(error) => Some(error),
        },
    ];
    for answer in answers {
        assert!(
            matches!(&answer, Some(StoreError::Ended(why)) if why.contains("sync")),
            "{answer:?}"
        );
    }
}

/// Runs once for every point at which a sync fails, and hands over the disk with what was acknowledged on it.
fn after_each_failed_sync(mut then: impl FnMut(u64, &SimDisk, &BTreeMap<u64, String>)) {
    let mut failed = 0;
    for point in points(u64::MAX) {
        let disk = SimDisk::new(Plan::FailOnce(point));
        let store = open(&disk).expect("the disk fails later");
        let acknowledged = runtime().block_on(work(&store));
        if disk.lost_a_sync() {
            runtime().block_on(check_ended(&store));
        }
        drop(store);
        if disk.lost_a_sync() {
            failed += 1;
            then(point, &disk, &acknowledged);
        }
    }
    assert!(failed > 10, "{failed} of the operations are syncs");
}

#[test]
fn a_failed_sync_and_a_power_loss_lose_nothing_acknowledged() {
    after_each_failed_sync(|point, disk, acknowledged| {
        for seed in 0..3 {
            let after = disk.after_power_loss(point * 7 + seed);
            let store = open(&after).unwrap_or_else(|error| panic!("after operation {point}: {error}"));
            runtime().block_on(check(&store, acknowledged));
        }
    });
}

#[test]
fn a_failed_sync_a_restart_more_work_and_a_power_loss_lose_nothing_acknowledged() {
    after_each_failed_sync(|point, disk, acknowledged| {
        let restarted = disk.after_restart();
        let store = open(&restarted).unwrap_or_else(|error| panic!("after operation {point}: {error}"));
        let mut all = acknowledged.clone();
        runtime().block_on(check(&store, &all));
        all.extend(runtime().block_on(work(&store)));
        assert_eq!(
            all.len(),
            acknowledged.len() + WRITERS * WRITES,
            "no revision is used twice"
        );
        for seed in 0..2 {
            let after = restarted.after_power_loss(point * 7 + seed);
            let after = open(&after).unwrap_or_else(|error| panic!("after operation {point}: {error}"));
            runtime().block_on(check(&after, &all));
        }
    });
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let disk = SimDisk::new(Plan::Sound);
    let store = open(&disk).expect("a sound disk opens");
    runtime().block_on(async {
        let mut acknowledged = work(&store).await;
        disk.set_full(true);
        let mut refused = 0;
        for n in 0..200 {
            match store.commit(transaction(n % WRITERS, n)).await {
                Ok(Outcome::Committed(revision)) => {
                    let Op::Put(_, text) = transaction(n % WRITERS, n).ops.remove(0) else {
                        unreachable!()
                    };
                    acknowledged.insert(revision.0, String::from_utf8_lossy(&text).into_owned());
                }
                Err(StoreError::Full) => refused += 1,
                other => panic!("{other:?}"),
            }
            check(&store, &acknowledged).await;
            if refused == 3 {
                break;
            }
        }
        assert_eq!(refused, 3, "the disk is full");
        let range = Range {
            prefix: "/".into(),
            after: None,
            limit: 0,
            at: None,
        };
        assert_eq!(
            store.range(range).await.expect("reads go on").entries.len(),
            WRITERS * KEYS * 5
        );
        let guard = Transaction {
            expect: vec![("/absent".into(), Expect::Present)],
            ops: Vec::new(),
        };
        let outcome = store
            .commit(guard)
            .await
            .expect("what writes nothing needs no space");
        assert!(matches!(outcome, Outcome::Refused(_)));

        disk.set_full(false);
        let outcome = store
            .commit(transaction(0, 1))
            .await
            .expect("there is space again");
        let last = acknowledged
            .keys()
            .next_back()
            .copied()
            .expect("something was acknowledged");
        assert_eq!(
            outcome,
            Outcome::Committed(Revision(last + 1)),
            "a refused write takes no revision"
        );
        check(&store, &acknowledged).await;
    });
    drop(store);
    open(&disk).expect("nothing is damaged");
}
