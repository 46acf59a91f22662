//! How are streams of events recorded?

use super::record::{Record, key, revision};
use super::servers::Access;
use crate::history::{Event, Revision, Scope, Watch};
use pointsman_harness::wire;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A stream that says nothing for so long is given up; the server would have ended it.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a stream may take to bring everything when the history is over.
const CATCH_UP: Duration = Duration::from_secs(40);

/// How a watcher starts its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Goes on where the last stream ended.
    Resume(Scope),
    /// Starts with the state, each time.
    State(Scope),
    /// Starts at the beginning of the history, each time.
    Replay,
}

/// Watches until everything up to the revision that `end` will name has come; gives all streams.
pub async fn follow(
    record: Arc<Record>,
    mut access: Access,
    habit: Habit,
    first: Revision,
    mut end: watch::Receiver<Option<Revision>>,
) -> Vec<Watch> {
    let mut streams: Vec<Watch> = Vec::new();
    let mut last = first;
    let mut deadline = None;
    loop {
        let (scope, from) = match habit {
            Habit::Resume(scope) => (scope, Some(last)),
            Habit::State(scope) => (scope, None),
            Habit::Replay => (Scope::All, Some(first)),
        };
        let mut stream = Watch {
            server: access.server,
            scope,
            from,
            from_the_start: from == Some(first),
            events: Vec::new(),
            must_reach: None,
        };
        access.starts.mark_unchanged();
        let opened = tokio::time::timeout(SILENCE, access.http.try_watch(&path(&record, scope, from))).await;
        let done = match opened {
            Ok(Ok(mut wire)) => read(&record, &mut wire, &mut stream, &mut end).await,
            Ok(Err(_)) | Err(_) => {
                let _ = tokio::time::timeout(Duration::from_millis(200), access.starts.changed()).await;
                false
            }
        };
        last = stream.events.last().map_or(last, |(_, event)| event.revision());
        let wanted = *end.borrow();
        if let Some(wanted) = wanted {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + CATCH_UP);
            if !done && Instant::now() > deadline {
                record.surprise(format!(
                    "a watch does not reach @{wanted} in {CATCH_UP:?}: {stream:?}"
                ));
                return streams;
            }
        }
        if done || !stream.events.is_empty() {
            streams.push(stream);
        }
        if done {
            return streams;
        }
    }
}

fn path(record: &Record, scope: Scope, from: Option<Revision>) -> String {
    // The last two seconds of a stream begin with a bookmark.
    let mut path = format!(
        "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds=4",
        record.path()
    );
    match from {
        Some(from) => path.push_str(&format!("&resourceVersion={from}")),
        None => path.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
    }
    if scope == Scope::Even {
        path.push_str("&labelSelector=even%3Dyes");
    }
    path
}

/// Reads a stream to its end, or until it has brought everything; returns whether it has.
async fn read(
    record: &Record,
    wire: &mut wire::Watch,
    stream: &mut Watch,
    end: &mut watch::Receiver<Option<Revision>>,
) -> bool {
    let mut reached = stream.from.unwrap_or(0);
    loop {
        let wanted = *end.borrow_and_update();
        if let Some(wanted) = wanted.filter(|wanted| *wanted <= reached) {
            stream.must_reach = Some(wanted);
            return true;
        }
        let next = tokio::select! {
            next = tokio::time::timeout(SILENCE, wire.next()) => next,
            _ = end.changed() => continue,
        };
        let Ok(Some(event)) = next else { return false };
        let Some(event) = translate(record, &event) else {
            return false;
        };
        reached = reached.max(event.revision());
        stream.events.push((record.now(), event));
    }
}

fn translate(record: &Record, event: &wire::Event) -> Option<Event> {
    let object = &event.object;
    let seen = || key(object).zip(record.seen(object));
    match event.kind.as_str() {
        "ADDED" => seen().map(|(key, seen)| Event::Added(key, seen)),
        "MODIFIED" => seen().map(|(key, seen)| Event::Modified(key, seen)),
        "DELETED" => seen().map(|(key, seen)| Event::Deleted(key, seen)),
        "BOOKMARK" => {
            let revision = revision(object)?;
            let initial = &object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
            Some(if initial {
                Event::InitialEnd(revision)
            } else {
                Event::Bookmark(revision)
            })
        }
        _ => {
            if object["code"] != 410 {
                record.surprise(format!("a watch ended with {object}"));
            }
            None
        }
    }
}
