//! What was found in the kernel, in a form that is quick to compare?
//!
//! A full table has some hundred thousand elements, and at a restart they are all read. They are kept as the
//! bytes that count (key, data), a few dozen for each, in one buffer per set, sorted once and compared by
//! walking both sides together.

use std::collections::BTreeMap;

use pointsman_netlink::nft::{Chain, Data, DataSpec, Element, Name, Rule, Set, SetFlags, Value};

use crate::kernel_table::{ChainContent, KernelTable};

/// The table as it was found.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Whether the table exists.
    pub(crate) exists: bool,
    pub(crate) sets: BTreeMap<Name, (Set, Records)>,
    pub(crate) chains: BTreeMap<Name, ChainContent>,
}

impl Inventory {
    /// A table that exists, with these chains and rules; sets follow.
    pub fn new(chains: impl IntoIterator<Item = Chain>, rules: impl IntoIterator<Item = Rule>) -> Self {
        let KernelTable { chains, .. } = KernelTable::from_dump([], chains, rules);
        Self {
            exists: true,
            sets: BTreeMap::new(),
            chains,
        }
    }

    /// Adds a set and its elements.
    pub fn add_set(&mut self, set: Set, mut records: Records) {
        records.sort();
        self.sets.insert(set.name.clone(), (set, records));
    }
}

impl From<&KernelTable> for Inventory {
    fn from(table: &KernelTable) -> Self {
        let mut inventory = Self {
            exists: table.exists,
            sets: BTreeMap::new(),
            chains: table.chains.clone(),
        };
        for content in table.sets.values() {
            let mut records = Records::new(&content.set);
            content
                .elements
                .values()
                .for_each(|element| records.push(element));
            inventory.add_set(content.set.clone(), records);
        }
        inventory
    }
}

/// The elements of one set: key, kind of end, end of the range and data, each of fixed length.
#[derive(Clone, Debug)]
pub struct Records {
    key: usize,
    end: usize,
    data: usize,
    bytes: Vec<u8>,
    /// Where each record begins, in order of the records once sorted.
    starts: Vec<u32>,
    /// Elements that do not have the set's shape; they are nobody's.
    odd: Vec<Element>,
}

impl Records {
    /// No elements yet of this set.
    pub fn new(set: &Set) -> Self {
        let key = set.key_len as usize;
        let concatenated = set.flags.contains(SetFlags::CONCAT);
        Self {
            key,
            end: if concatenated { key } else { 0 },
            data: match set.data {
                DataSpec::Value { len, .. } => len as usize,
                DataSpec::None | DataSpec::Verdict => 0,
            },
            bytes: Vec::new(),
            starts: Vec::new(),
            odd: Vec::new(),
        }
    }

    pub fn push(&mut self, element: &Element) {
        let end = match (&element.key_end, self.end) {
            (_, 0) => &[],
            (Some(end), _) => end.as_bytes(),
            (None, _) => element.key.as_bytes(),
        };
        let data = match &element.data {
            Data::Value(value) => value.as_bytes(),
            Data::None => &[],
            Data::Verdict(_) => &[0; Value::MAX],
        };
        let fits = element.key.len() == self.key && end.len() == self.end && data.len() == self.data;
        let Ok(start) = u32::try_from(self.bytes.len()) else {
            return;
        };
        if !fits {
            self.odd.push(element.clone());
            return;
        }
        self.starts.push(start);
        self.bytes.extend_from_slice(element.key.as_bytes());
        self.bytes.push(u8::from(element.interval_end));
        self.bytes.extend_from_slice(end);
        self.bytes.extend_from_slice(data);
    }

    pub(crate) fn sort(&mut self) {
        let (bytes, len) = (&self.bytes, self.record_len());
        let record = |start: &u32| &bytes[*start as usize..*start as usize + len];
        self.starts
            .sort_unstable_by(|one, other| record(one).cmp(record(other)));
        self.starts.dedup_by(|one, other| record(one) == record(other));
    }

    /// How many elements there are, the same ones counted once if they were read twice.
    pub fn count(&mut self) -> usize {
        self.sort();
        self.starts.len() + self.odd.len()
    }

