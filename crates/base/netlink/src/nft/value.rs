//! What does a register or a set key hold?

use std::fmt;
use std::hash::{Hash, Hasher};

/// Up to 64 bytes, the size of nf_tables' register file, kept inline.
#[derive(Clone, Copy)]
pub struct Value {
    length: u8,
    bytes: [u8; Self::MAX],
}

/// More bytes than a register file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes do not fit into a value of 64 bytes")]
pub struct TooLong(pub usize);

impl Value {
    /// The largest value.
    pub const MAX: usize = 64;

    pub const EMPTY: Self = Self {
        length: 0,
        bytes: [0; Self::MAX],
    };

    /// A value of these bytes.
    pub fn try_new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut value = Self::EMPTY;
        value.append(bytes)?;
        Ok(value)
    }

    /// A number as registers hold marks, priorities and random numbers: host order.
    pub fn host_u32(number: u32) -> Self {
        let mut value = Self::EMPTY;
        value.bytes[..4].copy_from_slice(&number.to_ne_bytes());
        value.length = 4;
        value
    }

    /// Appends one component of a concatenation, padded with zeros to whole registers of four bytes.
    pub fn push_field(&mut self, field: &[u8]) -> Result<(), TooLong> {
        let end = usize::from(self.length) + field.len().next_multiple_of(4);
        self.append(field)?;
        if end > Self::MAX {
            return Err(TooLong(end));
        }
        self.length = end as u8;
        Ok(())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn append(&mut self, more: &[u8]) -> Result<(), TooLong> {
        let start = usize::from(self.length);
        let end = start + more.len();
        let room = self.bytes.get_mut(start..end).ok_or(TooLong(end))?;
        room.copy_from_slice(more);
        self.length = end as u8;
        Ok(())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Value {
    /// Registers in hexadecimal, separated by points.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, register) in self.as_bytes().chunks(4).enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            for byte in register {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
