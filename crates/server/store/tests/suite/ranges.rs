//! Reads now, in the past, in pages, and after compaction.

use super::*;

pub async fn a_prefix_covers_exactly_its_keys(store: Subject) {
    for key in ["/p", "/p/a", "/p/b", "/p0", "/o/z", "/p/ü"] {
        put(&store, key, "1").await;
    }
    let keys: Vec<String> = texts(&store, "/p/", None)
        .await
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["/p/a", "/p/b", "/p/ü"]);
    assert_eq!(entries(&store, "", None).await.len(), 6);
    assert!(entries(&store, "/q", None).await.is_empty());
}

pub async fn pages_of_one_revision_do_not_see_later_writes(store: Subject) {
    let mut last = Revision(0);
    for n in 0..25 {
        last = put(&store, &format!("/p/{n:02}"), "old").await;
    }
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let range = Range {
            prefix: "/p/".into(),
            after,
            limit: 7,
            at: Some(last),
        };
        let page = store.range(range).await.expect("the revision is kept");
        assert_eq!(page.at, last);
        found.extend(page.entries);
        assert_eq!(page.remaining, 25 - found.len() as u64);
        // Between two pages, keys change, vanish and appear.
        put(&store, "/p/20", "new").await;
        delete(&store, "/p/24").await;
        put(&store, &format!("/p/99{}", found.len()), "new").await;
        if page.remaining == 0 {
            break;
        }
        after = found.last().map(|entry: &Entry| entry.key.to_string());
    }
    assert_eq!(found.len(), 25);
    assert!(found.iter().all(|entry| text(&entry.value) == "old"));
}

pub async fn the_past_can_be_read_until_it_is_compacted(store: Subject) {
    let first = put(&store, "/a", "1").await;
    let second = put(&store, "/a", "2").await;
    let third = delete(&store, "/a").await;
    assert_eq!(texts(&store, "/a", Some(first)).await[0].1, "1");
    assert_eq!(texts(&store, "/a", Some(second)).await[0].1, "2");
    assert!(texts(&store, "/a", Some(third)).await.is_empty());
    store.compact(second).await.expect("history can be forgotten");
    let error = store
        .range(all("/a", Some(first)))
        .await
        .expect_err("this is forgotten");
    let StoreError::Compacted { asked, oldest } = error else {
        panic!("{error}")
    };
    assert_eq!((asked, oldest), (first, second));
    assert_eq!(
        texts(&store, "/a", Some(second)).await[0].1,
        "2",
        "the mark itself is kept"
    );
}

pub async fn the_future_cannot_be_read(store: Subject) {
    let newest = put(&store, "/a", "1").await;
    let ahead = Revision(newest.0 + 1);
    let error = store
        .range(all("/a", Some(ahead)))
        .await
        .expect_err("this has not happened");
    assert!(
        matches!(error, StoreError::Future { asked, .. } if asked == ahead),
        "{error}"
    );
    let error = store.compact(ahead).await.expect_err("this has not happened");
    assert!(matches!(error, StoreError::Future { .. }), "{error}");
}

pub async fn compacting_again_or_earlier_changes_nothing(store: Subject) {
    let first = put(&store, "/a", "1").await;
    let second = put(&store, "/a", "2").await;
    store.compact(second).await.expect("history can be forgotten");
    store.compact(second).await.expect("doing so again is harmless");
    store.compact(first).await.expect("so is an earlier mark");
    assert_eq!(texts(&store, "/a", Some(second)).await[0].1, "2");
    let newest = store.revision().await.expect("the store is up");
    assert_eq!(newest, second, "compaction takes no revision");
}

pub async fn compaction_keeps_the_newest_version_of_every_live_key(store: Subject) {
    put(&store, "/old", "kept").await;
    for n in 0..50 {
        put(&store, "/a", &n.to_string()).await;
        put(&store, "/gone", "x").await;
        delete(&store, "/gone").await;
    }
    let mark = store.revision().await.expect("the store is up");
    store.compact(mark).await.expect("history can be forgotten");
    let after = put(&store, "/b", "1").await;
    let expected = |b: bool| {
        let mut texts = vec![("/a".to_string(), "49".to_string())];
        if b {
            texts.push(("/b".into(), "1".into()));
        }
        texts.push(("/old".into(), "kept".into()));
        texts
    };
    assert_eq!(texts(&store, "/", Some(mark)).await, expected(false));
    assert_eq!(texts(&store, "/", None).await, expected(true));
    assert!(after > mark, "revisions go on");
}
