//! Do the claims in the store match the Services in the store?
//!
//! They always should, since both are written in one transaction. The check runs at start-up for
//! stores that were restored from a backup or written by something else.

use super::{Claim, claims_of};
use crate::value::str_at;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What to do about claims and Services that disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Claims that a Service holds and the store lacks, with the Service's `namespace/name`.
    pub missing: Vec<(Claim, String)>,
    /// Claims in the store that no Service holds.
    pub orphaned: Vec<Claim>,
    /// Claims that several Services hold. Nothing can be done about them but to tell somebody.
    pub conflicting: Vec<Conflict>,
}

/// A claim that several Services hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What they hold.
    pub claim: Claim,
    /// Their `namespace/name`s, in order.
    pub holders: Vec<String>,
}

/// Compares all Services with all claims in the store.
pub fn repair<'a>(
    services: impl IntoIterator<Item = &'a Value>,
    stored: impl IntoIterator<Item = Claim>,
) -> Repair {
    let stored: BTreeSet<Claim> = stored.into_iter().collect();
    let mut holders: BTreeMap<Claim, Vec<String>> = BTreeMap::new();
    for service in services {
        let name = format!(
            "{}/{}",
            str_at(service, &["metadata", "namespace"]),
            str_at(service, &["metadata", "name"])
        );
        for claim in claims_of(service) {
            holders.entry(claim).or_default().push(name.clone());
        }
    }
    let mut repair = Repair {
        orphaned: stored
            .iter()
            .filter(|claim| !holders.contains_key(claim))
            .copied()
            .collect(),
        ..Repair::default()
    };
    for (claim, mut holders) in holders {
        holders.sort();
        if !stored.contains(&claim) {
            repair.missing.push((claim, holders[0].clone()));
        }
        if holders.len() > 1 {
            repair.conflicting.push(Conflict { claim, holders });
        }
    }
    repair
}