    /// The data of the element with this key, once sorted.
    pub(crate) fn data_of(&self, key: &Value) -> Option<Data> {
        let at = self
            .starts
            .partition_point(|start| self.record(*start)[..self.key] < *key.as_bytes());
        let record = self.record(*self.starts.get(at)?);
        (record[..self.key] == *key.as_bytes()).then(|| self.element(record).data)
    }

    /// What has to go and what has to come, so that this becomes `wanted`. Both must be sorted.
    pub(crate) fn difference(&self, wanted: &Self) -> (Vec<Element>, Vec<Element>) {
        let (mut gone, mut come) = (self.odd.clone(), wanted.odd.clone());
        let (mut here, mut there) = (self.starts.iter().peekable(), wanted.starts.iter().peekable());
        let place = self.key + 1;
        loop {
            let (found, desired) = (
                here.peek().map(|start| self.record(**start)),
                there.peek().map(|start| wanted.record(**start)),
            );
            let order = match (found, desired) {
                (None, None) => return (gone, come),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(found), Some(desired)) => found[..place].cmp(&desired[..place]),
            };
            if order.is_le() {
                here.next();
            }
            if order.is_ge() {
                there.next();
            }
            if found == desired {
                continue;
            }
            gone.extend(
                found
                    .filter(|found| order.is_le() && !self.is_implicit(found))
                    .map(|found| self.element(found)),
            );
            come.extend(
                desired
                    .filter(|_| order.is_ge())
                    .map(|desired| wanted.element(desired)),
            );
        }
    }

    fn record_len(&self) -> usize {
        self.key + 1 + self.end + self.data
    }

    fn record(&self, start: u32) -> &[u8] {
        let start = start as usize;
        &self.bytes[start..start + self.record_len()]
    }

    /// The kernel begins every set of ranges with the end of nothing.
    fn is_implicit(&self, record: &[u8]) -> bool {
        record[self.key] == 1 && record[..self.key].iter().all(|byte| *byte == 0)
    }

    fn element(&self, record: &[u8]) -> Element {
        let value = |bytes: &[u8]| Value::try_new(bytes).expect("it came from a value");
        let (key, rest) = record.split_at(self.key);
        let (flag, rest) = rest.split_at(1);
        let (end, data) = rest.split_at(self.end);
        Element {
            key_end: (!end.is_empty()).then(|| Box::new(value(end))),
            data: if data.is_empty() {
                Data::None
            } else {
                Data::Value(value(data))
            },
            interval_end: flag == [1],
            ..Element::new(value(key))
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_netlink::nft::Field;
    use proptest::prelude::*;

    use super::*;

    fn records(content: &BTreeMap<u32, u32>) -> Records {
        let set = Set::map(Name::fixed("m"), &[Field::Mark], &[Field::Mark], "");
        let mut records = Records::new(&set);
        for (key, data) in content {
            records.push(&Element::mapping(Value::host_u32(*key), Value::host_u32(*data)));
        }
        records.sort();
        records
    }

    proptest! {
        #[test]
        fn applying_the_difference_gives_what_is_wanted(
            found in prop::collection::btree_map(0u32..20, 0u32..3, 0..15),
            wanted in prop::collection::btree_map(0u32..20, 0u32..3, 0..15),
        ) {
            let number = |value: &Value| u32::from_ne_bytes(value.as_bytes().try_into().unwrap());
            let (gone, come) = records(&found).difference(&records(&wanted));
            let mut result = found.clone();
            for element in &gone {
                prop_assert!(result.remove(&number(&element.key)).is_some());
            }
            for element in &come {
                let Data::Value(data) = &element.data else { panic!("data is lost") };
                prop_assert!(result.insert(number(&element.key), number(data)).is_none());
            }
            prop_assert_eq!(&result, &wanted);
            let kept = found.iter().filter(|(key, data)| wanted.get(key) == Some(data)).count();
            prop_assert_eq!(gone.len(), found.len() - kept);
        }
    }
}
