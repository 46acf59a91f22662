//! Is every acknowledged write still there after `kill -9`?
//!
//! The test starts itself as a child that writes under load and reports what was acknowledged,
//! kills it at a random moment, opens what it left and compares. `POINTSMAN_CRASH_ROUNDS` sets how
//! often (15 unless told).

use bytes::Bytes;
use pointsman_store::embedded::{EmbeddedStore, Options};
use pointsman_store::{Entry, Op, Outcome, Range, Revision, Store, Transaction};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DIR: &str = "POINTSMAN_CRASH_DIR";
const ROUNDS: &str = "POINTSMAN_CRASH_ROUNDS";
const CLIENTS: usize = 32;

#[test]
fn every_acknowledged_write_survives_kill_nine() {
    if let Ok(dir) = std::env::var(DIR) {
        write_until_killed(Path::new(&dir));
    }
    let rounds = std::env::var(ROUNDS).map_or(15, |rounds| rounds.parse().expect("a number of rounds"));
    let dir = TempDir::new().expect("a temporary directory");
    let mut kept = Kept::default();
    let mut total = 0;
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let acknowledged = run_and_kill(dir.path(), round);
        total += acknowledged.len();
        let opening = Instant::now();
        let store = EmbeddedStore::open(dir.path(), Options::default()).expect("the store opens");
        slowest = slowest.max(opening.elapsed());
        kept.check(&store, &acknowledged, round);
    }
    assert!(total > rounds as usize, "the children wrote under load");
    assert_eq!(kept.recovered, total);
    report(&format!(
        "{rounds} kills: {total} writes acknowledged, {} recovered, {} more kept; slowest opening {slowest:?}",
        kept.recovered, kept.unacknowledged
    ));
}

/// An acknowledged write: which client, its how manieth, at which revision.
type Acknowledged = (usize, u64, u64);

/// What is known to be on disk.
#[derive(Default)]
struct Kept {
    newest: u64,
    writes: BTreeMap<(usize, u64), u64>,
    recovered: usize,
    unacknowledged: usize,
}

impl Kept {
    fn check(&mut self, store: &EmbeddedStore, acknowledged: &[Acknowledged], round: u64) {
        let entries = read_all(store);
        let mut found = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.key.starts_with("/each/")) {
            let (client, n) = parse(&entry.key);
            found.insert((client, n), entry.revision.0);
            assert_eq!(entry.created, entry.revision, "{} was written once", entry.key);
        }
        // The other key of a client's last transaction came with it or not at all.
        for entry in entries.iter().filter(|entry| entry.key.starts_with("/last/")) {
            let (client, _) = parse(&entry.key);
            let n = String::from_utf8_lossy(&entry.value[..20])
                .trim()
                .parse()
                .expect("a number");
            let other = found.get(&(client, n));
            assert_eq!(other, Some(&entry.revision.0), "{} is there by half", entry.key);
            let later = found.range((client, n + 1)..(client + 1, 0)).next();
            assert_eq!(later, None, "{} is older than its other half", entry.key);
        }
        for (write, revision) in &self.writes {
            assert_eq!(
                found.get(write),
                Some(revision),
                "{write:?} was there before round {round}"
            );
        }
        for (client, n, revision) in acknowledged {
            assert!(
                *revision > self.newest,
                "revision {revision} was used before round {round}"
            );
            let kept = found.get(&(*client, *n));
            assert_eq!(
                kept,
                Some(revision),
                "acknowledged write {n} of client {client} in round {round}"
            );
            self.recovered += 1;
        }
        self.unacknowledged += found.len() - self.writes.len() - acknowledged.len();
        self.newest = wait(store.revision()).0;
        let highest = found.values().max().copied().unwrap_or(0);
        assert!(self.newest >= highest);
        self.writes = found;
    }
}

fn run_and_kill(dir: &Path, round: u64) -> Vec<Acknowledged> {
    let mut child = Command::new(std::env::current_exe().expect("a test has a program"))
        .args([
            "--exact",
            "every_acknowledged_write_survives_kill_nine",
            "--nocapture",
        ])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test can start itself");
    let output = child.stdout.take().expect("the output is piped");
    let mut lines = BufReader::new(output).lines();
    // The first acknowledgement shows that the child is at work; then it has up to 200 ms.
    let first = lines
        .by_ref()
        .map(|line| line.expect("text"))
        .find(|line| line.starts_with("ack "));
    let first = first.expect("the child writes");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(round.wrapping_mul(7_919_177) % 200_000));
        child.kill().expect("the child runs");
        child.wait().expect("the child ends");
    });
    let mut acknowledged = vec![parse_line(&first).expect("the line is whole")];
    // The last line may be cut by the kill; then its write does not count as acknowledged.
    acknowledged.extend(lines.map_while(Result::ok).filter_map(|line| parse_line(&line)));
    killer.join().expect("the killer ends");
    acknowledged
}

/// The child: many clients, each writing two keys at a time, and now and then a compaction.
fn write_until_killed(dir: &Path) -> ! {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = Arc::new(EmbeddedStore::open(dir, Options::default()).expect("the store opens"));
    let written = read_all(&store).len() as u64;
    for client in 0..CLIENTS {
        let store = Arc::clone(&store);
        runtime.spawn(async move {
            // Numbers go on from any number that may have been used before.
            for n in written.. {
                let revision = write(&store, client, n).await;
                report(&format!("ack {client} {n} {} .", revision.0));
                if n % 64 == client as u64 {
                    let _ = store.compact(Revision(revision.0 - 1)).await;
                }
            }
        });
    }
    std::thread::sleep(Duration::from_secs(60));
    panic!("nobody killed the child");
}

async fn write(store: &EmbeddedStore, client: usize, n: u64) -> Revision {
    let value = Bytes::from(format!("{n:20}{}", "x".repeat(400)));
    let ops = vec![
        Op::Put(format!("/last/{client}/0").into(), value.clone()),
        Op::Put(format!("/each/{client}/{n}").into(), value),
    ];
    let transaction = Transaction {
        expect: Vec::new(),
        ops,
    };
    match store.commit(transaction).await {
        Ok(Outcome::Committed(revision)) => revision,
        other => panic!("a write was not committed: {other:?}"),
    }
}

fn read_all(store: &EmbeddedStore) -> Vec<Entry> {
    let range = Range {
        prefix: "/".into(),
        after: None,
        limit: 0,
        at: None,
    };
    wait(store.range(range)).entries
}

fn wait<T>(answer: pointsman_store::Answer<'_, T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(answer).expect("the store is up")
}

fn parse(key: &str) -> (usize, u64) {
    let mut parts = key.split('/').skip(2);
    let mut number = || {
        parts
            .next()
            .and_then(|part| part.parse::<u64>().ok())
            .expect("a number")
    };
    (number() as usize, number())
}

fn parse_line(line: &str) -> Option<Acknowledged> {
    let mut parts = line
        .strip_prefix("ack ")?
        .strip_suffix(" .")?
        .split(' ')
        .map(str::parse::<u64>);
    let mut number = || parts.next()?.ok();
    Some((number()? as usize, number()?, number()?))
}

/// Writes a line at once and past the test harness, which would hold it back.
fn report(line: &str) {
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}
