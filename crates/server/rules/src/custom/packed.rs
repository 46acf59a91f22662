//! How is JSON kept that hardly anybody asks for?

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde_json::Value;
use std::io::{BufReader, Write};

/// A value as compressed JSON. Schemas are mostly descriptions, and become a tenth of their size or less.
#[derive(Debug, Default)]
pub struct Packed(Box<[u8]>);

impl Packed {
    pub fn new(value: &Value) -> Self {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(value.to_string().as_bytes())
            .expect("writing to memory");
        Self(encoder.finish().expect("writing to memory").into())
    }

    /// The value; null if there never was one.
    pub fn value(&self) -> Value {
        let json = BufReader::new(ZlibDecoder::new(&*self.0));
        serde_json::from_reader(json).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_comes_out_is_what_went_in_and_takes_less() {
        let text = "What operators would like to have changed. ".repeat(50);
        let value = json!({"b": [text, 1.5, null], "a": {}});
        let packed = Packed::new(&value);
        assert_eq!(packed.value(), value);
        assert!(packed.0.len() < value.to_string().len() / 10);
        assert_eq!(Packed::default().value(), Value::Null);
    }
}
