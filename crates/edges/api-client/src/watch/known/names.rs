//! How are a hundred thousand names kept in little memory?
//!
//! The names stand one behind the other in one block of bytes, and a table of their places finds them: about
//! ten bytes for a name beside its own, where a set of strings takes forty or more.

use std::hash::{BuildHasher, RandomState};

/// A place in the table that never held a name.
const EMPTY: u32 = u32::MAX;
/// A place whose name was removed.
const REMOVED: u32 = u32::MAX - 1;
/// The smallest table.
const LEAST: usize = 16;

/// A set of namespaced names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// For each name its length, that of its namespace (two bytes each), the namespace and the name.
    bytes: Vec<u8>,
    /// Where names begin; as long as a power of two, and at most three quarters full.
    table: Vec<u32>,
    live: usize,
    /// Places that are not empty.
    used: usize,
    hasher: RandomState,
}

impl Names {
    /// Adds a name, unless it is there already.
    pub fn insert(&mut self, namespace: &str, name: &str) {
        if self.find(namespace, name).is_some() {
            return;
        }
        // API servers take names of some hundred bytes, so that lengths and places always fit.
        let (Ok(length), Ok(of_namespace), Ok(start)) = (
            u16::try_from(namespace.len() + name.len()),
            u16::try_from(namespace.len()),
            u32::try_from(self.bytes.len()),
        ) else {
            return;
        };
        if start >= REMOVED {
            return;
        }
        if (self.used + 1) * 4 > self.table.len() * 3 {
            // Without the places of removed names, half of it is in use at most.
            self.rebuild(((self.live + 1) * 2).next_power_of_two());
            return self.insert(namespace, name);
        }
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&of_namespace.to_le_bytes());
        self.bytes.extend_from_slice(namespace.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.place(self.hash(namespace, name), start);
        self.live += 1;
    }

    /// Removes a name.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(place) = self.find(namespace, name) {
            self.table[place] = REMOVED;
            self.live -= 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let places = self.table.iter().filter(|start| **start < REMOVED);
        places.map(|start| self.at(*start))
    }

    /// Gives back what was reserved for growing.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    fn find(&self, namespace: &str, name: &str) -> Option<usize> {
        let mask = self.table.len().checked_sub(1)?;
        let mut place = self.hash(namespace, name) as usize & mask;
        loop {
            match self.table[place] {
                EMPTY => return None,
                REMOVED => {}
                start if self.bytes_at(start) == (namespace.as_bytes(), name.as_bytes()) => {
                    return Some(place);
                }
                _ => {}
            }
            place = (place + 1) & mask;
        }
    }

    /// Puts a new name's place into the table, which has room.
    fn place(&mut self, hash: u64, start: u32) {
        let mask = self.table.len() - 1;
        let mut place = hash as usize & mask;
        while self.table[place] != EMPTY {
            place = (place + 1) & mask;
        }
        self.table[place] = start;
        self.used += 1;
    }

    /// Makes a table of another size, and leaves out the bytes of removed names.
    fn rebuild(&mut self, size: usize) {
        let fresh = Self {
            bytes: Vec::with_capacity(self.bytes.len()),
            table: vec![EMPTY; size.max(LEAST)],
            live: 0,
            used: 0,
            hasher: self.hasher.clone(),
        };
        let old = std::mem::replace(self, fresh);
        for (namespace, name) in old.iter() {
            self.insert(namespace, name);
        }
    }

    fn at(&self, start: u32) -> (&str, &str) {
        let (namespace, name) = self.bytes_at(start);
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        (text(namespace), text(name))
    }

    fn bytes_at(&self, start: u32) -> (&[u8], &[u8]) {
        let start = start as usize;
        let number = |at: usize| usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]));
        let (length, of_namespace) = (number(start), number(start + 2));
        self.bytes[start + 4..start + 4 + length].split_at(of_namespace)
    }

    fn hash(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_a_set_of_strings_holds() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut names = Names::default();
        let mut model = BTreeSet::new();
        for step in 0..20_000 {
            let (namespace, name) = (format!("n{}", random.u8(..4)), random.u16(..500).to_string());
            if random.bool() || step < 1000 {
                names.insert(&namespace, &name);
                model.insert((namespace, name));
            } else {
                names.remove(&namespace, &name);
                model.remove(&(namespace, name));
            }
        }
        let held: BTreeSet<(String, String)> = names
            .iter()
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
            .collect();
        assert_eq!(held, model);
        assert!(
            names.table.len() <= 8192,
            "{} places for 2,000 names",
            names.table.len()
        );
        names.insert("", "node");
        assert_eq!(names.iter().filter(|found| *found == ("", "node")).count(), 1);
    }

    #[test]
    fn names_that_come_and_go_take_no_more_and_more_room() {
        let mut names = Names::default();
        for step in 0..100_000_u32 {
            names.insert("ns", &step.to_string());
            names.remove("ns", &step.to_string());
        }
        assert_eq!(names.iter().count(), 0);
        assert!(names.bytes.len() < 1024 && names.table.len() <= 64);
    }
}
