//! Every order of opinions, writes, deliveries, lists, restarts and deaths around one node of a small cluster.

use crate::world::{Move, World};
use std::collections::{HashSet, VecDeque};

/// How many steps deep every order is tried.
const DEPTH: usize = 9;

/// One node, and all others observe it.
fn moves() -> Vec<Move> {
    let mut moves = vec![Move::Takeover, Move::Relist, Move::Pass];
    for observer in 1..4 {
        moves.extend([
            Move::Flip(observer, 0),
            Move::Write(observer),
            Move::Deliver(observer),
            Move::Restart(observer),
            Move::Die(observer),
        ]);
    }
    moves
}

/// Observers that live and whose last word, as the controller has it, is that they reach the node.
fn reach(world: &World) -> usize {
    let observers = world.observers[0].iter().map(|index| &world.agents[*index]);
    observers
        .filter(|agent| agent.alive && !agent.shown.contains(&0))
        .count()
}

/// Observers that the controller may go by and that do not reach the node, by halves; and those that do.
fn words(world: &World) -> [(usize, usize); 2] {
    let count = |observers: &[usize]| {
        let fresh = observers.iter().map(|index| &world.agents[*index]);
        let fresh: Vec<_> = fresh.filter(|agent| agent.age < 2).collect();
        let accuse = fresh.iter().filter(|agent| agent.shown.contains(&0)).count();
        (accuse, fresh.len() - accuse)
    };
    let (first, confirming) = world.observers[0].split_at(world.halves[0]);
    [count(first), count(confirming)]
}

fn check(world: &World, path: &[Move]) {
    let observers = world.observers[0].len();
    let most_reach = reach(world) * 2 > observers;
    let words = words(world);
    let all_agree = words.iter().all(|(accuse, reach)| accuse > reach);
    let accusers = words[0].0 + words[1].0;
    assert!(
        !(world.withdrawn(0) && most_reach),
        "withdrawn although most of its observers reach it: {path:?}"
    );
    assert_eq!(
        world.withdrawn(0),
        all_agree && accusers >= 2,
        "{words:?} after {path:?}"
    );
}

#[test]
fn no_order_of_events_withdraws_a_node_that_most_observers_reach_or_keeps_it_withdrawn() {
    let moves = moves();
    let start = World::new(4);
    let mut known = HashSet::from([start.key()]);
    let mut open = VecDeque::from([(start, Vec::new())]);
    let (mut states, mut withdrawn) = (0, 0);
    while let Some((world, path)) = open.pop_front() {
        states += 1;
        withdrawn += u32::from(world.withdrawn(0));
        check(&world, &path);
        if path.len() == DEPTH {
            continue;
        }
        for next in &moves {
            let mut world = world.clone();
            world.step(*next);
            if known.insert(world.key()) {
                let mut path = path.clone();
                path.push(*next);
                open.push_back((world, path));
            }
        }
    }
    assert!(states > 1000 && withdrawn > 10, "{withdrawn} of {states}");
}
