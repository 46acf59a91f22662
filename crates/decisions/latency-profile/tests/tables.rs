//! Every row of the six transition tables of the specification, derived from the rule.
//!
//! A table lists the states that a cluster might pass when each component takes its new value at any
//! time: all mixtures of the two profiles' values. Here the mixtures are generated and judged, and have
//! to be the table's rows with the table's notes.

use pointsman_latency_profile::profile::{DEFAULT, LOW, MEDIUM};
use pointsman_latency_profile::{
    Catalog, Change, Component, Day, GracePeriod, Plan, Profile, ReportPeriod, State, Tolerations, Values,
    Verdict, Wanted, plan,
};
use std::collections::BTreeSet;

struct Table {
    from: Profile,
    to: Profile,
    day_two: bool,
    rows: &'static str,
}

/// Report period, grace period, toleration, note.
const TABLES: [Table; 6] = [
    Table {
        from: DEFAULT,
        to: MEDIUM,
        day_two: true,
        rows: "10s  40s 300s  initial
               10s  40s  60s  no major impact
               10s   2m 300s  no major impact
               10s   2m  60s  no major impact
               20s   2m 300s  no major impact
               20s  40s  60s  only 2 chances
               20s  40s 300s  only 2 chances
               20s   2m  60s  final",
    },
    Table {
        from: DEFAULT,
        to: LOW,
        day_two: false,
        rows: "10s  40s 300s  initial
               10s  40s  60s  no major impact
               10s   5m 300s  no major impact
               10s   5m  60s  no major impact
                1m   5m 300s  no major impact
                1m  40s  60s  no chance
                1m  40s 300s  no chance
                1m   5m  60s  final",
    },
    Table {
        from: MEDIUM,
        to: DEFAULT,
        day_two: true,
        rows: "20s   2m  60s  initial
               20s   2m 300s  no major impact
               20s  40s  60s  only 2 chances
               20s  40s 300s  only 2 chances
               10s  40s  60s  no major impact
               10s   2m 300s  no major impact
               10s   2m  60s  no major impact
               10s  40s 300s  final",
    },
    Table {
        from: MEDIUM,
        to: LOW,
        day_two: true,
        rows: "20s   2m  60s  initial
               20s   5m  60s  no major impact
                1m   2m  60s  only 2 chances
                1m   5m  60s  final",
    },
    Table {
        from: LOW,
        to: MEDIUM,
        day_two: true,
        rows: " 1m   5m  60s  initial
                1m   2m  60s  only 2 chances
               20s   5m  60s  no major impact
               20s   2m  60s  final",
    },
    Table {
        from: LOW,
        to: DEFAULT,
        day_two: false,
        rows: " 1m   5m  60s  initial
                1m   5m 300s  no major impact
                1m  40s  60s  no chance
                1m  40s 300s  no chance
               10s  40s  60s  no major impact
               10s   5m 300s  no major impact
               10s   5m  60s  no major impact
               10s  40s 300s  final",
    },
];

fn parse(row: &str) -> (Values, String) {
    let mut words = row.split_whitespace();
    let mut next = || words.next().unwrap();
    let values = Values {
        report: ReportPeriod::parse(next()).unwrap(),
        grace: GracePeriod::parse(next()).unwrap(),
        tolerations: Tolerations::both(next().strip_suffix('s').unwrap().parse().unwrap()),
    };
    (values, words.collect::<Vec<_>>().join(" "))
}

fn mixtures(from: Values, to: Values) -> BTreeSet<Values> {
    let mut all = BTreeSet::new();
    for report in [from.report, to.report] {
        for grace in [from.grace, to.grace] {
            for tolerations in [from.tolerations, to.tolerations] {
                all.insert(Values {
                    report,
                    grace,
                    tolerations,
                });
            }
        }
    }
    all
}

fn note(values: Values, table: &Table) -> String {
    if values == table.from.values {
        return "initial".into();
    }
    if values == table.to.values {
        return "final".into();
    }
    match Verdict::of(values.report, values.grace) {
        Verdict::NoMajorImpact { .. } => "no major impact".into(),
        Verdict::FewChances { chances } => format!("only {chances} chances"),
        Verdict::NoChance => "no chance".into(),
    }
}

