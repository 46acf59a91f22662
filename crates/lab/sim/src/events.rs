//! What happens next?

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Milliseconds since the beginning.
pub type Millis = u64;

/// So many seconds.
pub const fn seconds(count: u64) -> Millis {
    count * 1000
}

/// Things to come, in order of time; what happens at the same time happens in the order it was added.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<(Millis, u64, usize)>>,
    /// Bodies by slot, so that the heap moves small keys only.
    bodies: Vec<Option<E>>,
    free: Vec<usize>,
    count: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            bodies: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }
}

impl<E> Events<E> {
    /// Adds something to come.
    pub fn add(&mut self, at: Millis, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.bodies[slot] = Some(event);
                slot
            }
            None => {
                self.bodies.push(Some(event));
                self.bodies.len() - 1
            }
        };
        self.heap.push(Reverse((at, self.count, slot)));
        self.count += 1;
    }

    /// Takes what happens next.
    pub fn pop(&mut self) -> Option<(Millis, E)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        let event = self.bodies[slot].take().expect("a slot in the heap has a body");
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut events = Events::default();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (1, "b")] {
            events.add(at, name);
        }
        let mut order = Vec::new();
        while let Some((_, name)) = events.pop() {
            if name == "a" {
                events.add(2, "late");
            }
            order.push(name);
        }
        assert_eq!(order, ["a", "b", "late", "c", "d"]);
    }
}
