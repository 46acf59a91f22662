//! A watcher against a scripted server.

use super::*;
use crate::Resource;
use crate::script::{Script, Thing, applied, bookmark, gone, line};
use tokio::sync::mpsc;

pub(crate) async fn events(script: &Script, count: usize) -> Vec<Event<Thing>> {
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
async fn a_gap_leads_to_a_list_that_shows_what_is_gone() {
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
    let seen = events(&script, 4).await;
    assert_eq!(seen[3], applied("a", "3", 11));
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

/// The next event, from a future that is dropped after every single poll.
async fn impatient(watcher: &mut Watcher<Thing>) -> Event<Thing> {
    for _ in 0..100_000 {
        tokio::select! {
            biased;
            event = watcher.next() => return event,
            () = std::future::ready(()) => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no event comes");
}

/// What was asked, without the random time that each watch may last.
fn without_timeouts(asked: Vec<String>) -> Vec<String> {
    let cut = |path: String| match path.split_once("&timeoutSeconds") {
        Some((path, _)) => path.to_owned(),
        None => path,
    };
    asked.into_iter().map(cut).collect()
}

#[tokio::test(start_paused = true)]
async fn dropping_next_at_any_point_loses_no_event_and_asks_for_nothing_twice() {
    let status = |code: u16, reason: &str| {
        format!(r#"{{"kind":"Status","code":{code},"reason":"{reason}","message":"no"}}"#)
    };
    let error = |code, reason| format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status(code, reason));
    let page = |name: &str, next: &str| {
        format!(
            r#"{{"metadata":{{"resourceVersion":"50","continue":"{next}"}},"items":[{{"metadata":{{"namespace":"ns","name":"{name}","resourceVersion":"4"}},"value":1}}]}}"#
        )
    };
    let listed = [
        line("ADDED", "a", "1", 10),
        line("ADDED", "b", "2", 20),
        bookmark("2", true),
        line("MODIFIED", "a", "3", 11),
        error(500, "InternalError"),
    ];
    let resumed = [line("DELETED", "b", "4", 20), error(410, "Expired")];
    let answers = [
        (503, status(503, "ServiceUnavailable")),
        (200, listed.concat()),
        (200, resumed.concat()),
        (422, status(422, "Invalid")),
        (200, page("a", "more")),
        (200, page("c", "")),
        (200, line("MODIFIED", "c", "51", 5)),
        (200, bookmark("52", false)),
    ];
    let answers: Vec<(u16, &str)> = answers
        .iter()
        .map(|(code, text)| (*code, text.as_str()))
        .collect();
    let patient = Script::new(&answers);
    let expected = events(&patient, 13).await;
    assert_eq!(expected[12], Event::Synced("52".into()), "{expected:?}");

    let script = Script::new(&answers).slow();
    let mut watcher = Watcher::new(script.client(), Scope::all(Resource::PODS));
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        seen.push(impatient(&mut watcher).await);
    }
    assert_eq!(seen, expected);
    assert_eq!(
        without_timeouts(script.asked()),
        without_timeouts(patient.asked())
    );
}

#[tokio::test(start_paused = true)]
async fn versions_that_go_back_lead_to_a_list() {
    let first = [
        line("ADDED", "a", "1", 10),
        line("ADDED", "b", "90", 20),
        bookmark("100", true),
    ]
    .concat();
    // The server's store was restored from a backup: it goes on, from an older version.
    for back in [bookmark("60", false), line("MODIFIED", "a", "61", 11)] {
        let restored = [line("ADDED", "a", "61", 11), bookmark("61", true)].concat();
        let script = Script::new(&[(200, &(first.clone() + &back)), (200, &restored)]);
        assert_eq!(
            events(&script, 8).await[3..],
            [
                Event::Synced("100".into()),
                Event::Init,
                applied("a", "61", 11),
                gone("b", None),
                Event::Synced("61".into())
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_does_not_have_leads_to_a_list() {
    let first = [line("ADDED", "a", "1", 10), bookmark("100", true)].concat();
    let too_large = r#"{"code":504,"reason":"Timeout","message":"Too large resource version: 100, current: 60","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
    let second = [line("ADDED", "a", "1", 10), bookmark("60", true)].concat();
    let script = Script::new(&[(200, &first), (504, too_large), (200, &second)]);
    assert_eq!(events(&script, 6).await[5], Event::Synced("60".into()));
    let asked = script.asked();
    assert!(asked[1].contains("resourceVersion=100"), "{asked:?}");
    assert!(asked[2].contains("sendInitialEvents=true"), "{asked:?}");
}
