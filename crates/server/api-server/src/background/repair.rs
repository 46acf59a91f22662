//! Do Services and their claims agree after whatever happened to the store?

use crate::keys;
use crate::server::Server;
use bytes::Bytes;
use pointsman_rules::allocation::{self, Claim};
use pointsman_rules::{ApiError, kinds};
use pointsman_store::{Expect, Op, Transaction};
use serde_json::Value;
use std::sync::Arc;

/// Compares Services with the claims in the store and mends what differs. Runs before the server is ready.
pub async fn run(server: &Server) -> Result<(), ApiError> {
    let kind = &kinds::SERVICE;
    let services = server
        .cache
        .of(kind)
        .list("", None, server.cache.applied())
        .objects;
    let services: Vec<Value> = services.iter().map(|service| service.value()).collect();
    let stored = server.cache.claims();
    let claims = stored
        .iter()
        .filter_map(|(key, _)| Claim::from_key(key.strip_prefix(keys::CLAIMS)?));
    let repair = allocation::repair(services.iter(), claims);
    for conflict in &repair.conflicting {
        tracing::error!(
            claim = conflict.claim.key(),
            holders = conflict.holders.join(","),
            "several Services hold the same address or port; delete all but one of them"
        );
    }
    for (claim, holder) in &repair.missing {
        let key: Arc<str> = format!("{}{}", keys::CLAIMS, claim.key()).into();
        let value = Bytes::from(keys::collection(kind) + holder);
        tracing::warn!(
            claim = claim.key(),
            service = holder,
            "a Service's claim was missing"
        );
        let expect = vec![(key.clone(), Expect::Absent)];
        commit(
            server,
            Transaction {
                expect,
                ops: vec![Op::Put(key, value)],
            },
        )
        .await?;
    }
    for claim in &repair.orphaned {
        let key: Arc<str> = format!("{}{}", keys::CLAIMS, claim.key()).into();
        tracing::warn!(claim = claim.key(), "a claim had no Service");
        commit(
            server,
            Transaction {
                expect: Vec::new(),
                ops: vec![Op::Delete(key)],
            },
        )
        .await?;
    }
    Ok(())
}

async fn commit(server: &Server, transaction: Transaction) -> Result<(), ApiError> {
    server
        .store
        .commit(transaction)
        .await
        .map(drop)
        .map_err(|error| server.store_error(&error))
}
