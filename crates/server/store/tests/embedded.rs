//! Does the embedded engine keep the store's contract, also across a restart?

mod suite;

use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Revision, StoreError};
use std::path::Path;
use std::sync::Arc;
use suite::*;
use tempfile::TempDir;

async fn fresh() -> (TempDir, Subject) {
    let dir = TempDir::new().expect("a temporary directory");
    let store = open(dir.path(), Options::default());
    (dir, store)
}

/// A window so small that nearly every watch has to read from disk, and commits as those of a large file.
async fn forgetful() -> (TempDir, Subject) {
    let dir = TempDir::new().expect("a temporary directory");
    let options = Options {
        window_events: 4,
        window_bytes: 64,
        queue: 2,
        quick_repair_from: Some(0),
        ..Options::default()
    };
    let store = open(dir.path(), options);
    (dir, store)
}

fn open(dir: &Path, options: Options) -> Subject {
    Arc::new(EmbeddedStore::open(dir, options).expect("the store opens"))
}

mod usual {
    crate::whole_suite!(crate::fresh);
}

mod with_a_tiny_window {
    crate::whole_suite!(crate::forgetful);
}

#[tokio::test]
async fn commits_of_small_and_large_files_may_follow_each_other() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut expected = Vec::new();
    for (round, quick_repair_from) in [None, Some(0), None, Some(0)].into_iter().enumerate() {
        let options = Options {
            quick_repair_from,
            ..Options::default()
        };
        let store = open(dir.path(), options);
        let key = format!("/{round}");
        put(&store, &key, "1").await;
        expected.push((key, "1".to_string()));
        assert_eq!(texts(&store, "/", None).await, expected);
    }
}

#[tokio::test]
async fn a_store_opened_again_goes_on_where_it_was() {
    let (dir, store) = fresh().await;
    let first = put(&store, "/a", "1").await;
    put(&store, "/a", "2").await;
    put(&store, "/b", "1").await;
    let last = delete(&store, "/b").await;
    drop(store);
    let store = open(dir.path(), Options::default());
    assert_eq!(store.revision().await.expect("the store is up"), last);
    assert_eq!(
        texts(&store, "/", Some(first)).await,
        [("/a".to_string(), "1".to_string())]
    );
    let mut watch = watch(&store, "/", first).await;
    let events = events_until(&mut watch, last).await;
    assert_eq!(events.len(), 3, "history is read from disk");
    assert_eq!(put(&store, "/c", "1").await.0, last.0 + 1);
    let entry = entries(&store, "/a", None).await.remove(0);
    assert_eq!(entry.created, first);
}

#[tokio::test]
async fn a_revision_is_not_reused_after_its_record_was_compacted_away() {
    let (dir, store) = fresh().await;
    put(&store, "/a", "1").await;
    let last = delete(&store, "/a").await;
    store.compact(last).await.expect("history can be forgotten");
    drop(store);
    for _ in 0..2 {
        let store = open(dir.path(), Options::default());
        assert_eq!(store.revision().await.expect("the store is up"), last);
        let error = store
            .range(all("", Some(Revision(2))))
            .await
            .expect_err("this is forgotten");
        assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    }
    let store = open(dir.path(), Options::default());
    assert_eq!(put(&store, "/b", "1").await.0, last.0 + 1);
}

#[tokio::test]
async fn a_directory_in_use_is_named() {
    let (dir, store) = fresh().await;
    let Err(error) = EmbeddedStore::open(dir.path(), Options::default()) else {
        panic!("two stores in one directory");
    };
    let message = error.to_string();
    assert!(message.contains(&dir.path().display().to_string()), "{message}");
    assert!(message.contains("in use"), "{message}");
    drop(store);
    open(dir.path(), Options::default());
}

#[tokio::test]
async fn a_watch_ends_when_its_store_is_dropped() {
    let (dir, store) = fresh().await;
    let mut watch = watch(&store, "/", Revision(1)).await;
    drop(store);
    let error = within(10, "the watch", watch.next())
        .await
        .expect_err("the store is gone");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    open(dir.path(), Options::default());
}
