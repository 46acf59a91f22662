//! Every change once, in order, from any revision that is kept.

use super::*;
use std::collections::BTreeSet;

fn short(revision: u64, key: &str, new: Option<&str>, old: Option<&str>) -> Short {
    (revision, key.into(), new.map(Into::into), old.map(Into::into))
}

pub async fn a_watch_from_the_past_tells_everything_since(store: Subject) {
    let start = put(&store, "/a", "1").await;
    put(&store, "/a", "2").await;
    put(&store, "/b", "1").await;
    delete(&store, "/a").await;
    let end = put(&store, "/a", "3").await;
    let mut watch = watch(&store, "/", start).await;
    let events = events_until(&mut watch, end).await;
    let r = start.0;
    let expected = [
        short(r + 1, "/a", Some("2"), Some("1")),
        short(r + 2, "/b", Some("1"), None),
        short(r + 3, "/a", None, Some("2")),
        short(r + 4, "/a", Some("3"), None),
    ];
    assert_eq!(shorts(&events), expected);
    let live = put(&store, "/b", "2").await;
    let events = events_until(&mut watch, live).await;
    assert_eq!(
        shorts(&events),
        [short(live.0, "/b", Some("2"), Some("1"))],
        "and then it is live"
    );
}

pub async fn the_events_of_a_transaction_come_together(store: Subject) {
    let start = put(&store, "/p/old", "x").await;
    let mut watch = watch(&store, "/p/", start).await;
    for round in 0..20 {
        let mut ops: Vec<_> = (0..100)
            .map(|n| put_op(&format!("/p/{n}"), &round.to_string()))
            .collect();
        ops.push(put_op("/q", "elsewhere"));
        let revision = commit(&store, vec![], ops).await;
        let batch = loop {
            let batch = next(&mut watch).await;
            if !batch.events.is_empty() {
                break batch;
            }
        };
        assert_eq!(batch.complete_to, revision);
        let keys: BTreeSet<_> = batch.events.iter().map(|event| event.key().clone()).collect();
        assert_eq!(keys.len(), 100);
        assert_eq!(batch.events.len(), 100);
    }
}

pub async fn a_watch_sees_its_prefix_only(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let mut watch = watch(&store, "/p/", start).await;
    for key in ["/o", "/p", "/p/a", "/p0", "/p/b"] {
        put(&store, key, "1").await;
    }
    let end = put(&store, "/p/c", "1").await;
    let events = events_until(&mut watch, end).await;
    let keys: Vec<_> = events.iter().map(|event| event.key().to_string()).collect();
    assert_eq!(keys, ["/p/a", "/p/b", "/p/c"]);
}

/// Writes `count` keys, each several times, from several tasks, and returns every revision.
fn load(store: &Subject, writers: usize, writes: usize) -> tokio::task::JoinHandle<BTreeSet<u64>> {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let mut revisions = Vec::new();
                    for n in 0..writes {
                        let key = format!("/load/{writer}/{}", n % 5);
                        let revision = match n % 7 {
                            6 => delete(&store, &key).await,
                            _ => put(&store, &key, &n.to_string()).await,
                        };
                        revisions.push(revision.0);
                    }
                    revisions
                })
            })
            .collect();
        let mut revisions = BTreeSet::new();
        for task in tasks {
            revisions.extend(task.await.expect("the writer ends"));
        }
        revisions
    })
}

pub async fn joining_under_load_loses_and_doubles_nothing(store: Subject) {
    let start = put(&store, "/load/first", "1").await;
    let writing = load(&store, 8, 60);
    let mut watchers = Vec::new();
    for n in 0..12 {
        // Every watcher begins at another point, some in the past and some at the newest revision.
        let newest = store.revision().await.expect("the store is up");
        let from = if n % 3 == 0 { start } else { newest };
        let watch = watch(&store, "/load/", from).await;
        watchers.push((from, watch));
        tokio::task::yield_now().await;
    }
    let revisions = within(50, "the load", writing).await.expect("the writers end");
    let end = put(&store, "/load/last", "1").await;
    for (from, mut watch) in watchers {
        let events = events_until(&mut watch, end).await;
        let seen: Vec<u64> = events.iter().map(|event| event.revision().0).collect();
        // A deletion that found nothing has the revision of the write before it.
        let mut expected: Vec<u64> = revisions.iter().copied().filter(|r| *r > from.0).collect();
        expected.push(end.0);
        assert_eq!(seen, expected, "from {from}");
    }
}

pub async fn a_slow_watch_still_gets_everything(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let mut slow = watch(&store, "/load/", start).await;
    let writing = load(&store, 8, 250);
    let revisions = within(50, "the load", writing).await.expect("the writers end");
    let end = put(&store, "/load/last", "1").await;
    let events = events_until(&mut slow, end).await;
    let seen: Vec<u64> = events.iter().map(|event| event.revision().0).collect();
    let mut expected: Vec<u64> = revisions.into_iter().filter(|r| *r > start.0).collect();
    expected.push(end.0);
    assert_eq!(seen, expected);
}

