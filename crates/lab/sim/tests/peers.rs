//! The simulation of nodes that ask each other, on few seeds.

use pointsman_sim::peers::{Kind, Plan, Report, run};

#[test]
fn the_same_seed_tells_the_same_story_of_peers() {
    for seed in [0, 5, 22, 41] {
        assert_eq!(run(seed, true), run(seed, true));
    }
}

#[test]
fn dead_nodes_are_found_and_living_ones_left_alone() {
    let mut report = Report::default();
    // Large clusters are for `make sim-peers`.
    for seed in (0..120).filter(|seed| Plan::draw(*seed).nodes <= 40) {
        report.add(seed, &run(seed, false));
    }
    assert_eq!(report.faults(), Vec::<String>::new(), "{report}");
}

#[test]
fn a_lone_dead_node_is_found_within_a_second_on_a_good_network() {
    let good = |plan: Plan| {
        plan.kind == Kind::Cut
            && plan.nodes <= 40
            && plan.loss <= 1
            && plan.pause.is_zero()
            && plan.trip.as_millis() < 5
    };
    let mut runs = 0;
    for seed in (0..1600).filter(|seed| good(Plan::draw(*seed))) {
        let outcome = run(seed, false);
        runs += 1;
        assert_eq!(
            (outcome.found.len(), outcome.missed, outcome.wrong),
            (1, 0, 0),
            "{outcome:?}"
        );
        assert!(outcome.found[0] <= 950, "{outcome:?}");
        assert!(outcome.restored.iter().all(|time| *time <= 700), "{outcome:?}");
    }
    assert!(runs >= 4, "{runs}");
}

/// A watch that showed changes out of their order, and a node that lost its network and accused the others one after the other.
#[test]
fn seeds_that_once_withdrew_living_nodes_do_so_no_more() {
    for seed in [6186, 41_724] {
        let outcome = run(seed, true);
        assert_eq!(outcome.wrong, 0, "{seed}: {:#?}", outcome.trace);
    }
}
