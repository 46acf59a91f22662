//! Sub-second probes: the sums and corner cases of KEP-3066, and what follows a success.

use crate::sim::{Sim, good_from};
use pointsman_probe::Kind::{Liveness, Readiness, Startup};
use pointsman_probe::{Outcome, Pace, Policy, Verdict};
use serde_json::{Value, json};

/// The gaps between the checks of a probe that never succeeds.
fn gap(probe: Value) -> u64 {
    let mut sim = Sim::of(Readiness, probe, |_| Outcome::Failure);
    sim.until(60_000);
    let times = sim.times(Readiness);
    let gap = times[1] - times[0];
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == gap), "{times:?}");
    gap
}

#[test]
fn the_examples_of_the_proposal_add_up_to_these_periods() {
    let table = [
        (json!({"periodSeconds": 1, "periodMilliseconds": 500}), 1500),
        (json!({"periodSeconds": 2, "periodMilliseconds": -500}), 1500),
        (json!({"periodSeconds": 1, "periodMilliseconds": -500}), 500),
        (json!({"periodSeconds": 1, "periodMilliseconds": 400}), 1400),
        // Zero is unset, and unset is ten seconds.
        (json!({"periodSeconds": 0, "periodMilliseconds": 500}), 10_500),
        (json!({"periodMilliseconds": 500}), 10_500),
        (json!({"periodMilliseconds": -999}), 9001),
        (json!({"periodSeconds": 1, "periodMilliseconds": -800}), 200),
        // Below the floors, which an API server that knows them would have refused.
        (json!({"periodSeconds": 1, "periodMilliseconds": -999}), 200),
        (json!({"periodSeconds": 1, "periodMilliseconds": -1000}), 200),
        (json!({"periodSeconds": 1, "periodMilliseconds": -1500}), 200),
        (
            json!({"exec": {}, "periodSeconds": 1, "periodMilliseconds": -501}),
            500,
        ),
        (
            json!({"exec": {}, "periodSeconds": 1, "periodMilliseconds": -500}),
            500,
        ),
        (
            json!({"grpc": {}, "periodSeconds": 1, "periodMilliseconds": -900}),
            200,
        ),
        (
            json!({"tcpSocket": {}, "periodSeconds": 1, "periodMilliseconds": -900}),
            200,
        ),
        (json!({"periodSeconds": 1, "periodMilliseconds": 0}), 1000),
    ];
    for (probe, millis) in table {
        assert_eq!(gap(probe.clone()), millis, "{probe}");
    }
}

#[test]
fn a_sub_second_period_falls_back_to_whole_seconds_after_the_first_success() {
    let probe = json!({"periodSeconds": 1, "periodMilliseconds": -500});
    let mut sim = Sim::of(Readiness, probe, good_from(900));
    sim.until(5000);
    assert_eq!(sim.times(Readiness), [0, 500, 1000, 2000, 3000, 4000, 5000]);
    assert_eq!(sim.verdicts, [(1000, Readiness, Verdict::Success)]);
}

#[test]
fn a_period_above_a_second_keeps_its_offset_after_success() {
    let mut sim = Sim::of(
        Readiness,
        json!({"periodSeconds": 1, "periodMilliseconds": 400}),
        good_from(0),
    );
    sim.until(5000);
    assert_eq!(sim.times(Readiness), [0, 1400, 2800, 4200]);
}

#[test]
fn with_a_success_threshold_the_fast_period_lasts_until_it_is_reached() {
    let probe = json!({"periodSeconds": 1, "periodMilliseconds": -800, "successThreshold": 3});
    let mut sim = Sim::of(Readiness, probe, good_from(300));
    sim.until(3000);
    assert_eq!(sim.times(Readiness), [0, 200, 400, 600, 800, 1800, 2800]);
    assert_eq!(sim.verdicts, [(800, Readiness, Verdict::Success)]);
}

