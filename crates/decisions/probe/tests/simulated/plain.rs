//! Probes without millisecond fields behave as the kubelet's do.

use crate::sim::{Sim, at, good_from};
use pointsman_probe::Kind::{Liveness, Readiness, Startup};
use pointsman_probe::{Notice, Outcome, Pace, Policy, Verdict};
use serde_json::json;

#[test]
fn defaults_are_ten_seconds_one_success_three_failures() {
    let mut sim = Sim::of(Readiness, json!({}), |now| {
        if now < 20_000 {
            Outcome::Success
        } else {
            Outcome::Failure
        }
    });
    sim.until(60_000);
    assert_eq!(
        sim.times(Readiness),
        [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    );
    assert_eq!(
        sim.verdicts,
        [
            (0, Readiness, Verdict::Success),
            (40_000, Readiness, Verdict::Failure)
        ]
    );
}

#[test]
fn zero_means_unset() {
    let zero = json!({"periodSeconds": 0, "timeoutSeconds": 0, "successThreshold": 0, "failureThreshold": 0});
    assert_eq!(
        crate::sim::timing(Readiness, &zero),
        crate::sim::timing(Readiness, &json!({}))
    );
}

#[test]
fn policies_change_nothing_about_whole_seconds() {
    for (_, policy) in Policy::NAMES {
        let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), good_from(1500));
        sim.pace = Pace {
            policy,
            ..Pace::default()
        };
        sim.until(4000);
        assert_eq!(sim.times(Readiness), [0, 1000, 2000, 3000, 4000]);
    }
}

#[test]
fn a_single_failure_between_successes_changes_nothing() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), |now| match now {
        3000 | 4000 | 6000 | 7000 => Outcome::Failure,
        _ => Outcome::Success,
    });
    sim.until(20_000);
    assert_eq!(sim.verdicts, [(0, Readiness, Verdict::Success)]);
}

#[test]
fn warnings_count_as_success_and_are_reported() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), |_| Outcome::Warning);
    sim.until(3000);
    assert_eq!(sim.verdicts, [(0, Readiness, Verdict::Success)]);
    assert_eq!(sim.effects[0].1.notice, Some(Notice::Warned));
}

#[test]
fn what_is_believed_before_the_first_check_depends_on_the_kind() {
    let delayed = json!({"initialDelaySeconds": 5});
    let probes = [Readiness, Liveness, Startup].map(|kind| (kind, delayed.clone()));
    let mut sim = Sim::new(&probes, |_, _| (Outcome::Success, 0));
    sim.start();
    let verdict = |kind| sim.container.probe(kind).map(|probe| probe.verdict());
    assert_eq!(verdict(Readiness), Some(Verdict::Failure));
    assert_eq!(verdict(Liveness), Some(Verdict::Success));
    assert_eq!(verdict(Startup), Some(Verdict::Unknown));
    assert!(!sim.container.is_started());
}

#[test]
fn a_slow_check_delays_the_next_and_missed_points_collapse_into_one() {
    // The second check takes 2.5 periods: two points of the grid are missed.
    let mut sim = Sim::new(&[(Readiness, json!({"periodSeconds": 1}))], |now, _| {
        (Outcome::Success, if now == 1000 { 2500 } else { 10 })
    });
    sim.start();
    sim.until(7000);
    assert_eq!(sim.times(Readiness), [0, 1000, 3500, 4000, 5000, 6000, 7000]);
}

#[test]
fn a_check_that_cannot_be_made_is_tried_three_times_and_then_left_out() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), |now| match now {
        1000 => Outcome::Errored,
        _ => Outcome::Success,
    });
    sim.until(2000);
    assert_eq!(sim.times(Readiness), [0, 1000, 1000, 1000, 2000]);
    let notices: Vec<_> = sim
        .effects
        .iter()
        .filter_map(|(_, effects)| effects.notice)
        .collect();
    assert_eq!(notices, [Notice::Errored]);
    assert_eq!(
        sim.effects.iter().filter(|(_, effects)| effects.counted).count(),
        2
    );
}

#[test]
fn errors_neither_count_nor_break_a_streak() {
    let outcomes = [
        Outcome::Failure,
        Outcome::Errored,
        Outcome::Failure,
        Outcome::Errored,
        Outcome::Failure,
    ];
    let mut sim = Sim::of(Liveness, json!({"periodSeconds": 1}), move |now| {
        outcomes[(now / 1000) as usize]
    });
    sim.until(4000);
    assert_eq!(sim.verdicts, [(4000, Liveness, Verdict::Failure)]);
}

#[test]
fn a_lasting_failure_is_reported_at_once_and_then_every_ten_seconds() {
    let mut sim = Sim::of(
        Readiness,
        json!({"periodSeconds": 1, "periodMilliseconds": -800}),
        |_| Outcome::Failure,
    );
    sim.until(25_000);
    let notices: Vec<u64> = sim
        .effects
        .iter()
        .filter(|(_, effects)| effects.notice.is_some())
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(notices, [0, 10_000, 20_000]);
}

#[test]
fn a_poke_checks_now_and_restarts_the_period() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 10}), good_from(4000));
    sim.until(4500);
    sim.container.poke(at(4500));
    sim.until(25_000);
    assert_eq!(sim.times(Readiness), [0, 4500, 14_500, 24_500]);
    // A probe that says success is left alone.
    sim.container.poke(at(25_000));
    sim.until(30_000);
    assert_eq!(sim.times(Readiness).len(), 4);
}

#[test]
fn pokes_respect_the_initial_delay_and_the_floor() {
    let mut sim = Sim::of(Readiness, json!({"initialDelaySeconds": 5}), |_| Outcome::Failure);
    for now in (0..6000).step_by(10) {
        sim.until(now);
        sim.container.poke(at(now));
    }
    sim.until(6000);
    assert_eq!(sim.times(Readiness), [5000, 5200, 5400, 5600, 5800, 6000]);
}