pub async fn an_idle_watch_reports_progress_when_asked(store: Subject) {
    let start = put(&store, "/p/a", "1").await;
    let mut idle = watch(&store, "/p/", start).await;
    let newest = put(&store, "/elsewhere", "1").await;
    store.request_progress().await.expect("the store is up");
    let events = events_until(&mut idle, newest).await;
    assert!(events.is_empty(), "{events:?}");
    store.request_progress().await.expect("the store is up");
    let batch = next(&mut idle).await;
    assert_eq!(
        batch,
        Batch {
            events: vec![],
            complete_to: newest
        },
        "also when nothing is new"
    );
}

pub async fn progress_is_never_ahead_of_events(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let mut watching = watch(&store, "/load/", start).await;
    let writing = load(&store, 6, 60);
    let asking = Arc::clone(&store);
    let asker = tokio::spawn(async move {
        loop {
            asking.request_progress().await.expect("the store is up");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let mut seen = 0;
    let mut complete = start;
    while !writing.is_finished() {
        let Ok(batch) = tokio::time::timeout(Duration::from_millis(50), watching.next()).await else {
            continue;
        };
        let batch = batch.expect("the watch goes on");
        check_order(complete, &batch);
        complete = batch.complete_to;
        seen += batch.events.len();
    }
    asker.abort();
    let revisions = writing.await.expect("the writers end");
    let end = put(&store, "/load/last", "1").await;
    while complete < end {
        let batch = next(&mut watching).await;
        check_order(complete, &batch);
        complete = batch.complete_to;
        seen += batch.events.len();
    }
    assert_eq!(seen, revisions.iter().filter(|r| **r > start.0).count() + 1);
}

pub async fn a_watch_from_before_compaction_is_too_old(store: Subject) {
    let first = put(&store, "/a", "1").await;
    put(&store, "/a", "2").await;
    put(&store, "/a", "3").await;
    let mark = put(&store, "/a", "4").await;
    store.compact(mark).await.expect("history can be forgotten");
    let error = watch_error(&store, "/", first).await;
    let StoreError::Compacted { asked, oldest } = error else {
        panic!("{error}")
    };
    assert_eq!((asked, oldest), (first, mark));
    let end = put(&store, "/a", "5").await;
    let mut watch = watch(&store, "/", mark).await;
    let events = events_until(&mut watch, end).await;
    assert_eq!(shorts(&events), [short(end.0, "/a", Some("5"), Some("4"))]);
}

pub async fn a_watch_from_the_future_is_refused(store: Subject) {
    let newest = put(&store, "/a", "1").await;
    let ahead = Revision(newest.0 + 5);
    let error = watch_error(&store, "/", ahead).await;
    assert!(
        matches!(error, StoreError::Future { asked, .. } if asked == ahead),
        "{error}"
    );
}

pub async fn dropping_a_pending_next_loses_nothing(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let mut watching = watch(&store, "/load/", start).await;
    let writing = load(&store, 4, 50);
    let mut seen: Vec<u64> = Vec::new();
    let mut patience = 0;
    while !writing.is_finished() {
        // Short and growing patience drops the future at many different points.
        patience = (patience + 100) % 1500;
        let wait = Duration::from_micros(patience);
        if let Ok(batch) = tokio::time::timeout(wait, watching.next()).await {
            let batch = batch.expect("the watch goes on");
            seen.extend(batch.events.iter().map(|event| event.revision().0));
        }
    }
    let revisions = writing.await.expect("the writers end");
    let end = put(&store, "/load/last", "1").await;
    let rest = events_until(&mut watching, end).await;
    seen.extend(rest.iter().map(|event| event.revision().0));
    let mut expected: Vec<u64> = revisions.into_iter().filter(|r| *r > start.0).collect();
    expected.push(end.0);
    assert_eq!(seen, expected);
}

pub async fn a_thousand_watches_see_every_change(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let watching = (0..1000).map(|n| {
        let prefix = if n % 2 == 0 { "/load/" } else { "/load/0/" };
        let store = &store;
        async move { (prefix, watch(store, prefix, start).await) }
    });
    let mut watching = futures::future::join_all(watching).await;
    let writing = load(&store, 2, 25);
    let revisions = within(50, "the load", writing).await.expect("the writers end");
    let ops = vec![put_op("/load/0/last", "1"), put_op("/load/last", "1")];
    let end = commit(&store, vec![], ops).await;
    let mut totals = [0, 0];
    for (prefix, watch) in &mut watching {
        let events = events_until(watch, end).await;
        assert!(events.iter().all(|event| event.key().starts_with(*prefix)));
        totals[usize::from(*prefix == "/load/0/")] += events.len();
    }
    let changes = revisions.iter().filter(|r| **r > start.0).count();
    assert_eq!(totals[0], 500 * (changes + 2));
    assert!(totals[1] >= 500 * 20 && totals[1] < totals[0], "{totals:?}");
}
