//! How is a list kept that nearly always has one item?

use std::fmt;
use std::ops::Deref;

/// A list of fixed length. One item stands in the value itself; of tens of thousands of Services most have one
/// port and one endpoint, and each block of memory for them would cost more than it holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Few<T>(Kept<T>);

/// Which of the two follows from the length alone, so that equal lists are equal values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kept<T> {
    One(T),
    Others(Box<[T]>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Kept::One(item) => std::slice::from_ref(item),
            Kept::Others(items) => items,
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Kept::Others(Box::default()))
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let Some(first) = items.next() else {
            return Self::default();
        };
        let Some(second) = items.next() else {
            return Self(Kept::One(first));
        };
        Self(Kept::Others([first, second].into_iter().chain(items).collect()))
    }
}

impl<T> From<Box<[T]>> for Few<T> {
    fn from(items: Box<[T]>) -> Self {
        if items.len() == 1 {
            items.into_iter().collect()
        } else {
            Self(Kept::Others(items))
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_keep_their_items() {
        for length in 0..5 {
            let items: Vec<u32> = (0..length).collect();
            let few: Few<u32> = items.iter().copied().collect();
            assert_eq!(&*few, items.as_slice());
            assert_eq!(few, Few::from(items.into_boxed_slice()));
        }
    }
}
