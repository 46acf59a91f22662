//! What do clients do, one request after the other?

use super::record::Record;
use super::servers::Access;
use crate::history::{Answer, Freshness, Key, Request, Seen, WriteId};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After a request without an answer, unless the server is ready sooner.
const BACKOFF: Duration = Duration::from_millis(300);

/// Works until the record says stop.
pub async fn work(record: Arc<Record>, mut access: Access, mut random: Rng) {
    let mut known: BTreeMap<Key, Seen> = BTreeMap::new();
    while !record.stop.load(Ordering::Relaxed) {
        access.starts.mark_unchanged();
        let request = request(&record, &known, &mut random);
        match record.carry_out(&access, request).await {
            None => _ = tokio::time::timeout(BACKOFF, access.starts.changed()).await,
            Some(answer) => {
                learn(&mut known, request, &answer);
                tokio::time::sleep(Duration::from_micros(random.u64(0..8_000))).await;
            }
        }
    }
}

fn request(record: &Record, known: &BTreeMap<Key, Seen>, random: &mut Rng) -> Request {
    let key = Key(random.usize(0..record.keys));
    let newest = record.newest();
    let write = || record.next_write();
    let expected: Option<WriteId> = known.get(&key).map(|seen| seen.content.write);
    match random.u32(0..100) {
        0..15 => Request::Create { key, write: write() },
        15..32 if expected.is_some() => Request::Put {
            key,
            write: write(),
            expected,
        },
        32..42 => Request::Put {
            key,
            write: write(),
            expected: None,
        },
        42..50 => Request::Patch { key, write: write() },
        50..54 => Request::Delete { key, expected: None },
        54..60 if expected.is_some() => Request::Delete { key, expected },
        60..68 => Request::List(Freshness::Newest),
        68..74 => Request::List(Freshness::Any),
        74..77 if newest > 0 => Request::List(Freshness::NotOlderThan(newest)),
        77..80 if newest > 0 => Request::List(Freshness::Exactly(newest - random.u64(0..=newest.min(20)))),
        _ => Request::Get { key },
    }
}

fn learn(known: &mut BTreeMap<Key, Seen>, request: Request, answer: &Answer) {
    match (answer, request.key()) {
        (Answer::Written(seen) | Answer::Found(seen), Some(key)) => _ = known.insert(key, *seen),
        (Answer::Missing | Answer::Deleted, Some(key)) => _ = known.remove(&key),
        _ => {}
    }
}