/// Checks of a container that is good, bad from 2.5 s, and good again from 6 s.
fn around_a_failure(policy: Policy) -> (Vec<u64>, Vec<u64>) {
    let probe = json!({"periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 2});
    let mut sim = Sim::of(Readiness, probe, |now| {
        if (2500..6000).contains(&now) {
            Outcome::Failure
        } else {
            Outcome::Success
        }
    });
    sim.pace = Pace {
        policy,
        ..Pace::default()
    };
    sim.until(7000);
    let changes = sim.verdicts.iter().map(|(at, _, _)| *at).collect();
    (sim.times(Readiness), changes)
}

#[test]
fn until_first_success_stays_slow_after_a_failure() {
    let (times, changes) = around_a_failure(Policy::UntilFirstSuccess);
    assert_eq!(times, [0, 1000, 2000, 3000, 4000, 5000, 6000, 7000]);
    assert_eq!(changes, [0, 4000, 6000]);
}

#[test]
fn while_waiting_for_success_is_fast_again_once_the_verdict_is_failure() {
    let (times, changes) = around_a_failure(Policy::WhileWaitingForSuccess);
    let fast = [4200, 4400, 4600, 4800, 5000, 5200, 5400, 5600, 5800, 6000];
    assert_eq!(times[..5], [0, 1000, 2000, 3000, 4000]);
    assert_eq!(times[5..15], fast);
    assert_eq!(times[15..], [7000]);
    assert_eq!(changes, [0, 4000, 6000]);
}

#[test]
fn always_never_slows_down() {
    let (times, changes) = around_a_failure(Policy::Always);
    assert_eq!(times, (0..=35).map(|step| step * 200).collect::<Vec<u64>>());
    assert_eq!(changes, [0, 2800, 6000]);
}

#[test]
fn a_restarted_container_is_checked_fast_again() {
    let probe = json!({"periodSeconds": 1, "periodMilliseconds": -800});
    let mut sim = Sim::of(Readiness, probe, |now| {
        if !(3500..=4000).contains(&now) {
            Outcome::Success
        } else {
            Outcome::Failure
        }
    });
    sim.until(3400);
    sim.stop();
    sim.until(3500);
    sim.start();
    sim.until(5500);
    assert_eq!(
        sim.times(Readiness),
        [0, 1000, 2000, 3000, 3500, 3700, 3900, 4100, 5100]
    );
}

#[test]
fn an_initial_delay_is_kept_to_the_millisecond() {
    let table = [
        (json!({"initialDelayMilliseconds": 300}), 300),
        (
            json!({"initialDelaySeconds": 2, "initialDelayMilliseconds": -750}),
            1250,
        ),
        (
            json!({"initialDelaySeconds": 1, "initialDelayMilliseconds": 1}),
            1001,
        ),
        (
            json!({"initialDelaySeconds": 1, "initialDelayMilliseconds": -1000}),
            0,
        ),
        (json!({"initialDelayMilliseconds": -1}), 0),
    ];
    for (probe, first) in table {
        let mut sim = Sim::of(Readiness, probe.clone(), good_from(0));
        sim.until(20_000);
        assert_eq!(sim.times(Readiness)[..2], [first, first + 10_000], "{probe}");
    }
}

#[test]
fn the_timeout_is_one_sum_too() {
    let timeout = |probe: Value| crate::sim::timing(Readiness, &probe).timeout().as_millis();
    assert_eq!(timeout(json!({})), 1000);
    assert_eq!(
        timeout(json!({"timeoutSeconds": 0, "timeoutMilliseconds": -200})),
        800
    );
    assert_eq!(
        timeout(json!({"timeoutSeconds": 2, "timeoutMilliseconds": 50})),
        2050
    );
    assert_eq!(
        timeout(json!({"timeoutSeconds": 1, "timeoutMilliseconds": -1000})),
        100
    );
}

#[test]
fn startup_may_be_faster_than_a_second_and_liveness_may_not() {
    let fast = json!({"periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 100});
    let mut startup = Sim::of(Startup, fast.clone(), good_from(500));
    startup.until(5000);
    assert_eq!(startup.times(Startup), [0, 200, 400, 600]);
    let mut liveness = Sim::of(Liveness, fast, good_from(500));
    liveness.until(3000);
    assert_eq!(liveness.times(Liveness), [0, 1000, 2000, 3000]);
}
