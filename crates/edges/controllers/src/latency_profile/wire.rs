//! How are the ledger and the conditions of the profile written down?

use jiff::Timestamp;
use pointsman_latency_profile::rollout::{Claim, Failure, Ledger, Settled, Stored};
use pointsman_latency_profile::state::Owner;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The ledger as text.
pub(super) fn write_ledger(ledger: &Ledger) -> String {
    let raw = RawLedger {
        epoch: ledger.epoch,
        claim: ledger.claim.clone().map(RawClaim),
        failure: ledger.failure.clone().map(RawFailure),
        settled: ledger.settled.clone().map(RawSettled),
    };
    serde_json::to_string(&raw).expect("plain values always serialize")
}

/// Reads a ledger back.
pub(super) fn read_ledger(text: &str) -> Result<Ledger, serde_json::Error> {
    let raw: RawLedger = serde_json::from_str(text)?;
    Ok(Ledger {
        epoch: raw.epoch,
        claim: raw.claim.map(|it| it.0),
        failure: raw.failure.map(|it| it.0),
        settled: raw.settled.map(|it| it.0),
    })
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RawLedger {
    epoch: u64,
    claim: Option<RawClaim>,
    failure: Option<RawFailure>,
    settled: Option<RawSettled>,
}

#[derive(Serialize, Deserialize)]
struct RawClaim(#[serde(with = "ClaimFields")] Claim);

#[derive(Serialize, Deserialize)]
struct RawFailure(#[serde(with = "FailureFields")] Failure);

#[derive(Serialize, Deserialize)]
struct RawSettled(#[serde(with = "SettledFields")] Settled);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Claim", rename_all = "camelCase")]
struct ClaimFields {
    #[serde(with = "owner")]
    owner: Owner,
    holder: String,
    epoch: u64,
    taken_over: bool,
    generation: i64,
    since: Timestamp,
    held_since: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Failure", rename_all = "camelCase")]
struct FailureFields {
    #[serde(with = "owner")]
    owner: Owner,
    generation: i64,
    profile: String,
    reason: String,
    message: String,
    at: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Settled", rename_all = "camelCase")]
struct SettledFields {
    generation: i64,
    profile: String,
}

mod owner {
    use super::*;

    pub fn serialize<S: Serializer>(owner: &Owner, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(owner.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Owner, D::Error> {
        let name = String::deserialize(deserializer)?;
        Owner::parse(&name).ok_or_else(|| serde::de::Error::custom(format!("{name:?} is no owner")))
    }
}

/// A stored condition in JSON; whatever somebody wrote there can be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RawStored(#[serde(with = "StoredFields")] pub Stored);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Stored", rename_all = "camelCase")]
struct StoredFields {
    #[serde(default)]
    owner: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    last_transition_time: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_reads_back_and_an_empty_one_is_fine() {
        let ledger = Ledger {
            epoch: 3,
            claim: Some(Claim {
                owner: Owner::KubeAPIServerOperator,
                holder: "a".into(),
                epoch: 3,
                taken_over: true,
                generation: 2,
                since: Timestamp::UNIX_EPOCH,
                held_since: Timestamp::UNIX_EPOCH,
            }),
            ..Ledger::default()
        };
        let text = write_ledger(&ledger);
        assert!(text.contains(r#""owner":"KubeAPIServerOperator""#), "{text}");
        assert!(text.contains(r#""heldSince":"1970-01-01T00:00:00Z""#), "{text}");
        assert_eq!(read_ledger(&text).unwrap(), ledger);
        assert_eq!(read_ledger("{}").unwrap(), Ledger::default());
    }

    #[test]
    fn fields_of_a_later_version_are_ignored_and_a_ledger_of_another_kind_is_refused() {
        let later =
            r#"{"epoch": 4, "version": 2, "settled": {"generation": 1, "profile": "Default", "by": "x"}}"#;
        let ledger = read_ledger(later).unwrap();
        assert_eq!(
            (ledger.epoch, ledger.settled.unwrap().profile.as_str()),
            (4, "Default")
        );
        let claim = r#"{"claim": {"owner": "SomeOtherOperator", "holder": "a", "epoch": 1}}"#;
        assert!(read_ledger(claim).is_err(), "whoever reads it starts anew");
    }
}
