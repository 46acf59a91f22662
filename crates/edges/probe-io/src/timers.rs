//! Which worker has to be looked at next?
//!
//! One heap for all probes of the node. Each worker has at most one entry, which moves when the
//! worker's time changes, so the heap never holds anything stale.

use pointsman_probe::Tick;

const ABSENT: u32 = u32::MAX;
/// Children per node: a wide heap is shallow, and its children share a cache line.
const WIDTH: usize = 4;

/// Times by worker number, earliest first.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<(Tick, u32)>,
    /// Where each worker's entry is in the heap.
    position: Vec<u32>,
}

impl Timers {
    /// Sets or moves the time of `worker`.
    pub fn set(&mut self, worker: usize, at: Tick) {
        if worker >= self.position.len() {
            self.position.resize(worker + 1, ABSENT);
        }
        match self.position[worker] {
            ABSENT => {
                self.heap.push((at, worker as u32));
                self.position[worker] = (self.heap.len() - 1) as u32;
                self.up(self.heap.len() - 1);
            }
            place => {
                let place = place as usize;
                let before = std::mem::replace(&mut self.heap[place].0, at);
                if at < before {
                    self.up(place);
                } else {
                    self.down(place);
                }
            }
        }
    }

    /// Forgets the time of `worker`.
    pub fn cancel(&mut self, worker: usize) {
        let Some(&place) = self.position.get(worker).filter(|place| **place != ABSENT) else {
            return;
        };
        let place = place as usize;
        self.position[worker] = ABSENT;
        self.heap.swap_remove(place);
        if let Some((_, moved)) = self.heap.get(place) {
            self.position[*moved as usize] = place as u32;
            self.up(place);
            self.down(place);
        }
    }

    /// The earliest time.
    pub fn earliest(&self) -> Option<Tick> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Takes out the earliest worker whose time is not after `now`.
    pub fn pop(&mut self, now: Tick) -> Option<usize> {
        let (at, worker) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.cancel(worker as usize);
        Some(worker as usize)
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / WIDTH;
            if self.heap[parent] <= self.heap[place] {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let children = place * WIDTH + 1..(place * WIDTH + 1 + WIDTH).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else {
                break;
            };
            if self.heap[place] <= self.heap[least] {
                break;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.position[self.heap[place].1 as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn timers_come_in_order_like_those_of_a_sorted_map(
            steps in prop::collection::vec((0u8..4, 0usize..40, 0u64..1000), 0..300)
        ) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            for (step, worker, at) in steps {
                match step {
                    0 | 1 => {
                        timers.set(worker, Tick(at));
                        model.insert(worker, at);
                    }
                    2 => {
                        timers.cancel(worker);
                        model.remove(&worker);
                    }
                    _ => {
                        let expected = model.iter().map(|(worker, at)| (*at, *worker)).min();
                        let expected = expected.filter(|(due, _)| *due <= at).map(|(_, worker)| worker);
                        prop_assert_eq!(timers.pop(Tick(at)), expected);
                        if let Some(worker) = expected {
                            model.remove(&worker);
                        }
                    }
                }
                prop_assert_eq!(timers.earliest().map(|tick| tick.0), model.values().min().copied());
            }
        }
    }
}
