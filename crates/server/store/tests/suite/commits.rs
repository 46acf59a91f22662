//! Conditions, effects and revisions.

use super::*;

pub async fn a_fresh_store_is_empty_at_revision_one(store: Subject) {
    assert_eq!(store.revision().await.expect("the store is up"), Revision(1));
    let page = store
        .range(all("", None))
        .await
        .expect("an empty store can be read");
    assert!(page.entries.is_empty());
    assert_eq!(page.at, Revision(1));
    assert!(
        entries(&store, "", Some(Revision(0))).await.is_empty(),
        "nothing was there before"
    );
    assert_eq!(put(&store, "/a", "1").await, Revision(2));
}

pub async fn a_key_is_created_once(store: Subject) {
    let absent = vec![("/a".into(), Expect::Absent)];
    let first = commit(&store, absent.clone(), vec![put_op("/a", "1")]).await;
    let second = try_commit(&store, absent, vec![put_op("/a", "2")]).await;
    let present = Entry {
        key: "/a".into(),
        value: Bytes::from_static(b"1"),
        revision: first,
        created: first,
    };
    assert_eq!(second, Outcome::Refused(vec![("/a".into(), Some(present))]));
    assert_eq!(
        store.revision().await.expect("the store is up"),
        first,
        "nothing happened"
    );
}

pub async fn a_write_needs_the_revision_it_expects(store: Subject) {
    let first = put(&store, "/a", "1").await;
    let expect = |revision| vec![("/a".into(), Expect::Revision(revision))];
    let second = commit(&store, expect(first), vec![put_op("/a", "2")]).await;
    assert!(second > first);
    for op in [put_op("/a", "3"), Op::Delete("/a".into())] {
        let outcome = try_commit(&store, expect(first), vec![op]).await;
        assert!(
            matches!(outcome, Outcome::Refused(_)),
            "a stale revision: {outcome:?}"
        );
    }
    commit(&store, expect(second), vec![Op::Delete("/a".into())]).await;
    let outcome = try_commit(&store, expect(second), vec![put_op("/a", "4")]).await;
    assert_eq!(
        outcome,
        Outcome::Refused(vec![("/a".into(), None)]),
        "the key is gone"
    );
}

pub async fn presence_can_be_expected_without_a_revision(store: Subject) {
    let present = || vec![("/a".into(), Expect::Present)];
    let outcome = try_commit(&store, present(), vec![put_op("/b", "1")]).await;
    assert_eq!(outcome, Outcome::Refused(vec![("/a".into(), None)]));
    put(&store, "/a", "1").await;
    commit(&store, present(), vec![put_op("/b", "1")]).await;
    assert_eq!(entries(&store, "/b", None).await.len(), 1);
}

pub async fn a_transaction_happens_as_a_whole_or_not_at_all(store: Subject) {
    put(&store, "/a", "1").await;
    put(&store, "/b", "1").await;
    let ops = || vec![put_op("/a", "2"), Op::Delete("/b".into()), put_op("/c", "2")];
    let expect = vec![("/a".into(), Expect::Present), ("/c".into(), Expect::Present)];
    assert!(matches!(
        try_commit(&store, expect, ops()).await,
        Outcome::Refused(_)
    ));
    let before = [("/a".into(), "1".into()), ("/b".into(), "1".into())];
    assert_eq!(texts(&store, "/", None).await, before);

    let expect = vec![("/a".into(), Expect::Present), ("/c".into(), Expect::Absent)];
    let revision = commit(&store, expect, ops()).await;
    let after = [("/a".into(), "2".into()), ("/c".into(), "2".into())];
    assert_eq!(texts(&store, "/", None).await, after);
    for entry in entries(&store, "/", None).await {
        assert_eq!(entry.revision, revision, "one revision for the whole transaction");
    }
}

pub async fn racing_writers_of_one_key_each_win_in_turn(store: Subject) {
    put(&store, "/counter", "0").await;
    let writers: Vec<_> = (0..8)
        .map(|_| tokio::spawn(count_up(Arc::clone(&store), 10)))
        .collect();
    for writer in writers {
        writer.await.expect("the writer ends");
    }
    assert_eq!(
        texts(&store, "/counter", None).await[0].1,
        "80",
        "no increment was lost"
    );
}

