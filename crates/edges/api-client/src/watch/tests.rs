//! A watcher against a scripted server.

use super::*;
use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Thing {
    value: i32,
}

/// Answers requests from a list, and remembers what was asked.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn new(answers: &[(u16, &str)]) -> Self {
        let answers = answers
            .iter()
            .map(|(code, text)| (*code, (*text).to_owned()))
            .collect();
        Self {
            answers: Arc::new(Mutex::new(answers)),
            asked: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            script.asked.lock().unwrap().push(request.uri().to_string());
            let next = script.answers.lock().unwrap().pop_front();
            let (code, text) = next.unwrap_or((503, "{}".into()));
            let body = http_body_util::Full::new(Bytes::from(text));
            let response = Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(kube::Client::new(service, "default"))
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn line(kind: &str, name: &str, version: &str, value: i32) -> String {
    format!(
        r#"{{"type":"{kind}","object":{{"metadata":{{"namespace":"ns","name":"{name}","resourceVersion":"{version}"}},"value":{value}}}}}"#
    ) + "\n"
}

fn bookmark(version: &str, end: bool) -> String {
    let annotations = if end {
        r#","annotations":{"k8s.io/initial-events-end":"true"}"#
    } else {
        ""
    };
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"{annotations}}}}}}}"#)
        + "\n"
}

fn applied(name: &str, version: &str, value: i32) -> Event<Thing> {
    Event::Applied {
        key: ObjectKey::new("ns", name),
        object: Thing { value },
        resource_version: version.into(),
    }
}

fn gone(name: &str, version: Option<&str>) -> Event<Thing> {
    Event::Deleted {
        key: ObjectKey::new("ns", name),
        resource_version: version.map(Into::into),
    }
}

async fn events(script: &Script, count: usize) -> Vec<Event<Thing>> {
    let mut watcher = Watcher::new(script.client(), Scope::all(Resource::PODS));
    let mut events = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(600), watcher.next());
        events.push(next.await.expect("an event comes"));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_is_followed_and_resumed_where_it_broke_off() {
    let first = [
        line("ADDED", "a", "1", 10),
        bookmark("2", true),
        line("MODIFIED", "a", "3", 11),
        bookmark("7", false),
        "{\"type\":\"MODIF".into(),
    ];
    let second = [line("DELETED", "a", "8", 11)];
    let script = Script::new(&[(200, &first.concat()), (200, &second.concat())]);
    assert_eq!(
        events(&script, 6).await,
        [
            Event::Init,
            applied("a", "1", 10),
            Event::Synced("2".into()),
            applied("a", "3", 11),
            Event::Synced("7".into()),
            gone("a", Some("8"))
        ]
    );
    let asked = script.asked();
    assert!(asked[0].contains("sendInitialEvents=true"), "{asked:?}");
    assert!(asked[1].contains("resourceVersion=7"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gap_leads_to_a_list_that_tells_what_is_gone() {
    let first = [
        line("ADDED", "a", "1", 10),
        line("ADDED", "b", "2", 20),
        bookmark("2", true),
    ]
    .concat();
    let expired =
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
    let first = first + expired + "\n";
    let second = [line("ADDED", "b", "9", 21), bookmark("9", true)].concat();
    let script = Script::new(&[(200, &first), (200, &second)]);
    assert_eq!(
        events(&script, 8).await[3..],
        [
            Event::Synced("2".into()),
            Event::Init,
            applied("b", "9", 21),
            gone("a", None),
            Event::Synced("9".into())
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn servers_that_do_not_stream_lists_are_read_in_pages() {
    let refused =
        r#"{"kind":"Status","code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden"}"#;
    let page = |name: &str, next: &str| {
        format!(
            r#"{{"metadata":{{"resourceVersion":"5","continue":"{next}"}},"items":[{{"metadata":{{"namespace":"ns","name":"{name}","resourceVersion":"4"}},"value":1}}]}}"#
        )
    };
    let script = Script::new(&[
        (422, refused),
        (200, &page("a", "to ken")),
        (200, &page("b", "")),
        (200, &line("ADDED", "c", "6", 3)),
    ]);
    assert_eq!(
        events(&script, 5).await[1..],
        [
            applied("a", "4", 1),
            applied("b", "4", 1),
            Event::Synced("5".into()),
            applied("c", "6", 3)
        ]
    );
    assert!(script.asked()[2].contains("continue=to%20ken"));
    assert!(script.asked()[3].contains("resourceVersion=5"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_at_streaming_is_read_in_pages() {
    let failed = r#"{"kind":"Status","code":500,"reason":"InternalError","message":"RequestWatchProgress is disabled"}"#;
    let page = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;
    let in_stream = format!("{{\"type\":\"ERROR\",\"object\":{failed}}}\n");
    for (code, answer) in [(500, failed), (200, in_stream.as_str())] {
        let script = Script::new(&[(code, answer), (200, page), (200, &line("ADDED", "c", "6", 3))]);
        assert_eq!(
            events(&script, 4).await[2..],
            [Event::Synced("5".into()), applied("c", "6", 3)]
        );
        assert!(script.asked()[1].contains("limit="), "{:?}", script.asked());
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_does_not_stop_the_others() {
    let text = [
        r#"{"type":"ADDED","object":{"metadata":{"namespace":"ns","name":"odd","resourceVersion":"1"},"value":"x"}}"#
            .to_owned()
            + "\n",
        line("ADDED", "a", "2", 10),
        bookmark("2", true),
    ];
    let script = Script::new(&[(500, "oops"), (200, &text.concat())]);
    assert_eq!(
        events(&script, 4).await[2..],
        [applied("a", "2", 10), Event::Synced("2".into())]
    );
}

#[tokio::test(start_paused = true)]
async fn bunches_bring_the_same_events_in_the_same_order() {
    let first = line("ADDED", "a", "1", 1) + &line("ADDED", "b", "2", 1) + &bookmark("3", true);
    let more: String = (4..1004)
        .map(|version| line("MODIFIED", "a", &version.to_string(), version))
        .collect();
    let (first, last) = (first + &more, line("DELETED", "b", "1004", 1));
    let answers = [(200, first.as_str()), (200, last.as_str())];
    let one_by_one = events(&Script::new(&answers), 1005).await;

    let script = Script::new(&answers);
    let watcher = Watcher::<Thing>::new(script.client(), Scope::all(Resource::PODS));
    let (sender, mut received) = mpsc::channel(8);
    let pause = Duration::from_millis(100);
    let task = tokio::spawn(watcher.forward_in_bunches(sender, pause, Some));
    let mut bunched = Vec::new();
    while bunched.len() < one_by_one.len() {
        let next = tokio::time::timeout(Duration::from_secs(600), received.recv());
        bunched.push(next.await.expect("an event comes").expect("it goes on"));
    }
    assert_eq!(bunched, one_by_one);
    drop(received);
    let ended = tokio::time::timeout(Duration::from_secs(600), task).await;
    ended.expect("it ends with its receiver").unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_came_before_an_error_does_not_wait_for_the_next_attempt() {
    let lines = [
        line("ADDED", "a", "1", 10),
        bookmark("2", true),
        line("MODIFIED", "a", "3", 11),
        r#"{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError","message":"no"}}"#
            .to_owned()
            + "\n",
    ];
    let script = Script::new(&[(200, &lines.concat())]);
    let start = Instant::now();
    let told = events(&script, 4).await;
    assert_eq!(told[3], applied("a", "3", 11));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn events_that_arrive_together_are_sent_together() {
    let lines = [
        line("ADDED", "a", "1", 10),
        line("ADDED", "b", "2", 20),
        bookmark("2", true),
    ];
    let script = Script::new(&[(200, &lines.concat())]);
    let (sender, mut receiver) = mpsc::channel(4);
    let watcher = Watcher::<Thing>::new(script.client(), Scope::all(Resource::PODS));
    tokio::spawn(watcher.forward_together(sender, |event| match event {
        Event::Init => None,
        event => Some(event),
    }));
    let together = receiver.recv().await.expect("an answer");
    let expected = [
        applied("a", "1", 10),
        applied("b", "2", 20),
        Event::Synced("2".into()),
    ];
    assert_eq!(together, expected);
}
