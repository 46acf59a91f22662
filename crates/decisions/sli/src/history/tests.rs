use super::*;
use crate::fold::{Fold, Kind, Lag, Limits, NewChange};
use pointsman_model::Dated;
use pointsman_protocol::watermark::Resource;
use proptest::prelude::*;

fn at(millis: i64) -> Moment {
    Moment(millis * 1000)
}

/// A change that began at a moment and took so many milliseconds to the API, its slice, half and all kernels.
pub(crate) fn change(revision: u64, began: i64, took: [i64; 4]) -> Change {
    let mut at_ms = began;
    let [api, written, half, all] = took.map(|part| {
        at_ms += part;
        at(at_ms)
    });
    Change {
        what: NewChange {
            resource: Resource::Slices,
            revision,
            service: "default/web".into(),
            kind: Kind::Ready,
            pod: None,
            triggered: Some(at(began)),
            dated: Dated::Exact,
            api: Some(api),
            written,
        },
        reached: 1,
        of: 1,
        earliest: Some(half),
        latest: Some(all),
        last: None,
        commits: Vec::new(),
        half: Some(half),
        most: Some(all),
        all: Some(all),
    }
}

fn impact<'a>(node: &'a str, changes: usize) -> Impact<'a> {
    Impact {
        worst: Lag {
            name: node,
            stage: Stage::Silent,
            missing: None,
            last_seen: at(0),
        },
        nodes: 1,
        changes,
        services: ["default/web"].into(),
        waiting: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_parts_of_a_way_add_up_to_the_whole(
        took in prop::array::uniform4(0i64..5_000),
        api in any::<bool>(),
        earlier in 0i64..4_000,
    ) {
        let mut change = change(1, 1_000_000, took);
        if !api {
            change.what.api = None;
        }
        // A kernel may have it before our own watch shows it.
        change.earliest = change.earliest.map(|at| Moment(at.0 - earlier * 1000));
        let sum: Duration = parts(&change).unwrap().iter().map(|(_, took)| *took).sum();
        prop_assert_eq!(Some(sum), latency(&change));
    }
}

#[test]
fn each_step_keeps_its_slowest_changes_and_two_hours_of_steps() {
    let mut history = History::default();
    for step in 0..1000i64 {
        for n in 0..50 {
            let took = (n * 37) % 50;
            history.done(
                &change(step as u64 * 100 + n as u64, step * 15_000, [1, 1, 1, took]),
                at(step * 15_000),
            );
        }
        history.step(at(step * 15_000), None);
    }
    assert_eq!(history.points().len(), POINTS);
    let last = history.points().last().unwrap();
    assert_eq!(last.changes, 50);
    let slowest: Vec<u128> = last
        .slowest
        .iter()
        .map(|it| latency(it).unwrap().as_millis())
        .collect();
    assert_eq!(slowest, [52, 51, 50, 49]);
    assert_eq!(history.slowest().count(), POINTS * SLOWEST);
    let spread = history.spread(Part::Api, at(999 * 15_000)).unwrap();
    assert!(
        spread.p99 >= Duration::from_millis(1) && spread.p99 < Duration::from_micros(1200),
        "{spread:?}"
    );
}

#[test]
fn an_incident_lasts_until_nobody_is_behind_and_keeps_its_worst() {
    let mut history = History::default();
    history.observe(Some(&impact("n1", 1)), at(0));
    history.observe(Some(&impact("n2", 7)), at(1_000));
    history.observe(Some(&impact("n1", 2)), at(2_000));
    history.observe(None, at(3_000));
    history.observe(None, at(4_000));
    let first: Vec<&Incident> = history.incidents().collect();
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].from, first[0].to), (at(0), Some(at(3_000))));
    assert_eq!(
        (&*first[0].node, first[0].changes, first[0].services),
        ("n2", 7, 1)
    );
    // Soon again is the same incident; later is another.
    history.observe(Some(&impact("n2", 1)), at(5_000));
    history.observe(None, at(6_000));
    assert_eq!(history.incidents().count(), 1);
    history.observe(Some(&impact("n2", 1)), at(60_000));
    assert_eq!(history.incidents().count(), 2);
}

#[test]
fn many_blinks_do_not_push_a_long_outage_out() {
    let mut history = History::default();
    history.observe(Some(&impact("long", 9)), at(0));
    history.observe(None, at(600_000));
    for blink in 0..200 {
        let from = 1_000_000 + blink * 10_000;
        history.observe(Some(&impact("blink", 1)), at(from));
        history.observe(None, at(from + 250));
    }
    assert_eq!(history.incidents().count(), INCIDENTS);
    assert_eq!(&*history.incidents().next().unwrap().node, "long");
    // What is older than the oldest point goes.
    for step in 0..=POINTS as i64 {
        history.step(at(10_000_000 + step * 15_000), None);
    }
    assert_eq!(history.incidents().count(), 0);
}

#[test]
fn each_node_knows_how_long_it_took_whatever_the_size_of_the_cluster() {
    use pointsman_model::Revision;
    use pointsman_protocol::watermark::{Progress, Report, Watermark};
    let report = |slices: u64, millis: i64| {
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
    };
    let mut fold = Fold::new(Limits::default());
    let ids: Vec<_> = (0..100).map(|n| fold.join(&format!("n{n}"), at(0))).collect();
    for id in &ids {
        fold.report(*id, report(1, 0), at(0)).unwrap();
    }
    fold.change(change(10, 100, [0; 4]).what);
    for (n, id) in ids.iter().enumerate() {
        let millis = if n == 7 { 900 } else { 110 };
        fold.report(*id, report(10, millis), at(millis)).unwrap();
    }
    let done = fold.drain_done();
    let (_, last) = done.last().unwrap();
    assert_eq!(last.last, Some(ids[7]), "who was last is known");
    let p99 = |id| {
        fold.programmer(id)
            .unwrap()
            .took
            .quantiles(at(900))
            .unwrap()
            .p99
            .as_millis()
    };
    assert!((10..12).contains(&p99(ids[0])), "{}", p99(ids[0]));
    assert!((800..901).contains(&p99(ids[7])), "{}", p99(ids[7]));
}
