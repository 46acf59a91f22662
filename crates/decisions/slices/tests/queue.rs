//! The work queue's promises.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::service_with;
use pointsman_model::Moment;
use pointsman_slices::Settings;
use pointsman_slices::controller::{Controller, Event, Now};
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use proptest::prelude::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn queue(batch_millis: u64) -> WorkQueue<&'static str> {
    WorkQueue::new(Pace {
        batch_period: ms(batch_millis),
        ..Pace::default()
    })
}

#[test]
fn a_lone_change_is_handed_out_at_once() {
    let mut queue = queue(0);
    queue.add_batched(&"a", ms(5));
    assert_eq!(queue.next(ms(5)), Some("a"));
    assert_eq!(queue.next(ms(5)), None);
}

#[test]
fn changes_during_a_write_are_merged_into_one_more_round() {
    let mut queue = queue(0);
    queue.add(&"a", ms(0));
    assert_eq!(queue.next(ms(0)), Some("a"));
    for millis in 1..50 {
        queue.add(&"a", ms(millis));
        assert_eq!(queue.next(ms(millis)), None, "one handling at a time");
    }
    queue.finish(&"a", Outcome::Done, ms(60));
    assert_eq!(queue.next(ms(60)), Some("a"));
    queue.finish(&"a", Outcome::Done, ms(70));
    assert_eq!((queue.next(ms(70)), queue.is_empty()), (None, true));
}

#[test]
fn case_48_the_batch_window_opens_with_the_first_change_and_does_not_slide() {
    let mut queue = queue(1000);
    queue.add_batched(&"a", ms(0));
    queue.add_batched(&"a", ms(900));
    assert_eq!(queue.next(ms(999)), None);
    assert_eq!(queue.wake_at(), Some(ms(1000)));
    assert_eq!(queue.next(ms(1000)), Some("a"));
    queue.finish(&"a", Outcome::Done, ms(1001));
    queue.add_batched(&"a", ms(1100));
    queue.add(&"a", ms(1200));
    assert_eq!(
        queue.next(ms(1200)),
        Some("a"),
        "an urgent change does not wait for the window"
    );
    assert_eq!(queue.wake_at(), None);
}

#[test]
fn failures_wait_longer_each_time_and_a_success_starts_over() {
    let mut queue = queue(0);
    queue.add(&"a", ms(0));
    let mut now = ms(0);
    let mut waits = Vec::new();
    for _ in 0..14 {
        assert_eq!(queue.next(now), Some("a"));
        queue.finish(&"a", Outcome::Retry, now);
        let due = queue.wake_at().expect("a retry is due");
        waits.push((due - now).as_millis());
        now = due;
    }
    assert_eq!(waits[..4], [50, 100, 200, 400]);
    assert_eq!(waits[13], 60_000);
    queue.add(&"a", now - ms(1));
    assert_eq!(
        queue.next(now - ms(1)),
        Some("a"),
        "a new change does not wait for the retry"
    );
    queue.finish(&"a", Outcome::Done, now);
    queue.add(&"a", now);
    queue.next(now);
    queue.finish(&"a", Outcome::Retry, now);
    assert_eq!(queue.wake_at(), Some(now + ms(50)));
}

#[test]
fn a_namespace_in_which_everything_changes_does_not_hold_up_another() {
    let mut controller = Controller::new(Settings::default(), Pace::default(), None);
    let now = Now {
        moment: Moment::from_seconds(1),
        tick: ms(0),
    };
    let mut change = |namespace: &str, index: usize| {
        let service = service_with(|s| {
            s["metadata"]["namespace"] = namespace.into();
            s["metadata"]["name"] = format!("svc{index:03}").into();
            s["metadata"]["uid"] = format!("{namespace}{index}").into();
        });
        controller.observe(Event::Service(Arc::new(service)), now);
    };
    (0..200).for_each(|index| change("ending", index));
    change("shop", 0);
    controller.observe(Event::Listed, now);
    let jobs: Vec<String> =
        std::iter::from_fn(|| controller.next(now).0.map(|job| job.key.to_string())).collect();
    assert_eq!(jobs[..3], ["ending/svc000", "shop/svc000", "ending/svc001"]);
    assert_eq!(jobs.len(), 201);
    assert!(
        jobs[2..].is_sorted(),
        "first come, first served within a namespace"
    );
}

#[derive(Clone, Debug)]
enum Op {
    Add(usize),
    AddBatched(usize),
    Next,
    Finish(usize, bool),
    Pass(u64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_is_lost_and_no_key_is_out_twice(
        batch in prop_oneof![Just(0u64), 1u64..100],
        ops in prop::collection::vec(prop_oneof![
            (0usize..4).prop_map(Op::Add),
            (0usize..4).prop_map(Op::AddBatched),
            Just(Op::Next),
            (0usize..4, any::<bool>()).prop_map(|(key, ok)| Op::Finish(key, ok)),
            (0u64..80).prop_map(Op::Pass),
        ], 0..120),
    ) {
        let mut queue = WorkQueue::new(Pace { batch_period: ms(batch), ..Pace::default() });
        // Keys changed since they were last handed out, and keys that are out.
        let mut dirty: BTreeMap<usize, bool> = BTreeMap::new();
        let mut out: BTreeSet<usize> = BTreeSet::new();
        let mut now = ms(0);
        for op in ops {
            match op {
                Op::Add(key) => { queue.add(&key, now); dirty.insert(key, true); }
                Op::AddBatched(key) => { queue.add_batched(&key, now); dirty.insert(key, true); }
                Op::Next => if let Some(key) = queue.next(now) {
                    prop_assert!(out.insert(key), "handed out twice");
                    prop_assert!(dirty.insert(key, false) == Some(true), "handed out for nothing");
                },
                Op::Finish(key, ok) => if out.remove(&key) {
                    queue.finish(&key, if ok { Outcome::Done } else { Outcome::Retry }, now);
                    if !ok { dirty.insert(key, true); }
                } else {
                    queue.finish(&key, Outcome::Done, now);
                },
                Op::Pass(millis) => now += ms(millis),
            }
        }
        for key in std::mem::take(&mut out) {
            queue.finish(&key, Outcome::Done, now);
        }
        now += Duration::from_secs(3600);
        let mut seen = BTreeSet::new();
        while let Some(key) = queue.next(now) {
            seen.insert(key);
            queue.finish(&key, Outcome::Done, now);
        }
        let expected: BTreeSet<usize> = dirty.iter().filter(|(_, dirty)| **dirty).map(|(key, _)| *key).collect();
        prop_assert_eq!(seen, expected);
        prop_assert!(queue.is_empty() && queue.wake_at().is_none());
    }
}