fn of(table: &Table, day: Day) -> Plan {
    plan(
        &table.from.values.into(),
        &Wanted::everywhere(table.to),
        &Catalog::standard(),
        day,
    )
}

#[test]
fn every_row_of_the_six_tables_is_derived() {
    let mut rows = 0;
    for table in &TABLES {
        let listed: Vec<(Values, String)> = table.rows.lines().map(parse).collect();
        let derived = mixtures(table.from.values, table.to.values);
        let set: BTreeSet<Values> = listed.iter().map(|(values, _)| *values).collect();
        assert_eq!(set, derived, "{} -> {}", table.from.name, table.to.name);
        assert_eq!(set.len(), listed.len(), "no row twice");
        for (values, noted) in &listed {
            assert_eq!(note(*values, table), *noted, "{values:?}");
            rows += 1;
        }
    }
    assert_eq!(rows, 40);
}

#[test]
fn plans_pass_only_rows_without_major_impact() {
    for table in &TABLES {
        for day in [Day::Zero, Day::Two] {
            let plan = of(table, day);
            assert_eq!(plan.hazards(), []);
            assert_eq!(plan.end().values(), Some(table.to.values));
            let rows = mixtures(table.from.values, table.to.values);
            if day == Day::Zero || table.day_two {
                assert!(plan.states().all(|state| rows.contains(&state.values().unwrap())));
            }
        }
    }
}

#[test]
fn the_far_transitions_go_through_medium_on_day_two_and_straight_on_day_zero() {
    for table in &TABLES {
        let passes = |day| {
            let plan = of(table, day);
            plan.states().any(|state| state.values() == Some(MEDIUM.values))
        };
        if table.day_two {
            continue;
        }
        assert!(passes(Day::Two), "{} -> {}", table.from.name, table.to.name);
        assert!(!passes(Day::Zero), "{} -> {}", table.from.name, table.to.name);
        assert_eq!(of(table, Day::Zero).steps.len(), 3);
        assert_eq!(of(table, Day::Two).steps.len(), 5);
    }
}

#[test]
fn orders_are_those_that_keep_reports_within_the_grace_period() {
    use Component::{KubeAPIServer as Api, KubeControllerManager as Manager, Kubelet};
    let orders: Vec<Vec<Component>> = TABLES
        .iter()
        .map(|table| {
            let plan = of(table, Day::Two);
            plan.steps.iter().map(|step| step.change.component()).collect()
        })
        .collect();
    assert_eq!(
        orders,
        [
            vec![Manager, Api, Kubelet],
            vec![Manager, Api, Kubelet, Manager, Kubelet],
            vec![Kubelet, Api, Manager],
            vec![Manager, Kubelet],
            vec![Kubelet, Manager],
            vec![Kubelet, Manager, Kubelet, Api, Manager],
        ]
    );
}

#[test]
fn pods_are_never_evicted_sooner_than_at_both_ends() {
    for table in &TABLES {
        let ends = [table.from, table.to].map(|profile| profile.values.time_to_evict());
        let least = *ends.iter().min().unwrap();
        // On the way through Medium its own time counts as well.
        let least = least.min(MEDIUM.values.time_to_evict());
        for state in of(table, Day::Two).states() {
            assert!(state.values().unwrap().time_to_evict() >= least);
        }
    }
}

#[test]
fn a_step_changes_one_component_and_nothing_else() {
    for table in &TABLES {
        let plan = of(table, Day::Two);
        let states: Vec<&State> = plan.states().collect();
        for (step, pair) in plan.steps.iter().zip(states.windows(2)) {
            let (before, after) = (pair[0], pair[1]);
            let same = |component| match component {
                Component::Kubelet => before.reports == after.reports,
                Component::KubeControllerManager => before.grace == after.grace,
                Component::KubeAPIServer => before.tolerations == after.tolerations,
            };
            for component in Component::ALL {
                assert_eq!(same(component), component != step.change.component());
            }
            assert!(matches!(
                (&step.change, step.change.component()),
                (Change::Reports(_), Component::Kubelet)
                    | (Change::Grace(_), Component::KubeControllerManager)
                    | (Change::Tolerations(_), Component::KubeAPIServer)
            ));
        }
    }
}
