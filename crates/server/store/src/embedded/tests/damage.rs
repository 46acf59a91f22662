//! Any damage to the file is found: what is read is what was written, or an error, and never a panic.

use super::sim::{Plan, SimDisk};
use super::{events_after, open};
use crate::embedded::EmbeddedStore;
use crate::{Entry, Event, Op, Range, Revision, Store, StoreError, Transaction};
use proptest::prelude::*;

/// Everything that can be read.
type Seen = (Vec<Entry>, Vec<Event>, Revision);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

async fn see(store: &EmbeddedStore) -> Result<Seen, StoreError> {
    let range = Range {
        prefix: String::new(),
        after: None,
        limit: 0,
        at: None,
    };
    let entries = store.range(range).await?.entries;
    let events = events_after(store, Revision(1)).await?;
    Ok((entries, events, store.revision().await?))
}

/// The bytes of a store with some history that was closed, and what can be read from it.
fn sample() -> (Vec<u8>, Seen) {
    let disk = SimDisk::new(Plan::Sound);
    let store = open(&disk).expect("a sound disk opens");
    let seen = runtime().block_on(async {
        for n in 0..60u32 {
            let key = format!("/registry/pods/default/pod-{}", n % 40);
            let op = match n % 7 {
                6 => Op::Delete(key.into()),
                _ => Op::Put(key.into(), format!("{n}").repeat(n as usize * 3).into()),
            };
            let transaction = Transaction {
                expect: vec![],
                ops: vec![op],
            };
            store.commit(transaction).await.expect("the disk is sound");
        }
        see(&store).await.expect("the disk is sound")
    });
    drop(store);
    (disk.bytes(), seen)
}

/// Opens a damaged store and reads everything, as a server does at its start.
fn judge(bytes: Vec<u8>) -> Result<Seen, StoreError> {
    let disk = SimDisk::with_bytes(bytes, Plan::Sound);
    let store = open(&disk)?;
    runtime().block_on(see(&store))
}

fn check(bytes: Vec<u8>, expected: &Seen) -> Result<(), TestCaseError> {
    match judge(bytes) {
        Ok(seen) => prop_assert_eq!(&seen, expected, "what is read is what was written"),
        Err(StoreError::Damaged(_) | StoreError::UnknownFormat(_) | StoreError::Ended(_)) => {}
        Err(other) => prop_assert!(false, "{other}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damage_anywhere_is_found(
        places in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..64)), 1..4),
    ) {
        let (mut bytes, seen) = sample();
        // Half of it hits what is in use: the file has many empty pages.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |at| at + 1);
        for (at, noise) in places {
            let start = at.index(used);
            let end = (start + noise.len()).min(bytes.len());
            bytes[start..end].copy_from_slice(&noise[..end - start]);
        }
        check(bytes, &seen)?;
    }

    #[test]
    fn one_wrong_bit_in_the_header_is_found(at in 0..320usize, bit in 0..8u8) {
        let (mut bytes, seen) = sample();
        bytes[at] ^= 1 << bit;
        check(bytes, &seen)?;
    }

    #[test]
    fn a_cut_off_file_is_found(length: prop::sample::Index) {
        let (mut bytes, _) = sample();
        // An empty file is a new store to the engine, and an error to `Disk::open`.
        bytes.truncate(1 + length.index(bytes.len() - 1));
        let error = judge(bytes).expect_err("a part of the file is missing");
        prop_assert!(matches!(error, StoreError::Damaged(_)), "{error}");
    }
}

#[test]
fn random_bytes_are_no_store() {
    for length in [1usize, 100, 4096, 100_000] {
        let bytes = (0..length).map(|n| (n * 7919 % 251) as u8).collect();
        let error = judge(bytes).expect_err("this was never a store");
        assert!(matches!(error, StoreError::Damaged(_)), "{error}");
    }
}
