use super::*;
use pointsman_model::{Dated, Revision};
use pointsman_protocol::watermark::Progress;
use proptest::prelude::*;

const MS: i64 = 1000;

fn at(millis: i64) -> Moment {
    Moment(millis * MS)
}

fn mark(slices: u64) -> Watermark {
    Watermark {
        services: None,
        slices: Some(Revision(slices)),
    }
}

fn report(slices: u64, millis: i64) -> Report {
    let mark = mark(slices);
    Report {
        generation: 1,
        progress: Progress {
            received: mark,
            planned: mark,
            committed: mark,
        },
        time: at(millis),
    }
}

fn slice(revision: u64, millis: i64) -> NewChange {
    NewChange {
        resource: Resource::Slices,
        revision,
        service: "default/web".into(),
        kind: Kind::Ready,
        pod: None,
        triggered: None,
        dated: Dated::Exact,
        api: None,
        written: at(millis),
    }
}

/// Programmers that have written what there was before.
fn fold_of(count: usize) -> (Fold, Vec<ProgrammerId>) {
    let mut fold = Fold::new(Limits::default());
    let ids: Vec<_> = (0..count).map(|n| fold.join(&format!("n{n}"), at(0))).collect();
    for id in &ids {
        fold.report(*id, report(1, 0), at(0)).unwrap();
    }
    (fold, ids)
}

fn newest(fold: &Fold) -> Change {
    fold.changes(Resource::Slices).next_back().unwrap().clone()
}

#[test]
fn a_change_is_stamped_as_it_reaches_half_most_and_all() {
    let (mut fold, ids) = fold_of(4);
    fold.change(slice(10, 100));
    for (n, id) in ids.iter().enumerate() {
        let millis = 110 + 10 * n as i64;
        fold.report(*id, report(10, millis), at(millis + 1)).unwrap();
    }
    let change = newest(&fold);
    assert_eq!((change.reached, change.of), (4, 4));
    assert_eq!(change.half, Some(at(120)));
    assert_eq!((change.most, change.all), (Some(at(140)), Some(at(140))));
    let done = fold.drain_done();
    let done: Vec<Milestone> = done.into_iter().map(|(what, _)| what).collect();
    assert_eq!(done, [Milestone::Most, Milestone::All]);
    assert_eq!(fold.lowest(Resource::Slices), Some(10));
}

#[test]
fn a_programmer_answers_for_what_changed_after_its_first_mark() {
    let mut fold = Fold::new(Limits::default());
    let id = fold.join("n1", at(0));
    fold.change(slice(10, 100));
    // kube-proxy wrote the rules, and no collector could ask it. Then ours takes over: first it says that it is there.
    fold.report(id, report(0, 148_000), at(148_000)).unwrap();
    fold.report(id, report(10, 148_500), at(148_500)).unwrap();
    assert_eq!(fold.open().count(), 0, "it has the change");
    assert_eq!(fold.drain_done(), [], "and nobody knows since when");
    fold.change(slice(11, 149_000));
    fold.report(id, report(11, 149_002), at(149_002)).unwrap();
    assert_eq!(newest(&fold).most, Some(at(149_002)));
    // What changes while it starts again waits for it, however long.
    let restarted = Report {
        generation: 2,
        ..report(0, 150_000)
    };
    fold.report(id, restarted, at(150_000)).unwrap();
    fold.change(slice(12, 150_100));
    let back = Report {
        generation: 2,
        ..report(12, 155_000)
    };
    fold.report(id, back, at(155_000)).unwrap();
    assert_eq!(newest(&fold).most, Some(at(155_000)));
}

#[test]
fn programmers_may_be_faster_than_our_own_watch() {
    let (mut fold, ids) = fold_of(2);
    for id in &ids {
        fold.report(*id, report(10, 105), at(106)).unwrap();
    }
    fold.change(slice(10, 120));
    assert_eq!(newest(&fold).all, Some(at(105)));
    let done = fold.drain_done();
    let done: Vec<Milestone> = done.into_iter().map(|(what, _)| what).collect();
    assert_eq!(done, [Milestone::Most, Milestone::All]);
}

