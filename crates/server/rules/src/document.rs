//! How does a client notice that a document it has cached is still the same?

use bytes::Bytes;
use serde_json::Value;

/// A document: its bytes and a hash of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The JSON text.
    pub body: Bytes,
    /// Sixteen hexadecimal digits; equal for equal bytes, in every process.
    pub hash: String,
}

impl Document {
    /// Renders and hashes `value`.
    pub fn new(value: &Value) -> Self {
        let body = Bytes::from(value.to_string());
        let hash = format!("{:016X}", fnv1a(&body));
        Self { body, hash }
    }

    /// The value of the `ETag` header.
    pub fn etag(&self) -> String {
        format!("\"{}\"", self.hash)
    }
}

/// FNV-1a: not against forgery, but the documents are our own.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
