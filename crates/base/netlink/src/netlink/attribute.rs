//! How is a tree of attributes written and read?

use super::message::{Header, begin_message, end_message};

/// The flag of an attribute that holds attributes.
const NESTED: u16 = 1 << 15;
/// Flags within an attribute's type.
const FLAGS: u16 = NESTED | 1 << 14;

/// Bytes that break the rules of attributes: a length too small or beyond the end, or a value of a wrong
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink data: {0}")]
pub struct Malformed(pub &'static str);

/// Appends messages and attributes to a buffer.
///
/// The length of an attribute is a u16. A nest that grows beyond it marks the writer as overflowed rather
/// than writing a wrong length; [`Writer::overflowed`] is checked before anything is sent.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl Writer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether some attribute was too long to be written.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Writes one message with the attributes that `body` writes, and returns where it starts.
    pub fn message(&mut self, header: Header, body: impl FnOnce(&mut Self)) -> usize {
        let start = begin_message(&mut self.bytes, header);
        body(self);
        end_message(&mut self.bytes, start);
        start
    }

    /// Writes an attribute of raw bytes.
    pub fn bytes_attribute(&mut self, kind: u16, value: &[u8]) {
        let Ok(length) = u16::try_from(value.len() + 4) else {
            self.overflowed = true;
            return;
        };
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Writes a text with the terminating zero the kernel expects.
    pub fn text(&mut self, kind: u16, text: &str) {
        let Ok(length) = u16::try_from(text.len() + 5) else {
            self.overflowed = true;
            return;
        };
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Writes a byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes_attribute(kind, &[value]);
    }

    /// Writes a big-endian number of two bytes.
    pub fn u16_be(&mut self, kind: u16, value: u16) {
        self.bytes_attribute(kind, &value.to_be_bytes());
    }

    /// Writes a big-endian number of four bytes, the usual size of nf_tables numbers.
    pub fn u32_be(&mut self, kind: u16, value: u32) {
        self.bytes_attribute(kind, &value.to_be_bytes());
    }

    /// Writes a number of four bytes in host order.
    pub fn u32_host(&mut self, kind: u16, value: u32) {
        self.bytes_attribute(kind, &value.to_ne_bytes());
    }

    /// Writes a big-endian number of eight bytes.
    pub fn u64_be(&mut self, kind: u16, value: u64) {
        self.bytes_attribute(kind, &value.to_be_bytes());
    }

    /// Writes an attribute that holds the attributes `body` writes.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

/// One attribute as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its type without the flags.
    pub kind: u16,
    /// Its value without padding.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The attributes within.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// The value as a byte.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.value.first().copied().ok_or(Malformed("empty number"))
    }

    /// The value as a big-endian number of two bytes.
    pub fn u16_be(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// The value as a big-endian number of four bytes.
    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// The value as a number of four bytes in host order.
    pub fn u32_host(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The value as a big-endian number of eight bytes.
    pub fn u64_be(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// The value as text, up to the first zero.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let end = self
            .value
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.value.len());
        std::str::from_utf8(&self.value[..end]).map_err(|_| Malformed("text is not UTF-8"))
    }

    fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.value
            .first_chunk::<N>()
            .copied()
            .ok_or(Malformed("number is too short"))
    }
}

/// Iterates over attributes; ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some((head, _)) = rest.split_at_checked(4) else {
            return Some(Err(Malformed("attribute header is cut off")));
        };
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !FLAGS;
        if length < 4 || length > rest.len() {
            return Some(Err(Malformed("attribute length does not fit")));
        }
        let value = &rest[4..length];
        // The last attribute may come without its padding.
        self.rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Attribute { kind, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.text(1, "pointsman");
        writer.nest(2, |inner| {
            inner.u32_be(1, 7);
            inner.u8(2, 9);
            inner.u64_be(3, 1 << 40);
        });
        assert_eq!(writer.len() % 4, 0);
        let attributes: Vec<_> = Attributes::new(writer.bytes()).map(Result::unwrap).collect();
        assert_eq!(attributes[0].text(), Ok("pointsman"));
        let inner: Vec<_> = attributes[1].nested().map(Result::unwrap).collect();
        assert_eq!(
            (inner[0].u32_be(), inner[1].u8(), inner[2].u64_be()),
            (Ok(7), Ok(9), Ok(1 << 40))
        );
    }

    #[test]
    fn a_nest_beyond_the_length_field_is_noticed() {
        let mut writer = Writer::new();
        writer.nest(1, |inner| {
            for _ in 0..2000 {
                inner.bytes_attribute(1, &[0; 32]);
            }
        });
        assert!(writer.overflowed());
    }

    #[test]
    fn a_lying_length_ends_the_iteration_with_an_error() {
        let bytes = [9, 0, 1, 0, 1, 2, 3, 4];
        assert_eq!(
            Attributes::new(&bytes).collect::<Vec<_>>(),
            [Err(Malformed("attribute length does not fit"))]
        );
    }
}
