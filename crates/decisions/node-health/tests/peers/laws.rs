//! Laws of the fold, over histories in which anything happens to any node.

use crate::world::{LIMITS, Move, World};
use pointsman_model::Text;
use pointsman_node_health::peers::{Change, Limits, Reachability, Rings};
use proptest::prelude::*;
use std::time::Duration;

fn any_move(count: usize) -> impl Strategy<Value = Move> {
    let node = 0..count;
    prop_oneof![
        8 => (node.clone(), 0..6usize).prop_map(|(node, peer)| Move::Flip(node, peer)),
        6 => node.clone().prop_map(Move::Write),
        6 => node.clone().prop_map(Move::Deliver),
        1 => node.clone().prop_map(Move::Restart),
        1 => node.prop_map(Move::Die),
        1 => Just(Move::Takeover),
        2 => Just(Move::Pass),
    ]
}

/// A cluster, and what happens in it; peers are numbers among those that a node asks.
fn histories() -> impl Strategy<Value = (usize, Vec<Move>)> {
    (3..14usize).prop_flat_map(|count| (Just(count), prop::collection::vec(any_move(count), 0..120)))
}

/// Observers that speak: their Lease is fresh, and they do not seem gone themselves.
fn word(world: &World, observer: usize, node: usize) -> Option<bool> {
    let agent = &world.agents[observer];
    (agent.age < 2).then(|| agent.shown.contains(&node))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_happens_few_are_withdrawn_and_only_by_most_of_their_observers((count, history) in histories()) {
        let mut world = World::new(count);
        for next in history {
            let next = match next {
                Move::Flip(node, peer) => {
                    let asked: Vec<usize> =
                        (0..count).filter(|other| world.observers[*other].contains(&node)).collect();
                    Move::Flip(node, asked[peer % asked.len()])
                }
                other => other,
            };
            world.step(next);
            let withdrawn: Vec<usize> = (0..count).filter(|node| world.withdrawn(*node)).collect();
            prop_assert!(withdrawn.len() <= LIMITS.of_cluster(count).min(LIMITS.of_zone(count)));
            for node in withdrawn {
                let observers = &world.observers[node];
                let (first, confirming) = observers.split_at(world.halves[node]);
                for half in [first, confirming] {
                    let words: Vec<bool> =
                        half.iter().filter_map(|observer| word(&world, *observer, node)).collect();
                    let accuse = words.iter().filter(|accuses| **accuses).count();
                    // Those who seem gone speak for nobody until they write again.
                    let silent = half.iter().filter(|observer| accused_by_most(&world, **observer)).count();
                    prop_assert!(accuse * 2 > words.len() - silent.min(words.len()), "{words:?}");
                }
            }
        }
        // Once everybody who lives has written and the watch has caught up, a node that all of them reach is back.
        for _ in 0..3 {
            world.step(Move::Pass);
        }
        for node in (0..count).filter(|node| world.withdrawn(*node)) {
            let accusers = world.observers[node].iter().filter(|observer| {
                world.agents[**observer].alive && world.agents[**observer].unreachable.contains(&node)
            });
            prop_assert!(accusers.count() >= 2);
        }
    }
}

fn accused_by_most(world: &World, node: usize) -> bool {
    let observers = &world.observers[node];
    observers
        .iter()
        .filter(|observer| world.agents[**observer].shown.contains(&node))
        .count()
        >= 2
}

/// A cluster of zones, all of whose nodes speak.
fn cluster(nodes: usize, zones: usize) -> (Reachability, Rings, Vec<Text>) {
    let (mut fold, mut rings) = (Reachability::new(Limits::default()), Rings::default());
    let names: Vec<Text> = (0..nodes).map(|index| format!("node-{index}").into()).collect();
    for (index, name) in names.iter().enumerate() {
        fold.observe_node(name, &format!("zone-{}", index % zones).into());
        rings.insert(name);
    }
    for name in &names {
        fold.observe_opinions(name, [], Duration::ZERO);
    }
    fold.decide(Duration::ZERO);
    (fold, rings, names)
}

