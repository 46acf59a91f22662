//! What holds for every sequence of answers, delays, stops and starts.

use crate::sim::Sim;
use pointsman_probe::{Kind, Outcome, Pace, Policy, Verdict};
use proptest::prelude::*;
use serde_json::json;

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Success),
        4 => Just(Outcome::Failure),
        1 => Just(Outcome::Warning),
        1 => Just(Outcome::Errored),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(Policy::NAMES.map(|(_, policy)| policy).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_verdict_changes_only_after_its_threshold_of_equal_outcomes(
        answers in prop::collection::vec((outcome(), 0u64..700), 1..60),
        success in 1i64..4, failure in 1i64..4, policy in policy(),
    ) {
        let probe = json!({
            "periodSeconds": 1, "periodMilliseconds": -800,
            "successThreshold": success, "failureThreshold": failure,
        });
        let script = answers.clone();
        let mut at = 0;
        let mut sim = Sim::new(&[(Kind::Readiness, probe)], move |_, _| {
            at += 1;
            script[(at - 1) % script.len()]
        });
        sim.pace = Pace { policy, ..Pace::default() };
        sim.start();
        sim.until(30_000);

        // Judge the same outcomes by the definition, one at a time.
        let (mut verdict, mut last, mut run, mut expected) = (Verdict::Failure, None, 0, Vec::new());
        let finished = sim.effects.len();
        for step in 0..finished {
            let good = match answers[step % answers.len()].0 {
                Outcome::Success | Outcome::Warning => true,
                Outcome::Failure => false,
                _ => continue,
            };
            run = if last == Some(good) { run + 1 } else { 1 };
            last = Some(good);
            let (threshold, reached) =
                if good { (success, Verdict::Success) } else { (failure, Verdict::Failure) };
            if run >= threshold && verdict != reached {
                verdict = reached;
                expected.push((step, reached));
            }
        }
        let seen: Vec<_> = (0..finished)
            .filter_map(|step| sim.effects[step].1.verdict.map(|verdict| (step, verdict)))
            .collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn no_worker_ever_has_two_checks_and_none_runs_in_a_stopped_container(
        steps in prop::collection::vec((0u8..5, 1u64..900), 1..60),
        takes in prop::collection::vec(0u64..1500, 1..20),
        outcomes in prop::collection::vec(outcome(), 1..20),
    ) {
        let probe = json!({"periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 2});
        let probes = Kind::ALL.map(|kind| (kind, probe.clone()));
        let busy = std::rc::Rc::new(std::cell::RefCell::new([0u64; 3]));
        let mut at = 0;
        let mut sim = Sim::new(&probes, move |now, kind| {
            at += 1;
            let until = &mut busy.borrow_mut()[kind as usize];
            assert!(*until <= now, "two checks of {kind:?} at once");
            let took = takes[at % takes.len()];
            *until = now + took;
            (outcomes[at % outcomes.len()], took)
        });
        let mut running = false;
        for (step, pause) in steps {
            match step {
                0 => { sim.stop(); running = false; }
                1 | 2 => { sim.start(); running = true; }
                3 => sim.container.poke(crate::sim::at(sim.now)),
                _ => {}
            }
            let before = sim.begun.len();
            let end = sim.now + pause;
            sim.until(end);
            prop_assert!(running || sim.begun.len() == before);
            prop_assert!(running || !sim.container.is_ready());
        }
    }

    #[test]
    fn quick_checks_do_not_drift(takes in prop::collection::vec(0u64..190, 1..20), millis in 200u64..3000) {
        let probe = json!({"periodSeconds": 1 + millis / 1000, "periodMilliseconds": (millis % 1000) as i64 - 1000});
        let mut at = 0;
        let mut sim = Sim::new(&[(Kind::Readiness, probe)], move |_, _| {
            at += 1;
            (Outcome::Failure, takes[at % takes.len()])
        });
        sim.start();
        sim.until(millis * 50);
        let expected: Vec<u64> = (0..=50).map(|step| step * millis).collect();
        prop_assert_eq!(sim.times(Kind::Readiness), expected);
    }
}
