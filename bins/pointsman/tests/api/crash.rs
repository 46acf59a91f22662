//! Is every acknowledged write there after `kill -9`, whenever it strikes?
//!
//! Writers run until the server is killed under them and note what was acknowledged. After every restart
//! the server must have all of it, hand out only new revisions, and let a watcher resume or say 410.
//! `POINTSMAN_CRASH_ROUNDS` makes the loop longer.

use pointsman_harness::wire::{Http, version_of};
use pointsman_harness::{BARE, Server, config_map};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 12;

/// The last acknowledged state of an object.
#[derive(Clone, Debug)]
struct Acknowledged {
    value: String,
    revision: u64,
}

/// What one writer knows when the server dies.
#[derive(Default)]
struct Notes {
    acknowledged: BTreeMap<String, Acknowledged>,
    /// Whether the last write before the crash may have happened, and to what.
    in_doubt: Option<(String, String)>,
    revisions: Vec<u64>,
}

/// Creates objects and changes every other one until the server does not answer.
async fn write_until_it_dies(http: Http, prefix: String) -> Notes {
    let mut notes = Notes::default();
    for at in 0.. {
        let (name, value) = match at % 2 {
            0 => (format!("{prefix}-{at}"), "created".to_owned()),
            _ => (format!("{prefix}-{}", at - 1), format!("changed{at}")),
        };
        let object = config_map(&name, &value);
        let answer = match at % 2 {
            0 => http.try_post(MAPS, &object).await,
            _ => http.try_put(&format!("{MAPS}/{name}"), &object).await,
        };
        match answer {
            Ok(answer) if (200..300).contains(&answer.code) => {
                let revision: u64 = version_of(&answer.json()).parse().unwrap();
                notes.revisions.push(revision);
                notes.acknowledged.insert(name, Acknowledged { value, revision });
            }
            Ok(answer) => panic!("{}: {}", answer.code, answer.text),
            Err(_) => {
                notes.in_doubt = Some((name, value));
                return notes;
            }
        }
    }
    unreachable!("the loop ends with the server")
}

/// Name to (value, revision) of everything the server lists.
async fn listed(http: &Http) -> (BTreeMap<String, (String, u64)>, u64) {
    let list = http.get(MAPS).await.expect(200);
    let entry = |item: &Value| {
        let name = item["metadata"]["name"].as_str().unwrap().to_owned();
        (
            name,
            (
                item["data"]["value"].as_str().unwrap().to_owned(),
                version_of(item).parse().unwrap(),
            ),
        )
    };
    (
        list["items"].as_array().unwrap().iter().map(entry).collect(),
        version_of(&list).parse().unwrap(),
    )
}

/// Folds a watch until it ends; gives the state it leads to and the last revision it saw.
async fn follow(http: Http, from: u64) -> (BTreeMap<String, u64>, u64) {
    let mut watch = http
        .watch(&format!("{MAPS}?watch=1&resourceVersion={from}"))
        .await;
    let (mut seen, mut last) = (BTreeMap::new(), from);
    while let Some(event) = watch.next().await {
        let revision: u64 = version_of(&event.object).parse().unwrap();
        assert!(revision > last, "revisions of a watch only grow");
        last = revision;
        seen.insert(event.name().to_owned(), revision);
    }
    (seen, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kills_under_load() {
    let rounds: usize = std::env::var("POINTSMAN_CRASH_ROUNDS").map_or(3, |text| text.parse().unwrap());
    let mut server = Server::start_to_be_restarted(&[BARE]).await;
    let mut expected: BTreeMap<String, Acknowledged> = BTreeMap::new();
    let mut used: BTreeSet<u64> = BTreeSet::new();
    let (mut acknowledged, mut in_doubt_kept) = (0, 0);
    for round in 0..rounds {
        let http = server.admin().await;
        let (_, start) = listed(&http).await;
        let watching = tokio::spawn(follow(http.clone(), start));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            writers.push(tokio::spawn(write_until_it_dies(
                server.admin().await,
                format!("r{round}w{writer}"),
            )));
        }
        // Each round strikes at another moment.
        tokio::time::sleep(Duration::from_millis(300 + 170 * (round as u64 % 7))).await;
        server.kill().await;
        let (watched, last_watched) = watching.await.unwrap();
        let mut doubts = BTreeMap::new();
        for writer in writers {
            let notes = writer.await.unwrap();
            for revision in notes.revisions {
                assert!(used.insert(revision), "revision {revision} was handed out twice");
                acknowledged += 1;
            }
            expected.extend(notes.acknowledged);
            doubts.extend(notes.in_doubt);
        }
        server.launch().await;
        let http = server.admin().await;
        let (found, now) = listed(&http).await;
        for (name, wanted) in &expected {
            let (value, revision) = found
                .get(name)
                .unwrap_or_else(|| panic!("{name} {wanted:?} is lost"));
            let doubtful = doubts.get(name) == Some(value) && *revision > wanted.revision;
            assert!(
                doubtful || (*value == wanted.value && *revision == wanted.revision),
                "{name}: {wanted:?}, found {value} {revision}"
            );
        }
        let surplus: Vec<_> = found
            .keys()
            .filter(|name| !expected.contains_key(*name) && *name != "after")
            .collect();
        assert!(
            surplus.iter().all(|name| doubts.contains_key(*name)),
            "{surplus:?}"
        );
        in_doubt_kept += surplus.len();
        // What a watcher was shown is as durable as what a writer was told.
        for (name, revision) in &watched {
            assert!(
                found.get(name).is_some_and(|(_, stored)| stored >= revision),
                "{name} {revision} was seen and is lost"
            );
        }
        assert!(now >= last_watched && used.last().is_none_or(|last| now >= *last));
        resume(&http, last_watched, &found).await;
        let next = http
            .put(&format!("{MAPS}/after"), &config_map("after", &round.to_string()))
            .await;
        let next = if next.code == 404 {
            http.post(MAPS, &config_map("after", "0")).await
        } else {
            next
        };
        let next: u64 = version_of(&next.json()).parse().unwrap();
        assert!(
            next > now && used.insert(next),
            "a revision from before the crash came again"
        );
        for (name, (value, revision)) in found {
            expected.insert(name, Acknowledged { value, revision });
        }
        expected.remove("after");
    }
    let total = expected.len();
    eprintln!(
        "{rounds} kills: {acknowledged} writes acknowledged, all recovered; {in_doubt_kept} more were durable unacknowledged; {total} objects"
    );
    assert!(acknowledged > rounds * WRITERS, "the writers hardly ran");
}

/// A watch from before the crash goes on to the present state, or is told to start over.
async fn resume(http: &Http, from: u64, found: &BTreeMap<String, (String, u64)>) {
    let mut watch = http
        .watch(&format!("{MAPS}?watch=1&resourceVersion={from}&timeoutSeconds=1"))
        .await;
    let mut missed: BTreeMap<&str, u64> = found
        .iter()
        .filter(|(_, (_, revision))| *revision > from)
        .map(|(name, (_, revision))| (name.as_str(), *revision))
        .collect();
    while let Some(event) = watch.next().await {
        if event.kind == "ERROR" {
            assert_eq!(event.object["code"], 410);
            return;
        }
        let revision: u64 = version_of(&event.object).parse().unwrap();
        if missed.get(event.name()) == Some(&revision) {
            missed.remove(event.name());
        }
    }
    assert_eq!(missed, BTreeMap::new(), "the resumed watch left something out");
}
