//! What can happen without a decision: values take effect, are announced, and are asked for anew.

use super::*;

/// Effects of what is written, one at a time, the worse value announced first.
pub(super) fn effects(world: &World, broken: Break, next: &mut Vec<World>) {
    for node in 0..world.nodes.len() {
        let moved = moved(
            world.nodes[node],
            world.reports.value,
            |from, to| to > from,
            broken,
        );
        if let Some(instance) = moved {
            let mut after = world.clone();
            after.nodes[node] = instance;
            // Nodes are alike: only their number matters.
            after
                .nodes
                .sort_by_key(|node| (node.announced, node.used, node.target));
            next.push(after);
        }
    }
    let manager = moved(
        world.manager,
        world.grace.value,
        |from, to| to < from,
        Break::Nothing,
    );
    if let Some(manager) = manager {
        next.push(World {
            manager,
            ..world.clone()
        });
    }
    if world.server.used != world.tolerations.value {
        next.push(World {
            server: Instance::settled(world.tolerations.value),
            ..world.clone()
        });
    }
}

/// The next thing that a component does about what is written.
fn moved(
    instance: Instance,
    written: Value,
    worse: fn(Value, Value) -> bool,
    broken: Break,
) -> Option<Instance> {
    if instance.announced != instance.used {
        // Half done: the other half follows, whatever is written by now.
        return Some(Instance::settled(instance.target));
    }
    if written == instance.used {
        return None;
    }
    let target = written;
    let announce_first = worse(instance.used, written) != (broken == Break::LateAnnouncement);
    Some(if announce_first {
        Instance {
            announced: written,
            target,
            ..instance
        }
    } else {
        Instance {
            used: written,
            target,
            ..instance
        }
    })
}

pub(super) fn changes_of_mind(world: &World, next: &mut Vec<World>) {
    if let [asked, rest @ ..] = world.asked_later.as_slice() {
        let mut after = world.clone();
        after.wanted = *asked;
        after.generation += 1;
        after.asked_later = rest.to_vec();
        next.push(after);
    }
    if let Some(owner) = world.second {
        let mut after = world.clone();
        after.second = None;
        after.writers.push(Writer {
            owner,
            holder: 1,
            slow: false,
            at: At::Start,
        });
        next.push(after);
    }
}