/// Every living node reports which of its peers are dead; the fold decides after every `batch` Leases.
fn report(
    fold: &mut Reachability,
    rings: &Rings,
    names: &[Text],
    dead: &[Text],
    batch: usize,
) -> Vec<Change> {
    let now = Duration::from_secs(1);
    let mut changes = Vec::new();
    let living: Vec<&Text> = names.iter().filter(|name| !dead.contains(name)).collect();
    for some in living.chunks(batch) {
        for name in some {
            let peers = rings.peers(name);
            let lost: Vec<&str> = peers
                .iter()
                .filter(|peer| dead.contains(peer))
                .map(|peer| &**peer)
                .collect();
            if !lost.is_empty() {
                fold.observe_opinions(name, lost, now);
            }
        }
        changes.extend(fold.decide(now));
    }
    changes
}

#[test]
fn a_dead_node_is_withdrawn_in_every_cluster_of_three_and_more() {
    for count in [3, 4, 5, 6, 7, 8, 20, 300] {
        let (mut fold, rings, names) = cluster(count, 1);
        let dead = &names[count / 2..=count / 2];
        let changes = report(&mut fold, &rings, &names, dead, count);
        assert!(
            matches!(&changes[..], [Change::Withdrawn { node, votes }]
                if *node == dead[0] && votes.accusers() == (count - 1).min(6)),
            "{count} nodes: {changes:?}"
        );
        let now = Duration::from_secs(2);
        for name in &names {
            fold.observe_opinions(name, [], now);
        }
        assert!(matches!(&fold.decide(now)[..], [Change::Restored { .. }]));
    }
    let (mut fold, rings, names) = cluster(2, 1);
    assert_eq!(
        report(&mut fold, &rings, &names, &names[..1], 1),
        [],
        "one witness is none"
    );
}

#[test]
fn dead_observers_do_not_keep_those_who_died_with_them_in_use() {
    let (mut fold, rings, names) = cluster(420, 3);
    // A seventh of every zone.
    let dead: Vec<Text> = names.iter().step_by(7).cloned().collect();
    let changes = report(&mut fold, &rings, &names, &dead, 420);
    let found = changes.len();
    assert!(
        found * 100 >= dead.len() * 97,
        "{found} of {} dead nodes",
        dead.len()
    );
    assert!(
        changes
            .iter()
            .all(|change| matches!(change, Change::Withdrawn { node, .. } if dead.contains(node)))
    );
}

#[test]
fn when_half_of_a_zone_or_of_the_cluster_seems_gone_nothing_is_withdrawn_there() {
    let (mut fold, rings, names) = cluster(90, 3);
    let zone: Vec<Text> = names.iter().step_by(3).take(16).cloned().collect();
    assert_eq!(report(&mut fold, &rings, &names, &zone, 90), []);
    assert!(fold.seem_gone() >= 15 && fold.holds());
}

#[test]
fn who_reaches_nobody_accuses_nobody() {
    let (mut fold, rings, names) = cluster(7, 1);
    let now = Duration::from_secs(1);
    for cut in &names[..3] {
        let all = rings.peers(cut);
        fold.observe_opinions(cut, all.iter().map(|peer| &**peer), now);
    }
    assert_eq!(fold.decide(now), []);
    assert!(
        fold.seem_gone() == 0 && !fold.holds(),
        "and nothing is in doubt for it"
    );
}

#[test]
fn words_about_nodes_that_somebody_else_asks_do_not_count() {
    let (mut fold, rings, names) = cluster(100, 1);
    let now = Duration::from_secs(1);
    let observers = rings.observers(&names[0]);
    for liar in names.iter().filter(|name| !observers.all().contains(name)) {
        fold.observe_opinions(liar, [&*names[0]], now);
    }
    assert_eq!(fold.decide(now), []);
}