#[test]
fn the_one_behind_is_named_with_the_stage_it_waits_in() {
    let (mut fold, ids) = fold_of(3);
    fold.change(slice(10, 100));
    fold.report(ids[0], report(10, 101), at(101)).unwrap();
    let stages = [
        (9, 9, Stage::Watch),
        (10, 9, Stage::Plan),
        (10, 10, Stage::Kernel),
    ];
    for (received, planned, expected) in stages {
        let mut line = report(9, 150);
        line.progress.received = mark(received);
        line.progress.planned = mark(planned);
        fold.report(ids[1], line, at(150)).unwrap();
        fold.report(ids[2], report(10, 150), at(150)).unwrap();
        let lags = fold.lagging(at(1000), Duration::from_millis(100));
        assert_eq!((lags.len(), lags[0].name, lags[0].stage), (1, "n1", expected));
        assert_eq!(lags[0].missing.unwrap().what.revision, 10);
    }
    assert_eq!(fold.behind(Resource::Slices, 10, 5), ["n1"]);
    assert_eq!(fold.lagging(at(9_000), Duration::ZERO)[0].stage, Stage::Silent);
}

#[test]
fn lines_that_cannot_be_true_change_nothing() {
    let (mut fold, ids) = fold_of(1);
    fold.change(slice(100, 0));
    fold.report(ids[0], report(100, 5), at(5)).unwrap();
    let older = Report {
        generation: 0,
        ..report(200, 6)
    };
    assert_eq!(fold.report(ids[0], older, at(6)), Err(Fault::Stale));
    assert_eq!(fold.report(ids[0], report(99, 6), at(6)), Err(Fault::Backwards));
    assert_eq!(
        fold.report(ids[0], report(u64::MAX, 6), at(6)),
        Err(Fault::Future)
    );
    assert_eq!(fold.lowest(Resource::Slices), Some(100));
    let programmer = fold.programmer(ids[0]).unwrap();
    assert_eq!((programmer.faults, programmer.last_seen), (3, at(5)));
}

#[test]
fn a_restarted_programmer_begins_anew() {
    let (mut fold, ids) = fold_of(2);
    fold.change(slice(10, 0));
    fold.report(ids[0], report(10, 5), at(5)).unwrap();
    let restarted = Report {
        generation: 2,
        ..report(0, 6)
    };
    fold.report(ids[0], restarted, at(6)).unwrap();
    assert_eq!(newest(&fold).reached, 0);
    let again = Report {
        generation: 2,
        ..report(12, 7)
    };
    fold.report(ids[0], again, at(7)).unwrap();
    assert_eq!(newest(&fold).reached, 1);
}

/// A fold of programmers on nodes that are reachable, one of which then says nothing for `silent_for` seconds
/// while the others take in a change. Returns the fold, the silent one and the present.
fn one_silent_of(count: usize, silent_for: i64) -> (Fold, ProgrammerId, Moment) {
    let (mut fold, ids) = fold_of(count);
    for id in &ids {
        fold.set_node(*id, NodeState::Reachable);
        fold.report(*id, report(9, 0), at(0)).unwrap();
    }
    fold.change(slice(10, 1));
    let now = silent_for * 1000;
    for millis in (0..=now).step_by(1000) {
        for id in &ids[1..] {
            fold.report(*id, report(10, 5), at(millis)).unwrap();
        }
        fold.review(at(millis));
    }
    (fold, ids[0], at(now))
}

#[test]
fn a_silent_programmer_of_a_reachable_node_stays_behind() {
    for (count, silent_for) in [(2, 33), (100, 33), (100, 3600)] {
        let (mut fold, silent, now) = one_silent_of(count, silent_for);
        assert_eq!(fold.counted(), count, "of {count} for {silent_for} s");
        let lags = fold.lagging(now, Duration::from_millis(250));
        assert_eq!(
            (lags.len(), lags[0].name, lags[0].stage),
            (1, "n0", Stage::Silent)
        );
        assert_eq!(fold.lowest(Resource::Slices), Some(9));
        assert_eq!(
            fold.lowest_punctual(Resource::Slices),
            Some(10),
            "gates do not wait long"
        );
        assert_eq!(fold.behind(Resource::Slices, 10, 5), ["n0"]);
        let states = State::ALL.map(|state| fold.in_state(state, now));
        assert_eq!(states, [1, 0, 0, count - 1]);
        assert_eq!((newest(&fold).all, newest(&fold).of), (None, count));
        // It speaks again: what it has counts, and so does what it lacks.
        fold.report(silent, report(9, 0), now).unwrap();
        assert_eq!(fold.lagging(now, Duration::ZERO)[0].stage, Stage::Watch);
        fold.report(silent, report(10, silent_for * 1000), now).unwrap();
        assert!(newest(&fold).all.is_some());
        assert_eq!(fold.in_state(State::Live, now), count);
        assert_eq!(fold.lowest_punctual(Resource::Slices), Some(10));
    }
}

