//! Which slot does each endpoint have?
//!
//! Slots are always 0 to N−1. When an endpoint leaves, the last one moves into its slot, and new ones take
//! the slots of those that left or follow at the end; all others stay where they are. So a change touches
//! as many slots as endpoints changed, twice at most. The order therefore depends on history, and is kept.
//!
//! A slot also has a token, which its endpoint keeps for as long as it stays: clients with affinity are
//! remembered by token, so moving slots does not move them. The two lists of a port agree on the tokens of the
//! endpoints that are in both, so that a client is remembered for all destinations of the port.

use std::collections::{HashMap, HashSet};

use pointsman_model::{Address, Backend};

use crate::class::Class;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot<A> {
    pub backend: Backend<A>,
    /// Is never zero.
    pub token: u32,
}

/// The slots of one list of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots<A>(pub Vec<Slot<A>>);

impl<A: Address> Slots<A> {
    pub const NONE: Self = Self(Vec::new());

    /// The slots of a list that was never anything else: in its order, with the tokens that `other` has, or
    /// else the lowest.
    pub fn fresh(backends: impl Iterator<Item = Backend<A>>, other: &Self) -> Self {
        let mut tokens = Tokens::beside(other);
        let backends: Vec<Backend<A>> = backends.take(Class::MAX_ENDPOINTS).collect();
        let slot = |backend| Slot {
            backend,
            token: tokens.take(&backend),
        };
        Self(backends.into_iter().map(slot).collect())
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The slots after the list changed to `wanted` (without repetitions), beside the port's other list.
    pub fn change(&self, wanted: impl Iterator<Item = Backend<A>> + Clone, other: &Self) -> Self {
        let wanted = wanted.take(Class::MAX_ENDPOINTS);
        if self.0.iter().map(|slot| slot.backend).eq(wanted.clone()) {
            return self.clone();
        }
        let known: HashSet<Backend<A>> = self.0.iter().map(|slot| slot.backend).collect();
        let staying: HashSet<Backend<A>> = wanted.clone().filter(|backend| known.contains(backend)).collect();
        let mut tokens = Tokens::beside(other);
        let kept = self.0.iter().filter(|slot| staying.contains(&slot.backend));
        tokens.used.extend(kept.map(|slot| slot.token));
        let mut arriving = wanted
            .filter(|backend| !known.contains(backend))
            .map(|backend| Slot {
                backend,
                token: tokens.take(&backend),
            });
        let mut slots = self.0.clone();
        let mut index = 0;
        while index < slots.len() {
            if staying.contains(&slots[index].backend) {
                index += 1;
            } else if let Some(new) = arriving.next() {
                slots[index] = new;
                index += 1;
            } else {
                // The moved slot is looked at next: its endpoint may have left too.
                slots.swap_remove(index);
            }
        }
        slots.extend(arriving);
        Self(slots)
    }

    /// Puts endpoints where `found` (slot and token of backends) has them already, as far as that is
    /// possible; the others take what is left. No token was found where clients are not remembered.
    pub fn adopt(
        backends: impl Iterator<Item = Backend<A>>,
        found: &HashMap<Backend<A>, (u32, Option<u32>)>,
        other: &Self,
    ) -> Self {
        let backends: Vec<Backend<A>> = backends.take(Class::MAX_ENDPOINTS).collect();
        let mut places: Vec<Option<Backend<A>>> = vec![None; backends.len()];
        let mut homeless = Vec::new();
        for backend in backends {
            let slot = found.get(&backend).map(|(slot, _)| *slot as usize);
            match slot
                .and_then(|slot| places.get_mut(slot))
                .filter(|place| place.is_none())
            {
                Some(place) => *place = Some(backend),
                None => homeless.push(backend),
            }
        }
        let mut homeless = homeless.into_iter();
        for place in places.iter_mut().filter(|place| place.is_none()) {
            *place = homeless.next();
        }
        let mut tokens = Tokens::beside(other);
        for backend in places.iter().flatten() {
            if let Some((_, Some(token))) = found.get(backend) {
                tokens.keep(backend, *token);
            }
        }
        let slot = |backend| Slot {
            backend,
            token: tokens.take(&backend),
        };
        Self(places.into_iter().flatten().map(slot).collect())
    }
}

/// Tokens that are taken, and by whom.
struct Tokens<A> {
    held: HashMap<Backend<A>, u32>,
    used: HashSet<u32>,
    next: u32,
}

impl<A: Address> Tokens<A> {
    fn beside(other: &Slots<A>) -> Self {
        Self {
            held: other.0.iter().map(|slot| (slot.backend, slot.token)).collect(),
            used: other.0.iter().map(|slot| slot.token).collect(),
            next: 1,
        }
    }

