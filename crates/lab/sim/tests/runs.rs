//! The simulation itself, on few seeds.

use pointsman_sim::{Heartbeats, Report, Route, Scenario, run};

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in [0, 17, 23, 44] {
        assert_eq!(run(seed, true), run(seed, true));
    }
}

#[test]
fn planned_ways_harm_nobody_and_forbidden_ones_do() {
    let mut report = Report::default();
    for seed in 0..360 {
        report.add(seed, &run(seed, false));
    }
    assert_eq!(report.faults(), Vec::<String>::new(), "{report}");
}

#[test]
fn without_any_chance_to_report_every_node_is_called_unreachable() {
    let all = Scenario::all();
    let hopeless = all.iter().position(|scenario| {
        let through = matches!(scenario.route, Route::Forbidden(_, _, values)
            if values.report.get() > values.grace.0);
        through && scenario.heartbeats == Heartbeats::Status
    });
    for round in 0..20 {
        let seed = hopeless.expect("there is one") as u64 + round * all.len() as u64;
        let outcome = run(seed, false);
        assert!(
            outcome.false_unreachable as usize >= outcome.nodes,
            "seed {seed}: {outcome:?}"
        );
    }
}

#[test]
fn dead_nodes_are_found_in_the_profiles_time() {
    let all = Scenario::all();
    for (index, scenario) in all.iter().enumerate() {
        let Route::Stay(profile) = scenario.route else {
            continue;
        };
        for round in 0..30 {
            let outcome = run(index as u64 + round * all.len() as u64, false);
            let detected = outcome.detected.expect("a node died");
            let grace = profile.values.grace.0.as_millis() as u64;
            assert!(
                detected > grace && detected <= grace + 10_000,
                "{}: {detected} ms",
                scenario.route
            );
            let evicted = outcome.evicted.expect("its pod had to go");
            let sum = profile.values.time_to_evict().as_millis() as u64;
            assert!(
                evicted > sum && evicted <= sum + 10_100,
                "{}: {evicted} ms",
                scenario.route
            );
        }
    }
}
