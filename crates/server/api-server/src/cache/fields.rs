//! What of an object can a field selector see?
//!
//! Selectors name plain values: reading only those costs a fraction of reading a whole object, and a list
//! with a field selector reads every object once.

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The object without its metadata, and without lists and objects below `spec` and `status`. The one list that
/// a selector looks into stays.
pub fn selectable_part(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::Deserializer::from_slice(json).deserialize_map(Part::Whole)
}

/// How much of a value is kept.
#[derive(Clone, Copy)]
enum Part {
    /// The object itself.
    Whole,
    /// `spec` or `status`.
    Half,
    /// A field of one of these.
    Plain,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Value, M::Error> {
        let mut kept = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = match (self, name.as_str()) {
                (Self::Plain, _) | (Self::Whole, "metadata") => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                (Self::Whole, "spec" | "status") => fields.next_value_seed(Self::Half)?,
                (Self::Whole, _) | (Self::Half, "podIPs") => fields.next_value()?,
                (Self::Half, _) => fields.next_value_seed(Self::Plain)?,
            };
            kept.insert(name, value);
        }
        Ok(Value::Object(kept))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Value, S::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_values_stay_and_the_rest_is_skipped() {
        let pod = json!({
            "kind": "Pod",
            "metadata": { "name": "a" },
            "spec": { "nodeName": "n1", "hostNetwork": true, "priority": -1, "containers": [{ "name": "c" }],
                "securityContext": { "fsGroup": 1 } },
            "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }], "conditions": [1, 2], "x": null },
            "involvedObject": { "name": "b" },
        });
        let part = selectable_part(pod.to_string().as_bytes()).unwrap();
        assert_eq!(
            part,
            json!({
                "kind": "Pod",
                "spec": { "nodeName": "n1", "hostNetwork": true, "priority": -1, "containers": null,
                    "securityContext": {} },
                "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }], "conditions": null, "x": null },
                "involvedObject": { "name": "b" },
            })
        );
        assert!(selectable_part(b"{").is_err());
        assert!(selectable_part(b"[]").is_err());
    }
}
