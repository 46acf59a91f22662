//! Does the judge find what is wrong, and nothing else?

use crate::fake;
use crate::history::{
    Answer, Content, Event, Freshness, History, Key, Listing, Operation, Request, Seen, Watch, WriteId,
};
use crate::judge::judge;
use fastrand::Rng;
use proptest::prelude::*;

const STEPS: usize = 150;

/// A history that one watch saw from the start, as every recorded one is: without it the judge may meet deletions that
/// only a selection shows, which date nothing.
fn witnessed(seed: u64) -> History {
    let seeds = (0..).map(|turn| seed.wrapping_add(turn));
    let mut histories = seeds.map(|seed| fake::history(seed, STEPS));
    let complete = |history: &History| history.watches.iter().any(Watch::is_complete);
    histories.find(complete).expect("every other one")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_found_where_nothing_is_wrong(seed: u64) {
        let verdict = judge(&witnessed(seed));
        prop_assert!(verdict.violations.is_empty(), "{}", verdict.violations.join("\n"));
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_found(seed: u64) {
        if let Some(history) = fake::history_with_a_lost_write(seed, STEPS) {
            let found = judge(&history).violations;
            prop_assert!(found.iter().any(|text| text.contains("no order explains")), "{found:?}");
        }
    }

    #[test]
    fn each_planted_fault_is_found(seed: u64) {
        for (name, plant) in FAULTS {
            let mut history = witnessed(seed);
            if plant(&mut history, &mut Rng::with_seed(seed)).is_some() {
                prop_assert!(!judge(&history).violations.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn every_kind_of_fault_can_be_planted() {
    for (name, plant) in FAULTS {
        let planted =
            (0..40).filter(|seed| plant(&mut witnessed(*seed), &mut Rng::with_seed(*seed)).is_some());
        assert!(planted.count() > 5, "{name}");
    }
}

type Plant = fn(&mut History, &mut Rng) -> Option<()>;

const FAULTS: &[(&str, Plant)] =
    &[
        ("a stale read", stale_read),
        ("a doubled event", |history, random| {
            let (watch, at) = object_event(history, random, |_| true)?;
            let event = watch.events[at];
            watch.events.insert(at + 1, event);
            Some(())
        }),
        ("reordered events", |history, random| {
            let (watch, at) = object_event(history, random, |_| true)?;
            watch
                .events
                .get(at + 1)
                .filter(|(_, event)| revision_of(event).is_some())?;
            watch.events.swap(at, at + 1);
            Some(())
        }),
        ("a skipped event", skipped_event),
        ("an event of a refused write", |history, random| {
            let refused = history.operations.iter().find(|operation| {
                matches!(operation.answer, Some((_, Answer::Conflict | Answer::Exists)))
                    && operation.request.write().is_some()
            })?;
            let (key, write) = refused.request.key().zip(refused.request.write())?;
            let at = refused.start + 1;
            let (watch, position) = object_event(history, random, |_| true)?;
            let revision = revision_of(&watch.events[position].1)? + 1;
            let content = Content::whole(write);
            let event = Event::Modified(key, Seen { content, revision });
            let at = at.max(watch.events[position].0);
            watch.events.insert(position + 1, (at, event));
            Some(())
        }),
        ("an event that nobody caused", |history, random| {
            let (watch, at) = object_event(history, random, |_| true)?;
            let content = Content::whole(WriteId(1_000_000));
            let revision = revision_of(&watch.events[at].1)?;
            watch.events[at].1 = Event::Added(Key(0), Seen { content, revision });
            Some(())
        }),
        ("an event before its cause", |history, random| {
            let first = history.operations.iter().map(|operation| operation.start).min()?;
            let (watch, at) = object_event(history, random, |event| matches!(event, Event::Modified(..)))?;
            watch.events[at].0 = first;
            Some(())
        }),
        ("a creation shown as a change", |history, random| {
            let (watch, at) = object_event(history, random, |event| matches!(event, Event::Added(..)))?;
            let Event::Added(key, seen) = watch.events[at].1 else {
                return None;
            };
            watch.events[at].1 = Event::Modified(key, seen);
            Some(())
        }),
        ("another version shown as deleted", |history, random| {
            let (watch, at) = object_event(history, random, |event| matches!(event, Event::Deleted(..)))?;
            let Event::Deleted(key, mut seen) = watch.events[at].1 else {
                return None;
            };
            seen.content.write = WriteId(seen.content.write.0 + 2);
            watch.events[at].1 = Event::Deleted(key, seen);
            Some(())
        }),
        ("a bookmark ahead of its events", |history, random| {
            let (watch, at) = any_event(history, random, |event| matches!(event, Event::Bookmark(_)))?;
            let next = watch
                .events
                .get(at + 1)
                .and_then(|(_, event)| revision_of(event))?;
            watch.events[at].1 = Event::Bookmark(next);
            Some(())
        }),
        ("a stream that stops short", |history, _| {
            let answered = answered_writes(history);
            let watch = history.watches.iter_mut().find(|watch| {
                let acknowledged = watch
                    .events
                    .last()
                    .is_some_and(|(_, event)| shows(event, &answered));
                watch.must_reach.is_some() && watch.from.is_some() && acknowledged
            })?;
            watch.events.pop();
            Some(())
        }),
        ("a list without one of its objects", |history, _| {
            let listing = listing(history)?;
            let key = *listing.objects.keys().next()?;
            listing.objects.remove(&key);
            Some(())
        }),
        ("a list that names an older revision", |history, _| {
            let listing = listing(history)?;
            let newest = listing.objects.values().map(|seen| seen.revision).max()?;
            listing.revision = newest - 1;
            Some(())
        }),
        ("a revision that is given twice", |history, _| {
            let written = |operation: &Operation| match operation.answer {
                Some((_, Answer::Written(seen))) => Some(seen.revision),
                _ => None,
            };
            let first = history.operations.iter().find_map(written)?;
            let later = history
                .operations
                .iter_mut()
                .filter(|operation| written(operation).is_some_and(|own| own != first));
            if let Some((_, Answer::Written(seen))) = &mut later.last()?.answer {
                seen.revision = first;
            }
            Some(())
        }),
        ("a patch of a version that is gone", |history, _| {
            let whole = history.operations.iter().find_map(|operation| {
                match (operation.request, &operation.answer) {
                    (
                        Request::Create { key, write } | Request::Put { key, write, .. },
                        Some((end, Answer::Written(_))),
                    ) => Some((key, write, *end)),
                    _ => None,
                }
            })?;
            let patched = history.operations.iter_mut().filter_map(|operation| {
                match (operation.request, &mut operation.answer) {
                    (Request::Patch { key, .. }, Some((_, Answer::Written(seen))))
                        if key == whole.0 && operation.start > whole.2 && seen.content.base != whole.1 =>
                    {
                        Some(seen)
                    }
                    _ => None,
                }
            });
            patched.last()?.content.base = whole.1;
            Some(())
        }),
        ("an object that is said to be missing", |history, _| {
            let quiet = |operation: &&Operation| {
                let (Request::Get { key }, Some((end, Answer::Found(_)))) =
                    (operation.request, &operation.answer)
                else {
                    return false;
                };
                // Nothing else happened to the object around it.
                !history.operations.iter().any(|other| {
                    let until = other.answer.as_ref().map_or(u64::MAX, |(end, _)| *end);
                    let near = other.start <= *end && until >= operation.start;
                    near && other.request.changes() && other.request.key() == Some(key)
                })
            };
            let position = history
                .operations
                .iter()
                .position(|operation| quiet(&operation))?;
            history.operations[position].answer.as_mut()?.1 = Answer::Missing;
            Some(())
        }),
    ];

fn revision_of(event: &Event) -> Option<u64> {
    match event {
        Event::Added(_, seen) | Event::Modified(_, seen) | Event::Deleted(_, seen) => Some(seen.revision),
        Event::Bookmark(_) | Event::InitialEnd(_) => None,
    }
}

/// An event of some watch that is not one of its initial events.
fn any_event<'a>(
    history: &'a mut History,
    random: &mut Rng,
    wanted: impl Fn(&Event) -> bool,
) -> Option<(&'a mut Watch, usize)> {
    let mut places = Vec::new();
    for (number, watch) in history.watches.iter().enumerate() {
        let initial = watch
            .events
            .iter()
            .position(|(_, event)| matches!(event, Event::InitialEnd(_)));
        let first = initial.map_or(0, |end| end + 1);
        let events = watch.events.iter().enumerate().skip(first);
        places.extend(
            events
                .filter(|(_, (_, event))| wanted(event))
                .map(|(at, _)| (number, at)),
        );
    }
    let (number, at) = random.choice(&places)?;
    Some((&mut history.watches[*number], *at))
}

fn object_event<'a>(
    history: &'a mut History,
    random: &mut Rng,
    wanted: impl Fn(&Event) -> bool,
) -> Option<(&'a mut Watch, usize)> {
    any_event(history, random, |event| {
        revision_of(event).is_some() && wanted(event)
    })
}

fn listing(history: &mut History) -> Option<&mut Listing> {
    history
        .operations
        .iter_mut()
        .find_map(|operation| match &mut operation.answer {
            Some((_, Answer::Listed(listing))) if !listing.objects.is_empty() => Some(listing),
            _ => None,
        })
}

/// A get that finds a version which was replaced before the get was sent.
fn stale_read(history: &mut History, _: &mut Rng) -> Option<()> {
    let written = |operation: &Operation| match &operation.answer {
        Some((end, Answer::Written(seen))) => Some((operation.request.key()?, *seen, *end)),
        _ => None,
    };
    let versions: Vec<_> = history.operations.iter().filter_map(written).collect();
    for operation in &mut history.operations {
        let (Request::Get { key }, Some((_, answer))) = (operation.request, &mut operation.answer) else {
            continue;
        };
        let before = versions
            .iter()
            .filter(|(own, _, end)| *own == key && *end < operation.start);
        let (old, replaced) = (
            before.clone().min_by_key(|(_, seen, _)| seen.revision),
            before.count() > 1,
        );
        if let (Some((_, old, _)), true) = (old, replaced) {
            *answer = Answer::Found(*old);
            return Some(());
        }
    }
    None
}

/// The event of an acknowledged write, with another event after it.
fn skipped_event(history: &mut History, random: &mut Rng) -> Option<()> {
    let answered = answered_writes(history);
    let (watch, at) = object_event(history, random, |event| shows(event, &answered))?;
    watch.events[at + 1..]
        .iter()
        .find(|(_, event)| revision_of(event).is_some())?;
    watch.events.remove(at);
    Some(())
}

fn answered_writes(history: &History) -> Vec<WriteId> {
    let answered = history
        .operations
        .iter()
        .filter(|operation| operation.answer.is_some());
    answered
        .filter_map(|operation| operation.request.write())
        .collect()
}

fn shows(event: &Event, writes: &[WriteId]) -> bool {
    match event {
        Event::Added(_, seen) | Event::Modified(_, seen) => writes.contains(&seen.content.write),
        _ => false,
    }
}

fn operation(request: Request, start: u64, end: u64, answer: Answer) -> Operation {
    Operation {
        request,
        server: 0,
        start,
        answer: Some((end, answer)),
    }
}

fn seen(write: u32, revision: u64) -> Seen {
    Seen {
        content: Content::whole(WriteId(write)),
        revision,
    }
}

const A: Key = Key(0);

fn create(write: u32, start: u64, end: u64, revision: u64) -> Operation {
    let request = Request::Create {
        key: A,
        write: WriteId(write),
    };
    operation(request, start, end, Answer::Written(seen(write, revision)))
}

fn put(write: u32, start: u64) -> Operation {
    let request = Request::Put {
        key: A,
        write: WriteId(write),
        expected: None,
    };
    Operation {
        request,
        server: 0,
        start,
        answer: None,
    }
}

fn get(start: u64, found: Option<Seen>) -> Operation {
    let answer = found.map_or(Answer::Missing, Answer::Found);
    operation(Request::Get { key: A }, start, start + 1, answer)
}

fn violations(operations: Vec<Operation>) -> Vec<String> {
    let history = History {
        keys: 1,
        operations,
        watches: Vec::new(),
    };
    judge(&history).violations
}

#[test]
fn a_write_without_an_answer_may_happen_late_or_never() {
    let created = create(1, 0, 10, 5);
    let unanswered = put(2, 20);
    let old = Some(seen(1, 5));
    let new = Some(seen(2, 6));
    for reads in [vec![], vec![old], vec![old, old, new, new], vec![new, new]] {
        let reads = reads.into_iter().enumerate();
        let reads = reads.map(|(at, found)| get(100 + 10 * at as u64, found));
        let all = [created.clone(), unanswered.clone()]
            .into_iter()
            .chain(reads)
            .collect();
        assert_eq!(violations(all), Vec::<String>::new());
    }
    let back = violations(vec![created, unanswered, get(100, new), get(110, old)]);
    assert!(back[0].contains("no order explains"), "{back:?}");
}

#[test]
fn revisions_that_contradict_the_clock_are_not_believed() {
    // The second write started after the first had ended, with a smaller revision.
    let mut second = put(2, 20);
    second.answer = Some((30, Answer::Written(seen(2, 4))));
    let found = violations(vec![create(1, 0, 10, 5), second]);
    assert!(found[0].contains("no order explains"), "{found:?}");
}

#[test]
fn a_list_from_the_cache_is_not_older_than_what_its_server_showed() {
    let list = |server, freshness| {
        let listing = Listing {
            revision: 4,
            objects: Default::default(),
        };
        let mut list = operation(Request::List(freshness), 20, 30, Answer::Listed(listing));
        list.server = server;
        list
    };
    let with = |list| violations(vec![create(1, 0, 10, 5), list]);
    assert_eq!(with(list(1, Freshness::Any)), Vec::<String>::new());
    assert!(with(list(0, Freshness::Any))[0].contains("too old"));
    assert!(with(list(1, Freshness::NotOlderThan(5)))[0].contains("too old"));
    assert_eq!(with(list(1, Freshness::Exactly(4))), Vec::<String>::new());
    assert!(with(list(1, Freshness::Exactly(3)))[0].contains("too old"));
}

#[test]
fn long_histories_with_many_unanswered_writes_are_judged() {
    let complete = |history: &History| history.watches.iter().any(Watch::is_complete);
    let mut histories = (0..).map(|seed| fake::history(seed, 4000));
    let history = histories.find(complete).expect("every other one");
    let unanswered = history
        .operations
        .iter()
        .filter(|operation| operation.answer.is_none());
    assert!(unanswered.count() > 100);
    assert_eq!(judge(&history).violations, Vec::<String>::new());
}
