//! What does it cost to know a service account's token, for the first time and again?
//!
//! `cargo bench -p pointsman-benches --bench token_cost`. Prints one line per figure. The token is bound to a pod of
//! usual size; what it names is looked up in the cache each time, and the store is not asked.

#![expect(clippy::print_stdout, reason = "the figures are the point")]

use pointsman_api_server::auth::accounts::claims::{Bound, Named, verified};
use pointsman_api_server::auth::accounts::keys::Keys;
use pointsman_api_server::auth::accounts::{AccountSettings, Accounts};
use pointsman_api_server::auth::keyring::Ring;
use pointsman_api_server::cache::Cache;
use pointsman_api_server::cache::collection::Window;
use pointsman_api_server::{keys, stored};
use pointsman_rules::kinds;
use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Op, Store, Transaction};
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 5_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = cache(dir.path()).await;
    let settings = AccountSettings::default();
    let audiences = settings.issuers.clone();
    let accounts = Accounts::new(settings, dir.path(), cache).expect("keys");
    let named = |name: &str| Named {
        name: name.into(),
        uid: format!("{name}-uid"),
    };
    let bound = Bound {
        namespace: "default".into(),
        serviceaccount: named("robot"),
        pod: Some(named("web")),
        node: Some(named("n1")),
        secret: None,
    };
    let asked = json!({"spec": {"audiences": audiences}});
    let now = jiff::Timestamp::now();
    let token = accounts
        .sign(&asked, bound, now, 3600, "id".into())
        .expect("a token");
    let own = Ring::Tokens.open(dir.path()).expect("keys");
    let keys = Keys::read((dir.path(), &own), &[]).expect("keys");
    println!("token: {} bytes", token.len());
    each("signature and claims, first time", || {
        black_box(verified(token.as_bytes(), &keys.verifiers)).is_some()
    });
    each("whole, signature remembered", || {
        black_box(accounts.authenticate(token.as_bytes(), &audiences, now)).is_some()
    });
    let forged = format!("{}A", &token[..token.len() - 1]);
    each("forged, refused", || {
        black_box(accounts.authenticate(forged.as_bytes(), &audiences, now)).is_none()
    });
}

/// Prints the median of single calls: others use the machine, too.
fn each(what: &str, mut call: impl FnMut() -> bool) {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            assert!(call(), "{what}");
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100];
    println!("{what}: p50 {:.1?}, p99 {:.1?}", at(50), at(99));
}

/// A cache that holds the account, and a pod with environment and status.
async fn cache(dir: &Path) -> Arc<Cache> {
    let store = EmbeddedStore::open(&dir.join("store"), Options::default()).expect("a store");
    let filler: Vec<Value> = (0..40)
        .map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "x".repeat(60)}))
        .collect();
    let account = json!({"metadata": {"name": "robot", "namespace": "default", "uid": "robot-uid"}});
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "web-uid"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "env": filler}]},
    });
    for (kind, name, object) in [
        (&kinds::SERVICE_ACCOUNT, "robot", account),
        (&kinds::POD, "web", pod),
    ] {
        let key = keys::object(kind, "default", name).into();
        let transaction = Transaction {
            expect: Vec::new(),
            ops: vec![Op::Put(key, stored::encode(kind, &object))],
        };
        store.commit(transaction).await.expect("written");
    }
    let newest = store.revision().await.expect("a revision");
    let cache = Arc::new(Cache::new(Window::default(), Vec::new()));
    let store: Arc<dyn Store> = Arc::new(store);
    let following = cache.start(store).await.expect("read");
    tokio::spawn(following);
    cache.wait_for(newest).await;
    cache
}
