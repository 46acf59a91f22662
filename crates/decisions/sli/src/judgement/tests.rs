use super::*;
use crate::fold::{Kind, Limits, NewChange, NodeState, ProgrammerId, State};
use crate::measure::Measure;
use pointsman_model::{Dated, Revision};
use pointsman_protocol::watermark::{Progress, Report, Resource, Watermark};
use proptest::prelude::*;

const CALM: Circumstances = Circumstances {
    listed: true,
    waiting: 0,
};

fn at(millis: i64) -> Moment {
    Moment(millis * 1000)
}

fn report(slices: u64, millis: i64) -> Report {
    let mark = Watermark {
        services: None,
        slices: Some(Revision(slices)),
    };
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

fn slice(revision: u64, triggered: i64, seen: i64) -> NewChange {
    NewChange {
        resource: Resource::Slices,
        revision,
        service: "default/web".into(),
        kind: Kind::Ready,
        pod: None,
        triggered: Some(at(triggered)),
        dated: Dated::Exact,
        api: Some(at(seen)),
        written: at(seen),
    }
}

fn fold_of(count: usize) -> (Fold, Vec<ProgrammerId>) {
    let mut fold = Fold::new(Limits::default());
    let ids: Vec<ProgrammerId> = (0..count).map(|n| fold.join(&format!("n{n}"), at(0))).collect();
    for id in &ids {
        fold.set_node(*id, NodeState::Reachable);
        fold.report(*id, report(1, 0), at(0)).unwrap();
    }
    (fold, ids)
}

#[test]
fn an_outage_shows_in_the_percentile_before_it_ends() {
    let (mut fold, ids) = fold_of(2);
    let mut measure = Measure::new(None, at(0));
    for n in 0..20 {
        measure.reached_most(Duration::from_millis(5), at(n));
    }
    fold.change(slice(10, 1_000, 1_002));
    fold.report(ids[0], report(10, 1_004), at(1_004)).unwrap();
    let p99 = |fold: &Fold, now| {
        let unfinished = judge(fold, CALM, now).unfinished;
        let exact = measure.exact(now, 2, &unfinished);
        (
            exact.p99.unwrap().high.unwrap(),
            measure.pooled(now, &unfinished).samples,
        )
    };
    // What is on its way for a moment is no outage yet.
    assert_eq!(p99(&fold, at(1_100)), (Duration::from_millis(5), 0));
    assert_eq!(p99(&fold, at(11_000)), (Duration::from_secs(10), 1));
    assert_eq!(p99(&fold, at(34_000)), (Duration::from_secs(33), 1), "it grows");
}

#[test]
fn the_day_knows_of_an_outage_that_lasts() {
    let (mut fold, _) = fold_of(1);
    let mut measure = Measure::new(None, at(0));
    fold.change(slice(10, 1_000, 1_002));
    let now = at(61_000);
    measure.tick(now, &judge(&fold, CALM, now).unfinished);
    assert_eq!(measure.day().figure().unwrap().low, Duration::from_secs(60));
}

#[test]
fn a_stage_never_ends_after_a_later_one() {
    let (mut fold, ids) = fold_of(2);
    // Both kernels have the change before our own watch delivers it.
    fold.report(ids[0], report(10, 1_003), at(1_003)).unwrap();
    fold.report(ids[1], report(10, 1_005), at(1_005)).unwrap();
    fold.change(slice(10, 1_000, 1_009));
    let change = fold.changes(Resource::Slices).next_back().unwrap();
    let stages = [
        change.began(),
        change.api().unwrap(),
        change.written(),
        change.half.unwrap(),
        change.all.unwrap(),
    ];
    assert!(stages.is_sorted(), "{stages:?}");
    assert_eq!(
        change.written(),
        at(1_003),
        "the slice was written before the first kernel had it"
    );
}

#[test]
fn a_change_on_its_way_is_not_everywhere_in_the_headline_either() {
    let (mut fold, ids) = fold_of(1);
    assert_eq!(judge(&fold, CALM, at(1_000)).level, Level::Ok);
    fold.change(slice(10, 1_000, 1_002));
    let judgement = judge(&fold, CALM, at(1_010));
    assert_eq!((judgement.level, judgement.open.len()), (Level::Busy, 1));
    assert!(judgement.services().contains("default/web"));
    let judgement = judge(&fold, CALM, at(1_400));
    assert_eq!((judgement.level, judgement.behind.len()), (Level::Behind, 1));
    fold.report(ids[0], report(10, 1_500), at(1_500)).unwrap();
    assert_eq!(judge(&fold, CALM, at(1_500)).level, Level::Ok);
    let waiting = Circumstances { waiting: 1, ..CALM };
    assert_eq!(judge(&fold, waiting, at(1_500)).level, Level::Busy);
    let unlisted = Circumstances {
        listed: false,
        ..CALM
    };
    assert_eq!(judge(&fold, unlisted, at(1_500)).level, Level::Unknown);
}

proptest! {
    #[test]
    fn no_part_of_a_judgement_contradicts_another(
        steps in prop::collection::vec((0usize..3, 0u64..40, 0i64..6_000), 1..60),
        waiting in 0usize..2,
    ) {
        let (mut fold, ids) = fold_of(3);
        let (mut now, mut revision) = (0, 1);
        for (who, ahead, wait) in steps {
            now += wait;
            if ahead < 10 {
                revision += 1;
                fold.change(slice(revision, now - 3, now));
            } else {
                // A line that cannot be true is not believed, and changes nothing.
                let _ = fold.report(ids[who], report(revision.saturating_sub(ahead % 3), now), at(now));
            }
            fold.review(at(now));
            let judgement = judge(&fold, Circumstances { listed: true, waiting }, at(now));
            let calm = judgement.open.is_empty() && judgement.behind.is_empty() && waiting == 0;
            prop_assert_eq!(judgement.level == Level::Ok, calm);
            prop_assert_eq!(judgement.level == Level::Behind, !judgement.behind.is_empty());
            for programmer in fold.programmers() {
                let silent = programmer.state(at(now)) != State::Live;
                prop_assert!(!silent || judgement.is_behind(programmer), "{:?}", programmer);
            }
            for change in &judgement.open {
                prop_assert!(change.reached < change.of);
                prop_assert!(!fold.behind(change.what.resource, change.what.revision, 9).is_empty());
            }
            for change in fold.changes(Resource::Slices) {
                let stages = [Some(change.began()), change.api(), Some(change.written()), change.half, change.most, change.all];
                let known: Vec<Moment> = stages.into_iter().flatten().map(|it| it.max(change.began())).collect();
                prop_assert!(known.is_sorted(), "{:?}", change);
            }
        }
    }
}