async fn count_up(store: Subject, times: usize) {
    for _ in 0..times {
        loop {
            let now = entries(&store, "/counter", None).await.remove(0);
            let value: u64 = text(&now.value).parse().expect("the counter is a number");
            let expect = vec![("/counter".into(), Expect::Revision(now.revision))];
            let op = put_op("/counter", &(value + 1).to_string());
            if let Outcome::Committed(_) = try_commit(&store, expect, vec![op]).await {
                break;
            }
        }
    }
}

pub async fn revisions_grow_by_one_per_transaction(store: Subject) {
    let start = store.revision().await.expect("the store is up");
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let ops = (0..3).map(|k| put_op(&format!("/{n}/{k}"), "x")).collect();
                commit(&store, vec![], ops).await
            })
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.push(task.await.expect("the writer ends").0);
    }
    revisions.sort_unstable();
    let expected: Vec<u64> = (start.0 + 1..=start.0 + 40).collect();
    assert_eq!(revisions, expected);
    assert_eq!(store.revision().await.expect("the store is up").0, start.0 + 40);
}

pub async fn a_transaction_without_effect_takes_no_revision(store: Subject) {
    let revision = put(&store, "/a", "1").await;
    assert_eq!(commit(&store, vec![], vec![]).await, revision);
    assert_eq!(delete(&store, "/absent").await, revision);
    let expect = vec![("/a".into(), Expect::Present)];
    assert_eq!(commit(&store, expect, vec![]).await, revision);
    assert_eq!(
        put(&store, "/a", "1").await.0,
        revision.0 + 1,
        "the same value is still a write"
    );
}

pub async fn a_key_made_again_has_a_new_creation_revision(store: Subject) {
    let made = put(&store, "/a", "1").await;
    let changed = put(&store, "/a", "2").await;
    let entry = entries(&store, "/a", None).await.remove(0);
    assert_eq!((entry.created, entry.revision), (made, changed));
    delete(&store, "/a").await;
    let again = put(&store, "/a", "3").await;
    let entry = entries(&store, "/a", None).await.remove(0);
    assert_eq!((entry.created, entry.revision), (again, again));
    let entry = entries(&store, "/a", Some(changed)).await.remove(0);
    assert_eq!(
        (entry.created, entry.revision),
        (made, changed),
        "the past stays as it was"
    );
}

pub async fn empty_and_large_values_come_back_whole(store: Subject) {
    let large: Bytes = (0..3 << 19)
        .map(|n: u32| (n % 251) as u8)
        .collect::<Vec<u8>>()
        .into();
    let from = put(&store, "/empty", "").await;
    let to = commit(&store, vec![], vec![Op::Put("/large".into(), large.clone())]).await;
    let found = entries(&store, "/", None).await;
    assert_eq!(found[0].value, Bytes::new());
    assert_eq!(found[1].value, large);
    let mut watch = watch(&store, "/", from).await;
    let events = events_until(&mut watch, to).await;
    assert!(matches!(&events[0], Event::Put { entry, .. } if entry.value == large));
}

pub async fn malformed_transactions_are_refused(store: Subject) {
    let twice = vec![put_op("/a", "1"), Op::Delete("/a".into())];
    let many = (0..121).map(|n| put_op(&format!("/{n}"), "1")).collect();
    for ops in [twice, many] {
        let transaction = Transaction { expect: vec![], ops };
        let error = store
            .commit(transaction)
            .await
            .expect_err("this cannot be carried out");
        assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    }
    let most = (0..120).map(|n| put_op(&format!("/{n}"), "1")).collect();
    commit(&store, vec![], most).await;
    assert_eq!(entries(&store, "/", None).await.len(), 120);
}

pub async fn a_refusal_shows_every_failed_key(store: Subject) {
    put(&store, "/a", "1").await;
    let revision = put(&store, "/b", "1").await;
    let expect = vec![
        ("/a".into(), Expect::Absent),
        ("/b".into(), Expect::Revision(revision)),
        ("/c".into(), Expect::Present),
    ];
    let Outcome::Refused(failed) = try_commit(&store, expect, vec![put_op("/d", "1")]).await else {
        panic!("two of three expectations do not hold");
    };
    let keys: Vec<(&str, bool)> = failed
        .iter()
        .map(|(key, entry)| (&**key, entry.is_some()))
        .collect();
    assert_eq!(keys, [("/a", true), ("/c", false)]);
}
