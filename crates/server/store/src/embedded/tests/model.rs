//! The engine against a map and a list of all changes.

use super::sim::{Plan, SimDisk};
use super::{events_after, open};
use crate::embedded::EmbeddedStore;
use crate::{Entry, Event, Expect, Op, Outcome, Range, Revision, Store, StoreError, Transaction};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One step of a run. Revisions are given as a share of the newest, in sixteenths.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, u8)>, Vec<(u8, Option<u8>)>),
    Range {
        at: u64,
        after: Option<u8>,
        limit: usize,
    },
    Watch(u64),
    Compact(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let expect = prop::collection::vec((0..6u8, 0..4u8), 0..3);
    let ops = prop::collection::btree_map(0..6u8, prop::option::weighted(0.7, any::<u8>()), 0..4);
    let ops = ops.prop_map(|ops| ops.into_iter().collect());
    prop_oneof![
        12 => (expect, ops).prop_map(|(expect, ops)| Step::Commit(expect, ops)),
        4 => (0..17u64, prop::option::of(0..6u8), 0..4usize)
            .prop_map(|(at, after, limit)| Step::Range { at, after, limit }),
        3 => (0..17u64).prop_map(Step::Watch),
        2 => (0..17u64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

/// The state after each revision, and every change.
struct Model {
    states: BTreeMap<u64, BTreeMap<Arc<str>, Entry>>,
    events: Vec<Event>,
    compacted: u64,
}

impl Model {
    fn new() -> Self {
        let states = BTreeMap::from([(0, BTreeMap::new()), (1, BTreeMap::new())]);
        Self {
            states,
            events: Vec::new(),
            compacted: 0,
        }
    }

    fn newest(&self) -> u64 {
        *self
            .states
            .keys()
            .next_back()
            .expect("revision 1 is always there")
    }

    fn commit(&mut self, transaction: &Transaction) -> Outcome {
        let revision = Revision(self.newest() + 1);
        let mut state = self.states[&self.newest()].clone();
        let failed: Vec<_> = transaction
            .expect
            .iter()
            .filter(|(key, expect)| match (expect, state.get(key)) {
                (Expect::Absent, entry) => entry.is_some(),
                (Expect::Present, entry) => entry.is_none(),
                (Expect::Revision(revision), entry) => entry.map(|entry| entry.revision) != Some(*revision),
            })
            .map(|(key, _)| (key.clone(), state.get(key).cloned()))
            .collect();
        if !failed.is_empty() {
            return Outcome::Refused(failed);
        }
        let before = self.events.len();
        for op in &transaction.ops {
            let old = state.remove(op.key());
            let created = old.as_ref().map_or(revision, |old| old.created);
            let previous = old.map(|old| old.value);
            match (op, previous) {
                (Op::Put(key, value), previous) => {
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        revision,
                        created,
                    };
                    state.insert(key.clone(), entry.clone());
                    self.events.push(Event::Put { entry, previous });
                }
                (Op::Delete(key), Some(previous)) => {
                    self.events.push(Event::Delete {
                        key: key.clone(),
                        previous,
                        revision,
                    });
                }
                (Op::Delete(_), None) => {}
            }
        }
        if self.events.len() > before {
            self.states.insert(revision.0, state);
        }
        Outcome::Committed(Revision(self.newest()))
    }
}

fn key(n: u8) -> Arc<str> {
    // Keys that are prefixes of one another.
    ["/a", "/a/b", "/a/b/c", "/a0", "/b", "/b/ü"][usize::from(n)].into()
}

fn transaction(model: &Model, expect: &[(u8, u8)], ops: &[(u8, Option<u8>)]) -> Transaction {
    let state = &model.states[&model.newest()];
    let expect = expect.iter().map(|(k, kind)| {
        let key = key(*k);
        let revision = state.get(&key).map_or(Revision(3), |entry| entry.revision);
        let expect = match kind {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::Revision(revision),
            _ => Expect::Revision(Revision(revision.0 - 1)),
        };
        (key, expect)
    });
    let ops = ops.iter().map(|(k, value)| match value {
        Some(value) => Op::Put(key(*k), vec![*value; usize::from(*value) * 20].into()),
        None => Op::Delete(key(*k)),
    });
    Transaction {
        expect: expect.collect(),
        ops: ops.collect(),
    }
}

fn share(model: &Model, sixteenths: u64) -> u64 {
    // The last share is one beyond the newest revision.
    if sixteenths == 16 {
        model.newest() + 1
    } else {
        model.newest() * sixteenths / 15
    }
}

/// Whether an error says what the model knows about a revision.
fn explains(model: &Model, revision: u64, error: &StoreError) -> bool {
    match error {
        StoreError::Future { newest, .. } => revision > newest.0 && newest.0 == model.newest(),
        StoreError::Compacted { oldest, .. } => revision < oldest.0 && oldest.0 == model.compacted,
        _ => false,
    }
}

async fn check_range(store: &EmbeddedStore, model: &Model, at: u64, after: Option<u8>, limit: usize) {
    let after = after.map(|n| key(n).to_string());
    let prefix = "/a".to_string();
    let range = Range {
        prefix,
        after: after.clone(),
        limit,
        at: Some(Revision(at)),
    };
    let page = match store.range(range).await {
        Ok(page) => page,
        Err(error) => {
            assert!(explains(model, at, &error), "range at {at}: {error}");
            return;
        }
    };
    let mut expected: Vec<Entry> = model.states[&at].values().cloned().collect();
    expected.retain(|entry| entry.key.starts_with("/a"));
    expected.retain(|entry| after.as_deref().is_none_or(|after| &*entry.key > after));
    let shown = if limit == 0 {
        expected.len()
    } else {
        limit.min(expected.len())
    };
    assert_eq!(page.remaining as usize, expected.len() - shown);
    assert_eq!(page.entries, expected[..shown], "range at {at}");
}

async fn run(steps: Vec<Step>) {
    let disk = SimDisk::new(Plan::Sound);
    let mut store = open(&disk).expect("a sound disk opens");
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Commit(expect, ops) => {
                let transaction = transaction(&model, &expect, &ops);
                let expected = model.commit(&transaction);
                assert_eq!(
                    store.commit(transaction).await.expect("the disk is sound"),
                    expected
                );
            }
            Step::Range { at, after, limit } => {
                check_range(&store, &model, share(&model, at), after, limit).await;
            }
            Step::Watch(from) => {
                let from = share(&model, from);
                match events_after(&store, Revision(from)).await {
                    Ok(events) => {
                        let expected = model.events.iter().filter(|event| event.revision().0 > from);
                        assert!(events.iter().eq(expected), "watch from {from}");
                    }
                    Err(error) => assert!(explains(&model, from, &error), "watch from {from}: {error}"),
                }
            }
            Step::Compact(revision) => {
                let revision = share(&model, revision);
                match store.compact(Revision(revision)).await {
                    Ok(()) => model.compacted = model.compacted.max(revision),
                    Err(error) => assert!(explains(&model, revision, &error), "{error}"),
                }
            }
            Step::Reopen => {
                drop(store);
                store = open(&disk).expect("a sound disk opens");
            }
        }
        assert_eq!(
            store.revision().await.expect("the store is up"),
            Revision(model.newest())
        );
    }
    let newest = model.newest();
    check_range(&store, &model, newest, None, 0).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_engine_agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(run(steps));
    }
}

#[test]
fn values_and_keys_need_no_text() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let store = open(&SimDisk::new(Plan::Sound)).expect("a sound disk opens");
    let value = Bytes::from_static(&[0, 255, 0]);
    let ops = vec![Op::Put("/\u{0}".into(), value.clone())];
    runtime.block_on(async {
        store
            .commit(Transaction { expect: vec![], ops })
            .await
            .expect("the disk is sound");
        let range = Range {
            prefix: "/".into(),
            after: None,
            limit: 1,
            at: None,
        };
        let page = store.range(range).await.expect("the disk is sound");
        assert_eq!(page.entries[0].value, value);
    });
}