#[test]
fn a_change_that_99_of_100_have_is_a_sample_although_one_is_silent() {
    let (mut fold, silent, now) = one_silent_of(100, 33);
    let done = |fold: &mut Fold| -> Vec<Milestone> {
        let done = fold.drain_done();
        done.into_iter().map(|(what, _)| what).collect()
    };
    assert_eq!(done(&mut fold), [Milestone::Most]);
    fold.report(silent, report(10, 33_000), now).unwrap();
    assert_eq!(done(&mut fold), [Milestone::All]);
}

#[test]
fn a_silent_programmer_stops_counting_when_its_node_is_unreachable_and_counts_again_with_it() {
    let (mut fold, silent, now) = one_silent_of(3, 33);
    fold.set_node(silent, NodeState::Unreachable);
    fold.review(now);
    assert_eq!((fold.counted(), fold.in_state(State::Unreachable, now)), (2, 1));
    assert_eq!((newest(&fold).all.is_some(), newest(&fold).of), (true, 2));
    assert!(fold.lagging(now, Duration::ZERO).is_empty());
    // The node is back before its proxy: nothing that is done is opened again, what comes waits for it.
    fold.set_node(silent, NodeState::Reachable);
    fold.review(now);
    fold.change(slice(11, 40_000));
    assert_eq!((fold.counted(), newest(&fold).of), (3, 3));
    assert_eq!(fold.behind(Resource::Slices, 11, 5).len(), 3);
    // One that speaks counts, whatever its node is said to be.
    fold.set_node(silent, NodeState::Unreachable);
    fold.report(silent, report(11, 40_000), at(40_000)).unwrap();
    fold.review(at(40_000));
    assert_eq!(fold.counted(), 3);
}

#[test]
fn one_that_only_a_relay_knows_is_waited_for_a_while_and_then_no_longer() {
    let (mut fold, ids) = fold_of(3);
    fold.change(slice(10, 0));
    for id in &ids[..2] {
        fold.report(*id, report(10, 20_000), at(20_000)).unwrap();
    }
    fold.review(at(29_000));
    assert_eq!(newest(&fold).all, None);
    fold.review(at(31_000));
    let change = newest(&fold);
    assert_eq!((change.all, change.of), (Some(at(20_000)), 2));
    // It comes back with everything: nothing that is done is opened again.
    fold.report(ids[2], report(10, 40_000), at(40_000)).unwrap();
    assert_eq!((fold.counted(), newest(&fold).of), (3, 2));
}

#[test]
fn one_that_talks_and_never_advances_is_stalled_also_if_it_restarts_again_and_again() {
    for restarts in [false, true] {
        let (mut fold, ids) = fold_of(2);
        let line = |slices, second: i64| Report {
            generation: if restarts { second + 1 } else { 1 },
            ..report(slices, 0)
        };
        for second in 0..100 {
            let now = at(second * 1000);
            // A new change every second, so that the oldest ones are soon no longer kept.
            fold.change(slice(10 + second as u64, second * 1000));
            fold.report(ids[0], line(10 + second as u64, second), now)
                .unwrap();
            fold.report(ids[1], line(9, second), now).unwrap();
            fold.review(now);
            let expected = if second <= 30 { State::Live } else { State::Stalled };
            let states: Vec<State> = fold.programmers().map(|it| it.state(now)).collect();
            assert_eq!(states, [State::Live, expected], "after {second} s");
            let punctual = if second <= 30 { 9 } else { 10 + second as u64 };
            assert_eq!(fold.lowest_punctual(Resource::Slices), Some(punctual));
            assert_eq!(fold.lowest(Resource::Slices), Some(9));
        }
        // Any progress ends it, though it is still behind.
        fold.report(ids[1], line(50, 100), at(100_000)).unwrap();
        assert_eq!(fold.in_state(State::Live, at(100_000)), 2);
        assert_eq!(fold.lowest_punctual(Resource::Slices), Some(50));
    }
}

