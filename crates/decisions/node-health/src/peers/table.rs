//! What is known of each name in Nodes and Leases?
//!
//! A fold looks at every observer of every accused node more than once, so names are numbers there. A number is given back when
//! nothing is known of its name any more.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use pointsman_model::Text;

use super::rings::RINGS;

/// The number of a name, while anything is known of it.
pub(super) type Number = u32;

/// What a Lease said last.
#[derive(Clone, Debug)]
pub(super) struct Speaker {
    /// In order, so that one is found among many.
    pub accused: Box<[Number]>,
    /// When it was last renewed, by our clock.
    pub at: Duration,
    pub renewals: u64,
}

impl Speaker {
    pub fn accuses(&self, node: Number) -> bool {
        self.accused.binary_search(&node).is_ok()
    }
}

/// The observers of a node, those whose suspicion comes first before those who confirm it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observers {
    numbers: [Number; RINGS],
    count: usize,
    /// Since which change of Nodes they are as they are.
    pub since: u64,
}

impl Observers {
    pub fn new(numbers: impl Iterator<Item = Number>, since: u64) -> Self {
        let mut observers = Self {
            since,
            ..Self::default()
        };
        for (place, number) in observers.numbers.iter_mut().zip(numbers) {
            *place = number;
            observers.count += 1;
        }
        observers
    }

    pub fn all(&self) -> &[Number] {
        &self.numbers[..self.count]
    }

    /// The bits of those whose suspicion comes first.
    pub fn first(&self) -> u8 {
        (1 << self.count.div_ceil(2)) - 1
    }
}

/// Whose votes about a node count: a bit for each of its observers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub accuse: u8,
    pub reach: u8,
}

impl Counted {
    pub fn accusers(self) -> usize {
        self.accuse.count_ones() as usize
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub name: Option<Text>,
    /// The place of its zone, if there is such a Node.
    pub zone: Option<usize>,
    pub speaker: Option<Speaker>,
    /// How many Leases say that it is unreachable, asked or not.
    pub accusers: u32,
    pub observers: Observers,
    /// The votes of the last decision.
    pub counted: Counted,
    /// Until when it accuses nobody, because it was cut off.
    pub cut_off: Option<Duration>,
    /// It seems gone, with the renewals of its own Lease when it first did.
    pub gone: Option<u64>,
    pub withdrawn: bool,
    /// During a decision: it seems gone, and has not spoken since.
    pub silent: bool,
    /// During a decision: how many it does not reach.
    pub lost: usize,
}

impl Row {
    pub fn spoke(&self) -> u64 {
        self.speaker.as_ref().map_or(0, |speaker| speaker.renewals)
    }

    pub fn name(&self) -> &Text {
        self.name.as_ref().expect("a row that is in use has a name")
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    numbers: HashMap<Text, Number>,
    rows: Vec<Row>,
    free: Vec<Number>,
}

impl Table {
    pub fn number(&self, name: &str) -> Option<Number> {
        self.numbers.get(name).copied()
    }

    /// The number of a name, which is given one if it has none.
    pub fn add(&mut self, name: &str) -> Number {
        if let Some(number) = self.number(name) {
            return number;
        }
        let text = Text::from(name);
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            (self.rows.len() - 1) as Number
        });
        self.rows[number as usize].name = Some(text.clone());
        self.numbers.insert(text, number);
        number
    }

    /// Forgets a name of which nothing is known any more.
    pub fn release(&mut self, number: Number) {
        let row = &mut self[number];
        if row.zone.is_none() && row.speaker.is_none() && row.accusers == 0 {
            let name = std::mem::take(row).name;
            self.numbers.remove(&*name.expect("released once"));
            self.free.push(number);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl Index<Number> for Table {
    type Output = Row;

    fn index(&self, number: Number) -> &Row {
        &self.rows[number as usize]
    }
}

impl IndexMut<Number> for Table {
    fn index_mut(&mut self, number: Number) -> &mut Row {
        &mut self.rows[number as usize]
    }
}
