//! Which slot does each endpoint have?
//!
//! Slots are always 0 to N−1. When an endpoint leaves, the last one moves into its slot, and new ones take
//! the slots of those that left or follow at the end; all others stay where they are. So a change touches
//! as many slots as endpoints changed, twice at most. The order therefore depends on history, and is kept.
//!
//! A slot also has a token, which its endpoint keeps for as long as it stays: clients with affinity are
//! remembered by token, so moving slots does not move them.

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
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Slots<A>(pub Vec<Slot<A>>);

impl<A: Address> Slots<A> {
    /// The slots of a list that was never anything else: in its order, with tokens from one on.
    pub fn fresh(backends: impl Iterator<Item = Backend<A>>) -> Self {
        let slots = backends.take(Class::MAX_ENDPOINTS).zip(1..);
        Self(slots.map(|(backend, token)| Slot { backend, token }).collect())
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The slots after the list changed to `wanted` (without repetitions).
    pub fn change(&self, wanted: impl Iterator<Item = Backend<A>> + Clone) -> Self {
        let wanted = wanted.take(Class::MAX_ENDPOINTS);
        if self.0.iter().map(|slot| slot.backend).eq(wanted.clone()) {
            return self.clone();
        }
        let known: HashSet<Backend<A>> = self.0.iter().map(|slot| slot.backend).collect();
        let staying: HashSet<Backend<A>> = wanted.clone().filter(|backend| known.contains(backend)).collect();
        let tokens: HashSet<u32> = self
            .0
            .iter()
            .filter(|slot| staying.contains(&slot.backend))
            .map(|slot| slot.token)
            .collect();
        let mut free_tokens = (1..).filter(|token| !tokens.contains(token));
        let mut arriving = wanted
            .filter(|backend| !known.contains(backend))
            .zip(&mut free_tokens)
            .map(|(backend, token)| Slot { backend, token });
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

    /// Puts endpoints where `found` (slot to backend and token) has them already, as far as that is
    /// possible; the others take what is left.
    pub fn adopt(
        backends: impl Iterator<Item = Backend<A>>,
        found: &HashMap<Backend<A>, (u32, u32)>,
    ) -> Self {
        let backends: Vec<Backend<A>> = backends.take(Class::MAX_ENDPOINTS).collect();
        let mut slots: Vec<Option<Slot<A>>> = vec![None; backends.len()];
        let mut used_tokens = HashSet::new();
        let mut homeless = Vec::new();
        for backend in backends {
            let place = found.get(&backend).and_then(|(slot, token)| {
                let free = slots.get_mut(*slot as usize).filter(|place| place.is_none())?;
                (*token != 0 && used_tokens.insert(*token)).then_some((free, *token))
            });
            match place {
                Some((place, token)) => *place = Some(Slot { backend, token }),
                None => homeless.push(backend),
            }
        }
        let mut free_tokens = (1..).filter(|token| !used_tokens.contains(token));
        let mut homeless = homeless.into_iter();
        for place in slots.iter_mut().filter(|place| place.is_none()) {
            *place = homeless
                .next()
                .zip(free_tokens.next())
                .map(|(backend, token)| Slot { backend, token });
        }
        Self(slots.into_iter().flatten().collect())
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
        Slots::fresh(numbers.iter().map(|number| backend(*number)))
    }

    #[test]
    fn the_last_endpoint_moves_into_the_slot_of_the_one_that_left() {
        let after = fresh(&[1, 2, 3, 4]).change([1, 3, 4].into_iter().map(backend));
        let order: Vec<_> = after.0.iter().map(|slot| (slot.backend, slot.token)).collect();
        assert_eq!(order, [(backend(1), 1), (backend(4), 4), (backend(3), 3)]);
    }

    proptest! {
        #[test]
        fn slots_hold_exactly_the_list_and_few_of_them_change(
            history in prop::collection::vec(prop::collection::btree_set(0u8..30, 0..25), 1..12),
        ) {
            let mut slots = fresh(&[]);
            for wanted in history {
                let before = slots.clone();
                slots = before.change(wanted.iter().map(|number| backend(*number)));
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
            let found = (0..).zip(&kernel.0).map(|(at, slot)| (slot.backend, (at, slot.token))).collect();
            prop_assert_eq!(Slots::adopt(numbers.iter().map(|number| backend(*number)), &found), kernel);
        }
    }
}