#[test]
fn clocks_are_corrected_and_times_from_the_future_are_cut() {
    let (mut fold, ids) = fold_of(2);
    fold.set_clock(ids[0], 60_000 * MS);
    fold.change(slice(10, 1_000));
    fold.report(ids[0], report(10, 61_010), at(1_020)).unwrap();
    assert_eq!(newest(&fold).half, Some(at(1_010)));
    fold.report(ids[1], report(10, 99_000), at(1_030)).unwrap();
    assert_eq!(newest(&fold).all, Some(at(1_030)));
}

#[test]
fn shares_are_of_all_programmers_that_count() {
    let (mut fold, ids) = fold_of(200);
    for (n, id) in ids.iter().enumerate() {
        fold.report(*id, report(n as u64 + 1, 1), at(1)).unwrap();
    }
    assert_eq!(fold.reached_by(Resource::Slices, 1.0), Some(1));
    assert_eq!(fold.reached_by(Resource::Slices, 0.99), Some(3));
    assert_eq!(fold.reached_by(Resource::Slices, 0.5), Some(101));
}

#[test]
fn the_ring_is_bounded_and_counts_what_it_lost() {
    let mut fold = Fold::new(Limits {
        changes: 10,
        ..Limits::default()
    });
    fold.join("n0", at(0));
    for revision in 1..=25 {
        fold.change(slice(revision, 0));
    }
    assert_eq!((fold.changes(Resource::Slices).count(), fold.evicted()), (10, 15));
}

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Leave(usize),
    Report(usize, u64, i64),
    Change(u64),
    Node(usize, NodeState),
    Review(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0..6usize).prop_map(Step::Join),
        1 => (0..6usize).prop_map(Step::Leave),
        8 => (0..6usize, 0..40u64, 1..3i64).prop_map(|(who, mark, generation)| Step::Report(who, mark, generation)),
        6 => (1..40u64).prop_map(Step::Change),
        1 => (0..6usize, prop::sample::select(vec![NodeState::Reachable, NodeState::Unreachable]))
            .prop_map(|(who, node)| Step::Node(who, node)),
        2 => (0..40_000i64).prop_map(Step::Review),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn counts_are_those_of_a_plain_recount(steps in steps()) {
        let mut fold = Fold::new(Limits { unknown_for: Duration::from_millis(30), ..Limits::default() });
        let mut now = 0;
        for step in steps {
            now += 5;
            match step {
                Step::Join(who) => { fold.join(&who.to_string(), at(now)); }
                Step::Leave(who) => if let Some(id) = fold.id(&who.to_string()) { fold.leave(id) },
                Step::Report(who, mark, generation) => if let Some(id) = fold.id(&who.to_string()) {
                    let _ = fold.report(id, Report { generation, ..report(mark, now) }, at(now));
                },
                Step::Change(revision) => { fold.change(slice(revision, now)); }
                Step::Node(who, node) => if let Some(id) = fold.id(&who.to_string()) {
                    fold.set_node(id, node);
                },
                Step::Review(passed) => {
                    now += passed;
                    fold.review(at(now));
                }
            }
            let marks = |of: &dyn Fn(&Programmer) -> bool| -> Vec<u64> {
                let chosen = fold.programmers().filter(|programmer| programmer.counted && of(programmer));
                chosen.map(|programmer| programmer.mark(Resource::Slices)).collect()
            };
            let counted = marks(&|_| true);
            let punctual = marks(&|programmer| !programmer.overdue);
            prop_assert_eq!(fold.counted(), counted.len());
            prop_assert_eq!(fold.lowest(Resource::Slices), counted.iter().min().copied());
            prop_assert_eq!(fold.lowest_punctual(Resource::Slices), punctual.iter().min().copied());
            let mut last = 0;
            for change in fold.changes(Resource::Slices) {
                prop_assert!(change.what.revision > last);
                last = change.what.revision;
                if change.all.is_none() {
                    let reached = counted.iter().filter(|mark| **mark >= change.what.revision).count();
                    prop_assert_eq!(change.reached, reached);
                    prop_assert!(counted.is_empty() || reached < counted.len(), "{:?}", change);
                }
            }
        }
    }
}
