//! How is a protobuf message taken apart into numbered fields?

use std::fmt;

/// Highest field number of the format.
const MAX_NUMBER: u64 = (1 << 29) - 1;

/// Where a body breaks the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    at: usize,
    why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.at, self.why)
    }
}

/// The unread rest of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Where in the body `bytes` starts.
    at: usize,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) number: u32,
    pub(super) payload: Payload<'a>,
    at: usize,
}

/// What a field holds, as far as the bytes tell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Reader<'a>),
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A message without fields, at this place.
    pub(super) fn empty(&self) -> Reader<'a> {
        Reader {
            bytes: &[],
            at: self.at,
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn malformed(&self, why: &str) -> Malformed {
        Malformed {
            at: self.at,
            why: why.to_owned(),
        }
    }

    /// Leaves out `count` bytes, or all that are left.
    pub(super) fn skip(&mut self, count: usize) {
        let count = count.min(self.bytes.len());
        self.bytes = &self.bytes[count..];
        self.at += count;
    }

    /// The next field; none at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'a>>, Malformed> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let at = self.at;
        let start = *self;
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > MAX_NUMBER {
            return Err(start.malformed(&format!("{number} is not a field number")));
        }
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => Payload::Bytes(self.delimited()?),
            5 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(start.malformed(&format!("{other} is not a wire type in use"))),
        };
        Ok(Some(Entry {
            number: u32::try_from(number).expect("compared with the highest number above"),
            payload,
            at,
        }))
    }

    /// The next number of a packed list, as if it were a field of its own.
    pub(super) fn next_packed(&mut self) -> Result<Option<Entry<'a>>, Malformed> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let at = self.at;
        let payload = Payload::Varint(self.varint()?);
        Ok(Some(Entry {
            number: 1,
            payload,
            at,
        }))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (index, byte) in self.bytes.iter().take(10).enumerate() {
            // The tenth byte has room for the highest bit only.
            if index == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.skip(index + 1);
                return Ok(value);
            }
        }
        Err(self.malformed(if self.bytes.len() < 10 {
            "a number is cut off"
        } else {
            "a number is too long"
        }))
    }

    fn delimited(&mut self) -> Result<Reader<'a>, Malformed> {
        let length = self.varint()?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(bytes) = self.bytes.get(..length) else {
            return Err(self.malformed(&format!(
                "a length of {length} is more than the {} bytes that are left",
                self.bytes.len()
            )));
        };
        let inner = Reader { bytes, at: self.at };
        self.skip(length);
        Ok(inner)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some(array) = self.bytes.first_chunk::<N>() else {
            return Err(self.malformed("a number is cut off"));
        };
        self.skip(N);
        Ok(*array)
    }
}

impl<'a> Entry<'a> {
    pub(super) fn malformed(&self, why: &str) -> Malformed {
        Malformed {
            at: self.at,
            why: why.to_owned(),
        }
    }

    pub(super) fn varint(&self) -> Result<u64, Malformed> {
        match self.payload {
            Payload::Varint(value) => Ok(value),
            _ => Err(self.unexpected("a number")),
        }
    }

    pub(super) fn message(&self) -> Result<Reader<'a>, Malformed> {
        match self.payload {
            Payload::Bytes(reader) => Ok(reader),
            _ => Err(self.unexpected("a message, text or bytes")),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, Malformed> {
        let reader = self.message()?;
        std::str::from_utf8(reader.bytes()).map_err(|_| reader.malformed("text is not UTF-8"))
    }

    pub(super) fn double(&self) -> Result<f64, Malformed> {
        match self.payload {
            Payload::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(self.unexpected("a floating point number")),
        }
    }

    /// Whether the field holds nothing but the zero of its type.
    pub(super) fn is_zero(&self) -> bool {
        match self.payload {
            Payload::Varint(value) | Payload::Fixed64(value) => value == 0,
            Payload::Fixed32(value) => value == 0,
            Payload::Bytes(reader) => reader.bytes().is_empty(),
        }
    }

    fn unexpected(&self, expected: &str) -> Malformed {
        self.malformed(&format!("field {} should hold {expected}", self.number))
    }
}
