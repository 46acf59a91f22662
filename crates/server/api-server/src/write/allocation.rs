//! Which addresses and ports does a Service hold, and who else may not have them?
//!
//! A claim is a key of its own, written in the same transaction as the Service on the condition that
//! nobody has it. So two Services can never share an address, whichever servers wrote them, and a crash
//! cannot separate a Service from its claims.

use crate::cache::Cache;
use crate::keys;
use crate::server::Server;
use bytes::Bytes;
use pointsman_rules::allocation::{self, Claim, InUse};
use pointsman_rules::{ApiError, Kind, kinds};
use pointsman_store::{Expect, Op, Transaction};
use serde_json::Value;
use std::sync::Arc;

/// The claims that a write takes and releases, by store key.
#[derive(Clone, Debug, Default)]
pub struct ClaimKeys {
    take: Vec<Arc<str>>,
    release: Vec<Arc<str>>,
}

impl ClaimKeys {
    /// Adds the claims to the transaction that writes their holder.
    pub fn add_to(self, transaction: &mut Transaction, holder: &Arc<str>) {
        for key in self.take {
            transaction.expect.push((key.clone(), Expect::Absent));
            transaction
                .ops
                .push(Op::Put(key, Bytes::copy_from_slice(holder.as_bytes())));
        }
        transaction.ops.extend(self.release.into_iter().map(Op::Delete));
    }
}

struct Claimed<'a>(&'a Cache);

impl InUse for Claimed<'_> {
    fn holds(&self, claim: &Claim) -> bool {
        self.0.claim(&store_key(claim)).is_some()
    }
}

fn store_key(claim: &Claim) -> String {
    format!("{}{}", keys::CLAIMS, claim.key())
}

impl Server {
    /// Fills in the addresses and ports of a Service that is created or changed; other kinds hold none.
    pub fn allocate(&self, kind: &Kind, new: &mut Value, old: Option<&Value>) -> Result<ClaimKeys, ApiError> {
        if kind != &kinds::SERVICE {
            return Ok(ClaimKeys::default());
        }
        let mut pick = |below| self.random_below(below);
        let plan = allocation::plan(new, old, &self.cluster, &Claimed(&self.cache), &mut pick).map_err(
            |errors| {
                ApiError::invalid(
                    kind,
                    pointsman_rules::value::str_at(new, &["metadata", "name"]),
                    errors,
                )
            },
        )?;
        let keys = |claims: Vec<Claim>| claims.iter().map(|claim| store_key(claim).into()).collect();
        Ok(ClaimKeys {
            take: keys(plan.claim),
            release: keys(plan.release),
        })
    }

    /// The claims to release with a Service that is removed.
    pub fn release(&self, kind: &Kind, object: &Value) -> ClaimKeys {
        if kind != &kinds::SERVICE {
            return ClaimKeys::default();
        }
        let release = allocation::claims_of(object)
            .iter()
            .map(|claim| store_key(claim).into())
            .collect();
        ClaimKeys {
            take: Vec::new(),
            release,
        }
    }
}
