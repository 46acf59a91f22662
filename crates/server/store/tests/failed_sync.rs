//! What does the embedded engine make of a sync that really fails?
//!
//! The test starts itself in a mount namespace of its own. There is a file system on a loop device whose file lies on a
//! small memory file system: when that is full, the kernel cannot write pages back, and `fdatasync` fails.

mod suite;

use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Outcome, StoreError, Transaction};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use suite::*;

const DIR: &str = "POINTSMAN_FAILED_SYNC_DIR";
const NAME: &str = "after_a_failed_sync_the_store_ends_and_is_found_as_it_is_on_disk";
/// No journal: one that cannot be written would make the file system read-only and hide what the pages do.
const SCRIPT: &str = r#"
    set -e
    mount -t tmpfs -o size=16m tmpfs "$POINTSMAN_FAILED_SYNC_DIR"
    cd "$POINTSMAN_FAILED_SYNC_DIR"
    mkdir mnt
    truncate -s 64M image
    mkfs.ext4 -q -F -b 4096 -O ^has_journal image
    mount -o loop image mnt
    "$@"
    umount mnt
"#;

#[test]
fn after_a_failed_sync_the_store_ends_and_is_found_as_it_is_on_disk() {
    if let Ok(dir) = std::env::var(DIR) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(fail_and_recover(Path::new(&dir)));
        return;
    }
    // Loop devices need the same rights as network namespaces.
    pointsman_testkit::require_netns!();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", NAME, "--nocapture"])
        .env(DIR, dir.path())
        .output()
        .expect("unshare of util-linux is installed");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

async fn fail_and_recover(dir: &Path) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).expect("there is space");
    let open = || EmbeddedStore::open(&dir.join("mnt/store"), Options::default()).expect("the store opens");
    let value = "x".repeat(64 << 10);
    let store: Subject = Arc::new(open());
    let mut acknowledged = write_until(&store, &value, 0, 1000).await;
    assert!(
        (5..1000).contains(&acknowledged),
        "{acknowledged} writes were durable"
    );
    let error = store.revision().await.expect_err("the store has ended");
    assert!(matches!(error, StoreError::Ended(_)), "{error}");
    // The disk is well again, and whoever went on would find nothing wrong with its file.
    std::fs::remove_file(ballast).expect("the ballast is there");
    assert_eq!(
        write_until(&store, &value, acknowledged, 1).await,
        0,
        "it stays ended"
    );
    drop(store);

    let store: Subject = Arc::new(open());
    check(&store, acknowledged).await;
    acknowledged += write_until(&store, &value, acknowledged, 5).await;
    drop(store);
    // As a power loss: what is only in the page cache is gone.
    let image = dir.join("image");
    run("umount", &[&dir.join("mnt")]);
    run("mount", &[Path::new("-oloop"), &image, &dir.join("mnt")]);
    let store: Subject = Arc::new(open());
    check(&store, acknowledged).await;
}

/// Writes up to `count` keys and returns how many were acknowledged before the first that was not.
async fn write_until(store: &Subject, value: &str, from: usize, count: usize) -> usize {
    for n in 0..count {
        let ops = vec![put_op(&format!("/{:04}", from + n), value)];
        match store.commit(Transaction { expect: vec![], ops }).await {
            Ok(Outcome::Committed(_)) => {}
            Err(StoreError::Ended(_)) => return n,
            other => panic!("{other:?}"),
        }
    }
    count
}

/// Everything that was acknowledged is there; of the write whose sync failed nobody knows.
async fn check(store: &Subject, acknowledged: usize) {
    let found = entries(store, "/", None).await;
    let expected: Vec<String> = (0..acknowledged).map(|n| format!("/{n:04}")).collect();
    let keys: Vec<String> = found.iter().map(|entry| entry.key.to_string()).collect();
    assert!(
        keys.starts_with(&expected),
        "{} keys of {acknowledged}",
        keys.len()
    );
}

fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program)
        .args(arguments)
        .status()
        .expect("it is installed");
    assert!(status.success(), "{program}: {status}");
}
