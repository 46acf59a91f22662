//! Who holds a lease, and when was it last renewed?

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::metadata::Metadata;
use crate::read::nullable;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: LeaseSpec,
}

/// The spec of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Who leads; empty when the lease was given back.
    #[serde(deserialize_with = "nullable")]
    pub holder_identity: Box<str>,
    /// How long the holder may stay silent.
    #[serde(deserialize_with = "nullable")]
    pub lease_duration_seconds: i32,
    /// When the holder took over.
    pub acquire_time: Option<MicroTime>,
    /// When the holder was last alive, by its own clock.
    pub renew_time: Option<MicroTime>,
    /// How often the holder changed.
    #[serde(deserialize_with = "nullable")]
    pub lease_transitions: i32,
}

/// A time with exactly six digits after the second, which is the only form that the API takes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroTime(pub Timestamp);

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.0))
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_with_six_digits() {
        let time = MicroTime("2026-11-15T20:00:00.5Z".parse().unwrap());
        assert_eq!(
            serde_json::to_string(&time).unwrap(),
            "\"2026-11-15T20:00:00.500000Z\""
        );
    }
}
