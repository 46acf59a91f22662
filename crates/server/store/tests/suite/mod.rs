//! What must every engine do? One set of cases, run against each of them.

#![allow(dead_code, reason = "each test program uses the part it needs")]

pub mod commits;
pub mod ranges;
pub mod watches;

use bytes::Bytes;
use pointsman_store::{Batch, Entry, Event, Expect, Op, Outcome, Range, Revision};
use pointsman_store::{Store, StoreError, Transaction, Watch};
use std::sync::Arc;
use std::time::Duration;

/// The store under test.
pub type Subject = Arc<dyn Store>;

/// Runs a case, and fails it rather than hanging.
pub async fn run<F: Future<Output = ()>>(case: impl FnOnce(Subject) -> F, store: Subject) {
    within(60, "the case", case(store)).await;
}

/// Waits for something that must happen.
pub async fn within<T>(seconds: u64, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(seconds), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not end within {seconds} s"),
    }
}

/// Declares one test per case of the suite, on stores made by `$make`.
#[macro_export]
macro_rules! store_suite {
    ($make:path: $($module:ident { $($case:ident,)* })*) => {$(
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let (_guard, store) = $make().await;
                    $crate::suite::run($crate::suite::$module::$case, store).await;
                }
            )*
        }
    )*};
}

/// Declares all cases.
#[macro_export]
macro_rules! whole_suite {
    ($make:path) => {
        $crate::store_suite! { $make:
            commits {
                a_fresh_store_is_empty_at_revision_one,
                a_key_is_created_once,
                a_write_needs_the_revision_it_expects,
                presence_can_be_expected_without_a_revision,
                a_transaction_happens_as_a_whole_or_not_at_all,
                racing_writers_of_one_key_each_win_in_turn,
                revisions_grow_by_one_per_transaction,
                a_transaction_without_effect_takes_no_revision,
                a_key_made_again_has_a_new_creation_revision,
                empty_and_large_values_come_back_whole,
                malformed_transactions_are_refused,
                a_refusal_shows_every_failed_key,
            }
            ranges {
                a_prefix_covers_exactly_its_keys,
                pages_of_one_revision_do_not_see_later_writes,
                the_past_can_be_read_until_it_is_compacted,
                the_future_cannot_be_read,
                compacting_again_or_earlier_changes_nothing,
                compaction_keeps_the_newest_version_of_every_live_key,
            }
            watches {
                a_watch_from_the_past_tells_everything_since,
                the_events_of_a_transaction_come_together,
                a_watch_sees_its_prefix_only,
                joining_under_load_loses_and_doubles_nothing,
                a_slow_watch_still_gets_everything,
                an_idle_watch_reports_progress_when_asked,
                progress_is_never_ahead_of_events,
                a_watch_from_before_compaction_is_too_old,
                a_watch_from_the_future_is_refused,
                dropping_a_pending_next_loses_nothing,
                a_thousand_watches_see_every_change,
            }
        }
    };
}

/// Commits and returns the revision.
pub async fn commit(store: &Subject, expect: Vec<(Arc<str>, Expect)>, ops: Vec<Op>) -> Revision {
    match try_commit(store, expect, ops).await {
        Outcome::Committed(revision) => revision,
        refused => panic!("refused: {refused:?}"),
    }
}

/// Commits and returns how it ended.
pub async fn try_commit(store: &Subject, expect: Vec<(Arc<str>, Expect)>, ops: Vec<Op>) -> Outcome {
    let transaction = Transaction { expect, ops };
    store.commit(transaction).await.expect("the store is up")
}

/// Writes one key without conditions.
pub async fn put(store: &Subject, key: &str, value: &str) -> Revision {
    commit(store, vec![], vec![put_op(key, value)]).await
}

/// Removes one key without conditions.
pub async fn delete(store: &Subject, key: &str) -> Revision {
    commit(store, vec![], vec![Op::Delete(key.into())]).await
}

/// An effect that writes a text.
pub fn put_op(key: &str, value: &str) -> Op {
    Op::Put(key.into(), Bytes::copy_from_slice(value.as_bytes()))
}

/// All of a prefix, now or at a revision.
pub fn all(prefix: &str, at: Option<Revision>) -> Range {
    Range {
        prefix: prefix.into(),
        after: None,
        limit: 0,
        at,
    }
}

/// Reads all entries of a prefix.
pub async fn entries(store: &Subject, prefix: &str, at: Option<Revision>) -> Vec<Entry> {
    let page = store.range(all(prefix, at)).await.expect("the range can be read");
    assert_eq!(page.remaining, 0, "a range without limit leaves nothing");
    page.entries
}

/// The keys and values of a prefix, as text.
pub async fn texts(store: &Subject, prefix: &str, at: Option<Revision>) -> Vec<(String, String)> {
    let entries = entries(store, prefix, at).await;
    entries
        .iter()
        .map(|entry| (entry.key.to_string(), text(&entry.value)))
        .collect()
}

/// A value as text.
pub fn text(value: &[u8]) -> String {
    String::from_utf8(value.to_vec()).expect("the tests write text")
}

/// Starts a watch.
pub async fn watch(store: &Subject, prefix: &str, from: Revision) -> Box<dyn Watch> {
    store.watch(prefix.into(), from).await.expect("the watch starts")
}

/// Why a watch does not start, or ends.
pub async fn watch_error(store: &Subject, prefix: &str, from: Revision) -> StoreError {
    let mut watch = match store.watch(prefix.into(), from).await {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    loop {
        if let Err(error) = within(10, "the watch", watch.next()).await {
            return error;
        }
    }
}

/// The next batch of a watch.
pub async fn next(watch: &mut Box<dyn Watch>) -> Batch {
    within(20, "the watch", watch.next())
        .await
        .expect("the watch goes on")
}

/// Collects events until the watch is complete up to a revision, and checks their order.
pub async fn events_until(watch: &mut Box<dyn Watch>, revision: Revision) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let mut complete = Revision(0);
    while complete < revision {
        let batch = next(watch).await;
        check_order(complete, &batch);
        complete = batch.complete_to;
        events.extend(batch.events);
    }
    events
}

/// Checks that a batch goes on where the watch was, and ends where it says.
pub fn check_order(complete: Revision, batch: &Batch) {
    assert!(batch.complete_to >= complete, "progress never goes back");
    let mut last = complete;
    for event in &batch.events {
        assert!(
            event.revision() > complete,
            "{event:?} came after its revision was complete"
        );
        assert!(event.revision() >= last, "events come in revision order");
        assert!(
            event.revision() <= batch.complete_to,
            "{event:?} is beyond its batch"
        );
        last = event.revision();
    }
}

/// An event in short: revision, key, new value, old value.
pub type Short = (u64, String, Option<String>, Option<String>);

/// Events in short.
pub fn shorts(events: &[Event]) -> Vec<Short> {
    let short = |event: &Event| {
        let (new, old) = match event {
            Event::Put { entry, previous } => (Some(&entry.value), previous.as_ref()),
            Event::Delete { previous, .. } => (None, Some(previous)),
        };
        let text = |value: Option<&Bytes>| value.map(|value| text(value));
        (event.revision().0, event.key().to_string(), text(new), text(old))
    };
    events.iter().map(short).collect()
}
