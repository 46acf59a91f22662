//! Startup, restarts, holds, termination, and agents that restart.

use crate::sim::{Sim, at, good_from};
use pointsman_probe::Kind::{Liveness, Readiness, Startup};
use pointsman_probe::{Container, Outcome, Previous, Start, Verdict};
use serde_json::{Value, json};
use std::time::Duration;

fn each(probe: Value) -> [(pointsman_probe::Kind, Value); 3] {
    [Readiness, Liveness, Startup].map(|kind| (kind, probe.clone()))
}

#[test]
fn readiness_and_liveness_wait_for_startup() {
    let mut sim = Sim::new(
        &each(json!({"periodSeconds": 1, "failureThreshold": 30})),
        |now, kind| {
            let good = kind != Startup || now >= 4000;
            (if good { Outcome::Success } else { Outcome::Failure }, 5)
        },
    );
    sim.start();
    sim.until(6500);
    assert_eq!(sim.times(Startup), [0, 1000, 2000, 3000, 4000]);
    // Readiness does not wait for a period to pass; liveness keeps to its own grid.
    assert_eq!(sim.times(Readiness), [4005, 5005, 6005]);
    assert_eq!(sim.times(Liveness), [5000, 6000]);
    assert_eq!(
        sim.verdicts,
        [
            (4005, Startup, Verdict::Success),
            (4010, Readiness, Verdict::Success)
        ]
    );
}

#[test]
fn initial_delays_count_from_the_start_of_the_container_not_from_startup() {
    let probes = [
        (Startup, json!({"periodSeconds": 1})),
        (Readiness, json!({"initialDelaySeconds": 3})),
        (Liveness, json!({"initialDelaySeconds": 1})),
    ];
    let mut sim = Sim::new(&probes, |now, _| {
        (
            if now >= 2000 {
                Outcome::Success
            } else {
                Outcome::Failure
            },
            0,
        )
    });
    sim.start();
    sim.until(12_000);
    assert_eq!(sim.times(Readiness), [3000]);
    assert_eq!(sim.times(Liveness), [11_000]);
}

#[test]
fn a_failed_startup_holds_everything_until_the_container_restarts() {
    let mut sim = Sim::new(&each(json!({"periodSeconds": 1})), |now, _| {
        (
            if now >= 10_000 {
                Outcome::Success
            } else {
                Outcome::Failure
            },
            0,
        )
    });
    sim.start();
    sim.until(9000);
    assert_eq!(sim.verdicts, [(2000, Startup, Verdict::Failure)]);
    assert_eq!(sim.begun.len(), 3);
    sim.stop();
    sim.until(10_000);
    sim.start();
    sim.until(10_500);
    assert!(sim.container.is_ready());
}

#[test]
fn a_failed_liveness_probe_is_on_hold_until_the_container_restarts() {
    let mut sim = Sim::of(Liveness, json!({"periodSeconds": 1}), |now| {
        if now < 20_000 {
            Outcome::Failure
        } else {
            Outcome::Success
        }
    });
    sim.until(19_000);
    assert_eq!(sim.times(Liveness), [0, 1000, 2000]);
    assert_eq!(sim.verdicts, [(2000, Liveness, Verdict::Failure)]);
    sim.stop();
    sim.until(20_000);
    sim.start();
    sim.until(22_000);
    assert_eq!(sim.times(Liveness), [0, 1000, 2000, 20_000, 21_000, 22_000]);
}

#[test]
fn nothing_of_one_run_counts_in_the_next() {
    // Two of three failures before the restart, two after it: none is the third in a row.
    let mut sim = Sim::of(Liveness, json!({"periodSeconds": 1}), |now| {
        if now < 5000 {
            Outcome::Failure
        } else {
            Outcome::Success
        }
    });
    sim.until(1500);
    sim.stop();
    sim.until(3000);
    sim.start();
    sim.until(4500);
    assert_eq!(sim.verdicts, []);
    // Nor does one success make a container ready that has to succeed three times.
    let mut sim = Sim::of(
        Readiness,
        json!({"periodSeconds": 1, "successThreshold": 3}),
        good_from(0),
    );
    sim.until(2000);
    sim.stop();
    sim.until(3000);
    sim.start();
    sim.until(5000);
    assert_eq!(
        sim.verdicts,
        [
            (2000, Readiness, Verdict::Success),
            (2000, Readiness, Verdict::Failure),
            (5000, Readiness, Verdict::Success)
        ]
    );
}

#[test]
fn an_answer_about_the_run_before_is_ignored_and_never_overlaps_the_next_check() {
    let mut sim = Sim::new(&[(Readiness, json!({"periodSeconds": 1}))], |now, _| match now {
        0 => (Outcome::Success, 2500),
        _ => (Outcome::Failure, 0),
    });
    sim.start();
    sim.until(500);
    sim.stop();
    sim.start();
    sim.until(4000);
    assert_eq!(sim.verdicts, []);
    // The old check is still under way until 2500, so the first check of the new run waits for it.
    assert_eq!(sim.times(Readiness), [0, 2500, 3500]);
}

#[test]
fn a_stopped_container_is_not_ready_and_not_checked() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), good_from(0));
    sim.until(1500);
    sim.stop();
    sim.until(9000);
    assert_eq!(sim.times(Readiness), [0, 1000]);
    assert_eq!(sim.verdicts.last(), Some(&(1500, Readiness, Verdict::Failure)));
    assert!(!sim.container.is_ready());
}

