//! Many probes on one thread that cannot make all the checks they ask for.

use crate::sim::timing;
use pointsman_probe::{Budget, Container, Kind, Limits, Outcome, Pace, Policy, Start, Tick, Window};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

const PROBES: usize = 2_000;
const PERIOD: Duration = Duration::from_millis(200);
/// What a check takes on the one thread there is, so that it could make 4,000 a second.
const COST: Duration = Duration::from_micros(250);
const SECOND: Duration = Duration::from_secs(1);

/// How late checks begin at p99, once the budget has settled. Containers start within `starts`.
fn lateness(starts: Duration, checks_per_second: f64) -> Duration {
    let policy = Policy::Always;
    let mut pace = Pace { policy, stretch: 1.0 };
    let mut budget = Budget::new(Limits {
        checks_per_second,
        cpu_share: 1.0,
    });
    let mut now = Tick(0);
    let probe = json!({"httpGet": {"port": 1}, "periodSeconds": 1, "periodMilliseconds": -800});
    let mut due = BTreeSet::new();
    let mut containers: Vec<Container> = (0..PROBES)
        .map(|number| {
            let mut container = Container::new([(Kind::Readiness, timing(Kind::Readiness, &probe))], false);
            let started = Tick(0) + starts.mul_f64(number as f64 / PROBES as f64);
            container.start(Start::default(), started);
            due.insert((container.due(Kind::Readiness), number));
            container
        })
        .collect();
    let mut window = (now, Duration::ZERO);
    let mut late = Vec::new();
    let mut last_due: Vec<Option<Tick>> = vec![None; PROBES];
    while now < Tick(0) + 10 * SECOND {
        let (at, number) = *due.first().expect("a probe is due");
        now = now.max(at.expect("it is due").min(window.0 + SECOND));
        if now.since(window.0) >= SECOND {
            let before = pace.stretch;
            let demand = PROBES as f64 / PERIOD.as_secs_f64();
            pace.stretch = budget.measure(Window {
                elapsed: SECOND,
                cpu: window.1,
                demand,
            });
            window = (now, Duration::ZERO);
            due.clear();
            for (number, container) in containers.iter_mut().enumerate() {
                let place = (number as f64 * 1.618_034).fract();
                container.rescale(pace.stretch / before, place, now, pace);
                due.insert((container.due(Kind::Readiness), number));
            }
            continue;
        }
        let Some(begun) = containers[number].begin(Kind::Readiness, now, pace) else {
            panic!("it is due");
        };
        if now > Tick(0) + 4 * SECOND {
            late.push(begun.late);
        }
        // Counted from when checks were due, for a late one does not move those after it.
        let due_at = at.expect("it is due");
        let before = last_due[number].replace(due_at);
        let sooner = before.is_some_and(|before| due_at + Duration::from_micros(1) < before + PERIOD);
        assert!(!sooner, "{number} is checked sooner than it asks for");
        now = now + COST;
        window.1 += COST;
        containers[number].finish(Kind::Readiness, Outcome::Success, now, pace);
        due.remove(&(at, number));
        due.insert((containers[number].due(Kind::Readiness), number));
    }
    late.sort_unstable();
    late[late.len() * 99 / 100]
}

#[test]
fn stretched_checks_do_not_come_in_waves() {
    let starts = [Duration::from_millis(1), PERIOD, SECOND];
    let late = starts.map(|starts| [1_000.0, 2_000.0, 3_000.0].map(|limit| lateness(starts, limit)));
    assert!(
        late.as_flattened()
            .iter()
            .all(|late| *late <= Duration::from_millis(20)),
        "by starts and limits: {late:?}"
    );
}