    /// Lets an endpoint keep its token, unless another one has it or it has one already.
    fn keep(&mut self, backend: &Backend<A>, token: u32) {
        if token != 0 && !self.held.contains_key(backend) && self.used.insert(token) {
            self.held.insert(*backend, token);
        }
    }

    /// The endpoint's token, or the lowest that nobody has.
    fn take(&mut self, backend: &Backend<A>) -> u32 {
        if let Some(token) = self.held.get(backend) {
            return *token;
        }
        while self.used.contains(&self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use pointsman_model::Port;
    use proptest::prelude::*;

    use super::*;

    fn backend(number: u8) -> Backend<Ipv4Addr> {
        Backend {
            address: Ipv4Addr::new(10, 0, 0, number),
            port: Port::new(80).unwrap(),
        }
    }

    fn fresh(numbers: &[u8]) -> Slots<Ipv4Addr> {
        Slots::fresh(numbers.iter().map(|number| backend(*number)), &Slots::NONE)
    }

    #[test]
    fn the_last_endpoint_moves_into_the_slot_of_the_one_that_left() {
        let after = fresh(&[1, 2, 3, 4]).change([1, 3, 4].into_iter().map(backend), &Slots::NONE);
        let order: Vec<_> = after.0.iter().map(|slot| (slot.backend, slot.token)).collect();
        assert_eq!(order, [(backend(1), 1), (backend(4), 4), (backend(3), 3)]);
    }

    proptest! {
        #[test]
        fn slots_hold_exactly_the_list_and_few_of_them_change(
            history in prop::collection::vec(
                (prop::collection::btree_set(0u8..30, 0..25), prop::collection::btree_set(0u8..30, 0..25)),
                1..12,
            ),
        ) {
            let (mut slots, mut beside) = (fresh(&[]), fresh(&[]));
            for (wanted, other) in history {
                let before = slots.clone();
                slots = before.change(wanted.iter().map(|number| backend(*number)), &beside);
                beside = beside.change(other.iter().map(|number| backend(*number)), &slots);
                for slot in &slots.0 {
                    let same = |other: &&Slot<_>| (other.backend == slot.backend) != (other.token == slot.token);
                    prop_assert_eq!(beside.0.iter().find(same), None, "both lists agree");
                }
                let held: BTreeSet<_> = slots.0.iter().map(|slot| slot.backend).collect();
                prop_assert_eq!(&held, &wanted.iter().map(|number| backend(*number)).collect());
                prop_assert_eq!(slots.len(), wanted.len());
                let tokens: BTreeSet<u32> = slots.0.iter().map(|slot| slot.token).collect();
                prop_assert!(tokens.len() == slots.len() && !tokens.contains(&0));
                let old: BTreeSet<_> = before.0.iter().map(|slot| slot.backend).collect();
                let (left, came) = (old.difference(&held).count(), held.difference(&old).count());
                let longest = slots.len().max(before.len());
                let touched = (0..longest).filter(|at| before.0.get(*at) != slots.0.get(*at)).count();
                prop_assert!(touched <= 2 * left.max(came), "{touched} slots for -{left} +{came}");
                for slot in &slots.0 {
                    let known = before.0.iter().find(|old| old.backend == slot.backend);
                    prop_assert!(known.is_none_or(|old| old.token == slot.token));
                }
            }
        }

        #[test]
        fn what_was_found_is_adopted_whole(numbers in prop::collection::btree_set(0u8..30, 0..25), seed: u64) {
            let mut order: Vec<u8> = numbers.iter().copied().collect();
            order.sort_by_key(|number| u64::from(*number).wrapping_mul(seed | 1).rotate_left(17));
            let kernel = fresh(&order);
            let found = (0..).zip(&kernel.0).map(|(at, slot)| (slot.backend, (at, Some(slot.token)))).collect();
            let backends = numbers.iter().map(|number| backend(*number));
            prop_assert_eq!(Slots::adopt(backends, &found, &Slots::NONE), kernel);
        }
    }
}
