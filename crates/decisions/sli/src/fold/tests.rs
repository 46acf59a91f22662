use super::*;
use pointsman_model::Revision;
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
        api: None,
        written: at(millis),
    }
}

fn fold_of(count: usize) -> (Fold, Vec<ProgrammerId>) {
    let mut fold = Fold::new(Limits::default());
    let ids = (0..count).map(|n| fold.join(&format!("n{n}"), at(0))).collect();
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
    assert_eq!(fold.drain_done().len(), 1);
    assert_eq!(fold.lowest(Resource::Slices), Some(10));
}

#[test]
fn programmers_may_be_faster_than_our_own_watch() {
    let (mut fold, ids) = fold_of(2);
    for id in &ids {
        fold.report(*id, report(10, 105), at(106)).unwrap();
    }
    fold.change(slice(10, 120));
    assert_eq!(newest(&fold).all, Some(at(105)));
    assert_eq!(fold.drain_done().len(), 1);
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

#[test]
fn who_hangs_is_waited_for_a_while_and_then_no_longer() {
    let (mut fold, ids) = fold_of(3);
    fold.change(slice(10, 0));
    for id in &ids[..2] {
        fold.report(*id, report(10, 20_000), at(20_000)).unwrap();
    }
    assert_eq!(fold.expire(at(29_000)), 0);
    assert_eq!(newest(&fold).all, None);
    assert_eq!(fold.expire(at(31_000)), 1);
    let change = newest(&fold);
    assert_eq!((change.all, change.of), (Some(at(20_000)), 2));
    // It comes back with everything: nothing that is done is opened again.
    fold.report(ids[2], report(10, 40_000), at(40_000)).unwrap();
    assert_eq!((fold.live(), newest(&fold).of), (3, 2));
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
fn shares_are_of_all_live_programmers() {
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
    Tick,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0..6usize).prop_map(Step::Join),
        1 => (0..6usize).prop_map(Step::Leave),
        8 => (0..6usize, 0..40u64, 1..3i64).prop_map(|(who, mark, generation)| Step::Report(who, mark, generation)),
        6 => (1..40u64).prop_map(Step::Change),
        1 => Just(Step::Tick),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn counts_are_those_of_a_plain_recount(steps in steps()) {
        let mut fold = Fold::new(Limits { live_for: Duration::from_millis(30), ..Limits::default() });
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
                Step::Tick => { fold.expire(at(now)); }
            }
            let live: Vec<u64> = fold
                .programmers()
                .filter(|programmer| programmer.live)
                .map(|programmer| programmer.report.progress.committed.of(Resource::Slices))
                .collect();
            prop_assert_eq!(fold.live(), live.len());
            prop_assert_eq!(fold.lowest(Resource::Slices), live.iter().min().copied());
            let mut last = 0;
            for change in fold.changes(Resource::Slices) {
                prop_assert!(change.what.revision > last);
                last = change.what.revision;
                if change.all.is_none() {
                    let reached = live.iter().filter(|mark| **mark >= change.what.revision).count();
                    prop_assert_eq!(change.reached, reached);
                    prop_assert!(live.is_empty() || reached < live.len(), "{:?}", change);
                }
            }
        }
    }
}
