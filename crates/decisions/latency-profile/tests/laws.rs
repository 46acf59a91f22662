//! What holds for every plan, from whatever values somebody left behind?

use pointsman_latency_profile::{
    Catalog, Day, GracePeriod, Pool, Purpose, ReportPeriod, Span, State, Tolerations, Wanted, next_step, plan,
};
use proptest::collection::btree_map;
use proptest::prelude::*;
use std::time::Duration;

/// Values of profiles, values near them, and anything.
fn seconds() -> impl Strategy<Value = u64> {
    prop_oneof![
        proptest::sample::select(vec![4, 10, 20, 30, 40, 60, 120, 300]),
        1u64..400,
        1u64..5000,
    ]
}

fn span() -> impl Strategy<Value = Span<u64>> {
    prop_oneof![
        3 => seconds().prop_map(Span::exactly),
        1 => (seconds(), seconds()).prop_map(|(a, b)| Span::exactly(a).and(b)),
    ]
}

fn pool() -> impl Strategy<Value = Pool> {
    proptest::sample::select(vec!["", "edge", "rack"]).prop_map(Pool::named)
}

fn state() -> impl Strategy<Value = State> {
    let report = |span: Span<u64>| Span {
        least: ReportPeriod::seconds(span.least),
        most: ReportPeriod::seconds(span.most),
    };
    (btree_map(pool(), span().prop_map(report), 0..3), span(), span()).prop_map(
        |(reports, grace, seconds)| State {
            reports,
            grace: Span {
                least: GracePeriod::seconds(grace.least),
                most: GracePeriod::seconds(grace.most),
            },
            tolerations: Span {
                least: Tolerations::both(seconds.least),
                most: Tolerations::both(seconds.most),
            },
        },
    )
}

fn catalog() -> impl Strategy<Value = Catalog> {
    proptest::sample::select(vec![Catalog::standard(), Catalog::with_fast()])
}

fn wanted(catalog: &Catalog) -> impl Strategy<Value = Wanted> + use<> {
    let profile = proptest::sample::select(catalog.profiles().to_vec());
    (profile.clone(), btree_map(pool(), profile, 0..2)).prop_map(|(profile, mut pools)| {
        pools.remove(&Pool::default());
        Wanted { profile, pools }
    })
}

fn case() -> impl Strategy<Value = (State, Catalog, Wanted)> {
    (state(), catalog()).prop_flat_map(|(state, catalog)| {
        let wanted = wanted(&catalog);
        (Just(state), Just(catalog), wanted)
    })
}

fn days() -> impl Strategy<Value = Day> {
    proptest::sample::select(vec![Day::Zero, Day::Two])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        max_global_rejects: 100_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_reaches_what_is_wanted_and_is_short((state, catalog, wanted) in case(), day in days()) {
        let plan = plan(&state, &wanted, &catalog, day);
        let end = plan.end();
        let control_plane = wanted.control_plane().values;
        prop_assert!(end.grace.is(control_plane.grace));
        prop_assert!(end.tolerations.is(control_plane.tolerations));
        for (pool, span) in &end.reports {
            prop_assert!(span.is(wanted.of_pool(pool).values.report), "{pool:?} {span:?}");
        }
        prop_assert!(plan.steps.len() <= 3 * catalog.profiles().len() + 1, "{}", plan.steps.len());
        prop_assert_eq!(next_step(end, &wanted, &catalog, day), None);
    }

    #[test]
    fn from_a_safe_state_every_state_is_safe((state, catalog, wanted) in case(), day in days()) {
        prop_assume!(state.verdict().is_safe());
        let plan = plan(&state, &wanted, &catalog, day);
        prop_assert_eq!(plan.hazards(), []);
        prop_assert!(plan.steps.iter().all(|step| step.purpose == Purpose::Advance));
    }

    #[test]
    fn from_an_unsafe_state_the_first_step_helps_or_is_the_least_bad((state, catalog, wanted) in case(), day in days()) {
        prop_assume!(!state.verdict().is_safe());
        let plan = plan(&state, &wanted, &catalog, day);
        let first = &plan.steps[0];
        match first.purpose {
            Purpose::Relief => {
                prop_assert!(first.after.verdict().is_safe());
                prop_assert_eq!(plan.hazards().len(), 1, "only the state that was found");
            }
            Purpose::LeastBad => {
                // No value of any profile helps in one step: reports are slower than the longest grace
                // period allows, and the grace period is shorter than the fastest reports allow.
                let profiles = catalog.profiles();
                let fastest = profiles[0].values.report;
                let longest = profiles.last().unwrap().values.grace;
                prop_assert!(state.grace.least.0 < fastest.get() * 4);
                prop_assert!(longest.0 < state.slowest().unwrap().get() * 4);
                prop_assert!(first.after.verdict() >= state.verdict());
                prop_assert!(plan.hazards().len() <= 2);
            }
            Purpose::Advance => prop_assert!(false, "an unsafe state is not passed over"),
        }
    }

    #[test]
    fn planning_again_on_the_way_gives_the_rest_of_the_plan((state, catalog, wanted) in case(), day in days()) {
        let whole = plan(&state, &wanted, &catalog, day);
        for (index, step) in whole.steps.iter().enumerate() {
            let rest = plan(&step.after, &wanted, &catalog, day);
            prop_assert_eq!(&rest.steps[..], &whole.steps[index + 1..]);
        }
    }

    #[test]
    fn on_day_two_nothing_jumps_over_a_profile((state, catalog, wanted) in case()) {
        prop_assume!(state.verdict().is_safe());
        let plan = plan(&state, &wanted, &catalog, Day::Two);
        let rungs = |least: Duration, most: Duration, value: fn(&pointsman_latency_profile::Profile) -> Duration| {
            catalog.profiles().iter().filter(|profile| least < value(profile) && value(profile) < most).count()
        };
        let states: Vec<&State> = plan.states().collect();
        for pair in states.windows(2) {
            let graces = [pair[0].grace.least.0, pair[0].grace.most.0, pair[1].grace.least.0];
            // What is in force at several places at once may have been scattered by hand.
            if pair[0].grace.exact().is_some() {
                let (least, most) = (graces.iter().min().unwrap(), graces.iter().max().unwrap());
                prop_assert_eq!(rungs(*least, *most, |profile| profile.values.grace.0), 0);
            }
        }
    }
}