#[test]
fn while_the_pod_terminates_only_readiness_is_asked() {
    let probes = [
        (Readiness, json!({"periodSeconds": 1})),
        (Liveness, json!({"periodSeconds": 1})),
    ];
    let mut sim = Sim::new(&probes, |now, _| {
        (
            if now < 3000 {
                Outcome::Success
            } else {
                Outcome::Failure
            },
            0,
        )
    });
    sim.start();
    sim.until(1500);
    sim.container.terminate();
    assert!(
        sim.container.is_ready(),
        "terminating alone does not make it unready"
    );
    sim.until(9000);
    assert_eq!(sim.times(Liveness), [0, 1000]);
    assert_eq!(
        sim.verdicts,
        [
            (0, Readiness, Verdict::Success),
            (5000, Readiness, Verdict::Failure)
        ]
    );
}

#[test]
fn a_pod_that_terminates_before_it_started_does_not_become_ready() {
    let mut sim = Sim::new(&each(json!({"periodSeconds": 1})), |_, kind| {
        (
            if kind == Startup {
                Outcome::Failure
            } else {
                Outcome::Success
            },
            0,
        )
    });
    sim.start();
    sim.until(500);
    sim.container.terminate();
    sim.until(9000);
    assert_eq!(sim.begun.len(), 1);
    assert!(!sim.container.is_ready());
}

#[test]
fn a_sidecar_keeps_its_liveness_probe_while_the_pod_terminates() {
    let timing = crate::sim::timing(Readiness, &json!({"periodSeconds": 1}));
    let mut sidecar = Container::new([(Liveness, timing)], true);
    sidecar.start(Start::default(), at(0));
    sidecar.terminate();
    assert_eq!(sidecar.due(Liveness), Some(at(0)));
}

fn found(ready: bool, started: bool, spread: f64) -> Start {
    Start {
        age: Duration::from_secs(300),
        previous: Some(Previous {
            ready,
            started,
            agent_age: Duration::from_secs(1),
            spread,
        }),
    }
}

#[test]
fn a_ready_container_found_by_a_new_agent_stays_ready_until_its_probe_fails() {
    let mut sim = Sim::new(&each(json!({"periodSeconds": 10})), |now, _| {
        (
            if now < 30_000 {
                Outcome::Success
            } else {
                Outcome::Failure
            },
            0,
        )
    });
    sim.container.start(found(true, true, 0.25), at(0));
    assert!(sim.container.is_ready());
    sim.until(52_600);
    assert!(sim.times(Startup).is_empty());
    assert_eq!(
        sim.times(Readiness),
        [2500, 12_500, 22_500, 32_500, 42_500, 52_500]
    );
    assert_eq!(
        sim.verdicts,
        [
            (52_500, Readiness, Verdict::Failure),
            (52_500, Liveness, Verdict::Failure)
        ]
    );
}

#[test]
fn an_agent_that_runs_for_longer_than_a_period_does_not_spread() {
    let mut sim = Sim::new(&[(Readiness, json!({"periodSeconds": 1}))], |_, _| {
        (Outcome::Success, 0)
    });
    sim.container.start(found(true, true, 0.5), at(0));
    sim.until(100);
    assert_eq!(sim.times(Readiness), [0]);
}

#[test]
fn an_unready_or_unstarted_container_found_by_a_new_agent_stays_so_until_it_answers() {
    let mut sim = Sim::new(&each(json!({"periodSeconds": 1})), |_, _| (Outcome::Success, 0));
    sim.container.start(found(false, true, 0.0), at(0));
    assert!(sim.container.is_started() && !sim.container.is_ready());
    sim.until(0);
    assert!(sim.container.is_ready());
    let mut sim = Sim::new(&each(json!({"periodSeconds": 1})), |_, _| (Outcome::Success, 0));
    sim.container.start(found(true, false, 0.0), at(0));
    assert!(!sim.container.is_started() && !sim.container.is_ready());
    sim.until(0);
    assert_eq!(sim.times(Startup), [0]);
}

#[test]
fn stretched_periods_come_from_the_same_grid() {
    let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), good_from(0));
    sim.pace.stretch = 2.5;
    sim.until(4000);
    sim.pace.stretch = 1.0;
    sim.until(7000);
    assert_eq!(sim.times(Readiness), [0, 2500, 5000, 6000, 7000]);
}

#[test]
fn checks_stay_evenly_spread_when_all_periods_are_stretched() {
    let sims = (0..10u64).map(|step| {
        let mut sim = Sim::of(Readiness, json!({"periodSeconds": 1}), |_| Outcome::Success);
        sim.now = step * 100;
        sim.start();
        sim.until(3050);
        // In small steps waits are scaled, in a large one checks get new places.
        for _ in 0..10 {
            sim.pace.stretch *= 5f64.powf(0.1);
            sim.container
                .rescale(5f64.powf(0.1), f64::NAN, at(3050), sim.pace);
        }
        sim.until(20_000);
        let times = sim.times(Readiness);
        times.into_iter().find(|time| *time > 10_000).unwrap_or_default()
    });
    let mut times: Vec<u64> = sims.collect();
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.clone().all(|gap| gap.abs_diff(500) <= 1), "{times:?}");
}
