//! Does the etcd engine keep the store's contract, on a real etcd?

#![cfg(feature = "etcd")]

mod suite;

use pointsman_store::etcd::{EtcdStore, Options};
use pointsman_store::{Revision, StoreError, Transaction};
use pointsman_testkit::etcd::Etcd;
use std::sync::Arc;
use suite::*;

async fn fresh() -> (Etcd, Subject) {
    let etcd = Etcd::start();
    let store = connect(&etcd, "/pointsman").await;
    (etcd, store)
}

async fn connect(etcd: &Etcd, prefix: &str) -> Subject {
    let options = Options {
        endpoints: vec![etcd.url()],
        prefix: prefix.into(),
        ..Options::default()
    };
    Arc::new(EtcdStore::connect(options).await.expect("etcd answers"))
}

crate::whole_suite!(crate::fresh);

#[tokio::test]
async fn servers_that_share_an_etcd_see_each_other_and_other_prefixes_do_not() {
    let (etcd, first) = fresh().await;
    let second = connect(&etcd, "/pointsman").await;
    let stranger = connect(&etcd, "/other").await;
    let mut watching = watch(&second, "/", Revision(1)).await;
    let revision = put(&first, "/a", "1").await;
    assert_eq!(events_until(&mut watching, revision).await.len(), 1);
    assert_eq!(entries(&second, "/", None).await.len(), 1);
    assert!(entries(&stranger, "", None).await.is_empty());
}

#[tokio::test]
async fn progress_can_be_asked_for() {
    let etcd = Etcd::start();
    let options = Options {
        endpoints: vec![etcd.url()],
        ask_progress: Some(true),
        ..Options::default()
    };
    let store: Subject = Arc::new(EtcdStore::connect(options).await.expect("etcd answers"));
    let start = store.revision().await.expect("the store is up");
    let mut watching = watch(&store, "/p/", start).await;
    let newest = put(&store, "/elsewhere", "1").await;
    store.request_progress().await.expect("the store is up");
    assert!(events_until(&mut watching, newest).await.is_empty());
}

#[tokio::test]
async fn a_lost_etcd_ends_watches_and_writes_and_comes_back() {
    let (mut etcd, store) = fresh().await;
    let revision = put(&store, "/a", "1").await;
    let mut watching = watch(&store, "/", revision).await;
    etcd.kill();
    let error = loop {
        if let Err(error) = within(20, "the watch", watching.next()).await {
            break error;
        }
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let transaction = Transaction {
        expect: vec![],
        ops: vec![put_op("/b", "1")],
    };
    let error = store.commit(transaction).await.expect_err("etcd is gone");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    etcd.restart();
    let again = within(20, "etcd", async {
        loop {
            let transaction = Transaction {
                expect: vec![],
                ops: vec![put_op("/b", "1")],
            };
            match store.commit(transaction).await {
                Ok(_) => break store.revision().await.expect("etcd is back"),
                Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
            }
        }
    })
    .await;
    let mut watching = watch(&store, "/", revision).await;
    assert!(!events_until(&mut watching, again).await.is_empty());
}

#[tokio::test]
async fn a_missing_etcd_is_unavailable() {
    let options = Options {
        endpoints: vec!["http://127.0.0.1:1".into()],
        ..Options::default()
    };
    let Err(error) = EtcdStore::connect(options).await else {
        panic!("nothing listens there")
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn malformed_endpoints_are_invalid() {
    for endpoints in [vec![], vec!["not a url".to_string()]] {
        let options = Options {
            endpoints,
            ..Options::default()
        };
        let Err(error) = EtcdStore::connect(options).await else {
            panic!("no such endpoint")
        };
        assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    }
}
