//! What does the embedded engine do when the file system is really full?
//!
//! The test starts itself in a mount namespace of its own, on a small memory file system.

mod suite;

use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Outcome, Revision, StoreError, Transaction};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use suite::*;

const DIR: &str = "POINTSMAN_FULL_DISK_DIR";
const NAME: &str = "a_full_file_system_refuses_writes_and_nothing_else";

#[test]
fn a_full_file_system_refuses_writes_and_nothing_else() {
    if let Ok(dir) = std::env::var(DIR) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(fill_and_free(Path::new(&dir)));
        return;
    }
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let script = r#"mount -t tmpfs -o size=12m tmpfs "$POINTSMAN_FULL_DISK_DIR" && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", NAME, "--nocapture"])
        .env(DIR, dir.path())
        .output()
        .expect("unshare of util-linux is installed");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

async fn fill_and_free(dir: &Path) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).expect("there is space");
    let open = || EmbeddedStore::open(&dir.join("store"), Options::default()).expect("the store opens");
    let store: Subject = Arc::new(open());
    let value = "x".repeat(64 << 10);
    let mut written = 0;
    let mut newest = Revision(1);
    for n in 0..1000 {
        let ops = vec![put_op(&format!("/{n:04}"), &value)];
        match store.commit(Transaction { expect: vec![], ops }).await {
            Ok(Outcome::Committed(revision)) => newest = revision,
            Err(StoreError::Full) => break,
            other => panic!("{other:?}"),
        }
        written += 1;
    }
    assert!((10..1000).contains(&written), "{written} writes fit");
    for attempt in 0..3 {
        let ops = vec![put_op("/more", &value)];
        let error = store
            .commit(Transaction { expect: vec![], ops })
            .await
            .expect_err("the disk is full");
        assert!(matches!(error, StoreError::Full), "attempt {attempt}: {error}");
        assert_eq!(entries(&store, "/", None).await.len(), written, "reads go on");
        let mut watching = watch(&store, "/", Revision(1)).await;
        assert_eq!(
            events_until(&mut watching, newest).await.len(),
            written,
            "watches go on"
        );
    }
    std::fs::remove_file(ballast).expect("the ballast is there");
    let again = put(&store, "/more", &value).await;
    assert_eq!(again.0, newest.0 + 1, "refused writes take no revision");
    drop(store);
    let store: Subject = Arc::new(open());
    assert_eq!(
        entries(&store, "/", None).await.len(),
        written + 1,
        "nothing is damaged"
    );
}
