//! Which indexes of a Job are done, as its status writes them: `0-2,5`.

use std::collections::BTreeSet;
use std::fmt;

/// Most completions of an Indexed Job (the API's bound, which also bounds what is kept here).
const MOST: i32 = 100_000;

/// Indexes below the number of completions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes {
    known: BTreeSet<i32>,
    end: i32,
}

impl Indexes {
    /// Reads a list; what cannot be read or is out of range is left out.
    pub fn parse(text: &str, completions: Option<i32>) -> Self {
        let mut indexes = Self {
            known: BTreeSet::new(),
            end: completions.unwrap_or(0).clamp(0, MOST),
        };
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                indexes
                    .known
                    .extend(first.max(0)..last.saturating_add(1).min(indexes.end));
            }
        }
        indexes
    }

    /// Adds one; false if it was there or is out of range.
    pub fn insert(&mut self, index: i32) -> bool {
        (0..self.end).contains(&index) && self.known.insert(index)
    }

    pub fn len(&self) -> i32 {
        i32::try_from(self.known.len()).unwrap_or(i32::MAX)
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Those that are not there, in order.
    pub fn missing(&self) -> impl Iterator<Item = i32> + '_ {
        (0..self.end).filter(|index| !self.known.contains(index))
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(i32, i32)> = Vec::new();
        for index in &self.known {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *index => *last = *index,
                _ => runs.push((*index, *index)),
            }
        }
        for (position, (first, last)) in runs.into_iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                // Upstream writes two neighbours one by one.
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
