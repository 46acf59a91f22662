//! How fast does the embedded engine commit, and how fast does it open?
//!
//! `cargo bench -p pointsman-benches --bench commit_rate -- [DIR] [OBJECTS]` prints one line
//! per measurement. DIR should be on the disk that is to be measured.

#![expect(clippy::print_stdout, reason = "printing is what this program is for")]

use bytes::Bytes;
use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Op, Outcome, Range, Revision, Store, Transaction};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECONDS: u64 = 5;
const VALUE: usize = 1024;
const CHILD: &str = "POINTSMAN_BENCH_FILL";

fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let dir = PathBuf::from(arguments.next().unwrap_or_else(|| "target/commit-rate".into()));
    let objects = arguments
        .next()
        .map_or(100_000, |count| count.parse().expect("a number of objects"));
    if let Ok(quick) = std::env::var(CHILD) {
        fill_and_die(&dir, objects, quick == "true");
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for quick_repair in [true, false] {
        for writers in [1, 64] {
            let at = fresh(&dir);
            let options = Options {
                quick_repair_from: quick_repair.then_some(0),
                ..Options::default()
            };
            let store = Arc::new(EmbeddedStore::open(&at, options).expect("the store opens"));
            let times = runtime.block_on(measure(&store, writers));
            print_rate(quick_repair, writers, times);
        }
    }
    for quick_repair in [true, false] {
        measure_opening(&dir, objects, quick_repair);
    }
}

async fn measure(store: &Arc<EmbeddedStore>, writers: usize) -> Vec<Duration> {
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let writer = |writer: usize| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                let key = format!("/registry/bench/{writer}/{}", times.len() % 1000);
                let start = Instant::now();
                put(&store, vec![key]).await;
                times.push(start.elapsed());
            }
            times
        })
    };
    let tasks: Vec<_> = (0..writers).map(writer).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("the writer ends"));
    }
    times
}

async fn put(store: &EmbeddedStore, keys: Vec<String>) -> Revision {
    let put = |key: String| Op::Put(key.into(), Bytes::from(vec![b'x'; VALUE]));
    let ops = keys.into_iter().map(put).collect();
    match store
        .commit(Transaction {
            expect: Vec::new(),
            ops,
        })
        .await
    {
        Ok(Outcome::Committed(revision)) => revision,
        other => panic!("a write was not committed: {other:?}"),
    }
}

fn print_rate(quick_repair: bool, writers: usize, mut times: Vec<Duration>) {
    times.sort_unstable();
    let quantile = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    println!(
        "quick_repair={quick_repair} writers={writers}: {} commits/s, p50 {:?}, p99 {:?}, max {:?}",
        times.len() as u64 / SECONDS,
        quantile(0.5),
        quantile(0.99),
        quantile(1.0)
    );
}

fn measure_opening(dir: &Path, objects: usize, quick_repair: bool) {
    let at = fresh(dir);
    let status = Command::new(std::env::current_exe().expect("this program has a file"))
        .arg(&at)
        .arg(objects.to_string())
        .env(CHILD, quick_repair.to_string())
        .status()
        .expect("this program can start itself");
    assert!(!status.success(), "the child dies by its own hand");
    let options = Options {
        quick_repair_from: quick_repair.then_some(0),
        ..Options::default()
    };
    for state in ["after a kill", "after a close"] {
        let start = Instant::now();
        let store = EmbeddedStore::open(&at, options.clone()).expect("the store opens");
        let opened = start.elapsed();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let range = Range {
            prefix: "/".into(),
            after: None,
            limit: 0,
            at: None,
        };
        let start = Instant::now();
        let page = runtime
            .block_on(store.range(range))
            .expect("the store can be read");
        println!(
            "quick_repair={quick_repair} {} objects, opened {state} in {opened:?}; all read in {:?}; file {} MiB",
            page.entries.len(),
            start.elapsed(),
            std::fs::metadata(at.join("store.redb")).map_or(0, |file| file.len() >> 20)
        );
    }
}

/// The child: writes the objects and is killed without closing the store.
fn fill_and_die(dir: &Path, objects: usize, quick_repair: bool) -> ! {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let options = Options {
        quick_repair_from: quick_repair.then_some(0),
        ..Options::default()
    };
    let store = EmbeddedStore::open(dir, options).expect("the store opens");
    runtime.block_on(async {
        for first in (0..objects).step_by(100) {
            let keys = (first..objects.min(first + 100)).map(|n| format!("/registry/bench/namespace-{n:07}"));
            put(&store, keys.collect()).await;
        }
    });
    std::process::abort();
}

fn fresh(dir: &Path) -> PathBuf {
    let at = dir.join("store");
    let _ = std::fs::remove_dir_all(&at);
    at
}
