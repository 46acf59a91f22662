//! What do many small changes of elements amount to?
//!
//! Changes of several Services may meet in one element: an address that moves from one to another is deleted
//! for the first and added for the second, in either order. What counts is what was there and what is to be.

use pointsman_netlink::nft::{Element, Op};

use crate::set_id::SetId;

/// Elements that go and come, in any order.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    changes: Vec<(SetId, Element, Direction)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Gone,
    Come,
}

impl Delta {
    pub fn remove(&mut self, set: SetId, element: Element) {
        self.changes.push((set, element, Direction::Gone));
    }

    pub fn add(&mut self, set: SetId, element: Element) {
        self.changes.push((set, element, Direction::Come));
    }

    /// The deletions and additions that remain, deletions first: an element is replaced by deleting it and
    /// adding it again in the same transaction.
    pub fn into_ops(self) -> Vec<Op> {
        // Elements are large, so their places are sorted rather than they themselves.
        let place = |index: &u32| {
            let (set, element, _) = &self.changes[*index as usize];
            (set, &element.key)
        };
        let mut order: Vec<u32> = (0..self.changes.len() as u32).collect();
        order.sort_unstable_by(|one, other| place(one).cmp(&place(other)));
        let mut gone = Grouped::default();
        let mut come = Grouped::default();
        for group in order.chunk_by(|one, other| place(one) == place(other)) {
            let (old, new) = net(group.iter().map(|index| &self.changes[*index as usize]));
            if old == new {
                continue;
            }
            let set = self.changes[group[0] as usize].0;
            gone.extend(set, old.cloned());
            come.extend(set, new.cloned());
        }
        let delete = gone.0.into_iter().map(|(set, elements)| Op::DeleteElements {
            set: set.name(),
            elements,
        });
        let add = come.0.into_iter().map(|(set, elements)| Op::AddElements {
            set: set.name(),
            elements,
        });
        delete.chain(add).collect()
    }
}

/// What was there and what is to be, of one element that may be named several times.
fn net<'a>(
    group: impl Iterator<Item = &'a (SetId, Element, Direction)> + Clone,
) -> (Option<&'a Element>, Option<&'a Element>) {
    let count = |wanted: Direction, element: &Element| {
        let same =
            |(_, other, direction): &&(SetId, Element, Direction)| *direction == wanted && other == element;
        group.clone().filter(same).count()
    };
    // What comes as often as it goes stays as it is.
    let surplus = |wanted: Direction, opposite: Direction| {
        group.clone().find_map(|(_, element, direction)| {
            let surplus = *direction == wanted && count(wanted, element) > count(opposite, element);
            surplus.then_some(element)
        })
    };
    (
        surplus(Direction::Gone, Direction::Come),
        surplus(Direction::Come, Direction::Gone),
    )
}

/// Elements by set, in the order of the sets.
#[derive(Debug, Default)]
struct Grouped(Vec<(SetId, Vec<Element>)>);

impl Grouped {
    fn extend(&mut self, set: SetId, element: Option<Element>) {
        let Some(element) = element else { return };
        match self.0.last_mut() {
            Some((last, elements)) if *last == set => elements.push(element),
            _ => self.0.push((set, vec![element])),
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_netlink::nft::Value;

    use super::*;

    fn element(key: u32, data: u32) -> Element {
        Element::mapping(Value::host_u32(key), Value::host_u32(data))
    }

    #[test]
    fn an_element_that_goes_and_comes_back_is_left_alone() {
        let mut delta = Delta::default();
        delta.add(SetId::Hairpin, element(1, 1));
        delta.remove(SetId::Hairpin, element(1, 1));
        assert_eq!(delta.into_ops(), []);
    }

    #[test]
    fn an_element_that_moves_to_another_owner_is_replaced_whatever_the_order() {
        let replaced = |order: [bool; 2]| {
            let mut delta = Delta::default();
            for add in order {
                if add {
                    delta.add(SetId::Hairpin, element(1, 2));
                } else {
                    delta.remove(SetId::Hairpin, element(1, 1));
                }
            }
            delta.into_ops()
        };
        let set = SetId::Hairpin.name();
        let wanted = [
            Op::DeleteElements {
                set: set.clone(),
                elements: vec![element(1, 1)],
            },
            Op::AddElements {
                set,
                elements: vec![element(1, 2)],
            },
        ];
        assert_eq!(replaced([true, false]), wanted);
        assert_eq!(replaced([false, true]), wanted);
    }
}
