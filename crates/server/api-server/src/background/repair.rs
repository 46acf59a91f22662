//! Do Services, their claims and the IPAddresses that show them agree after whatever happened to the store?

use crate::cache::object::Object;
use crate::keys;
use crate::server::Server;
use crate::write::allocation::{shown, shown_at, store_key};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use pointsman_rules::allocation::{self, Claim, objects};
use pointsman_rules::kinds::declared::IP_ADDRESS;
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, Kind, kinds};
use pointsman_store::{Expect, Op, Transaction};
use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;

/// How many writes are under way at once, so that they share commits.
const TOGETHER: usize = 100;

/// Compares Services with the claims in the store and mends what differs. Runs before the server is ready.
pub async fn run(server: &Server) -> Result<(), ApiError> {
    let kind = &kinds::SERVICE;
    let services: Vec<Value> = all(server, kind).iter().map(|service| service.value()).collect();
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
    let mut transactions = addresses(server, &services);
    for (claim, holder) in &repair.missing {
        let value = Bytes::from(keys::collection(kind) + holder);
        tracing::warn!(
            claim = claim.key(),
            service = holder,
            "a Service's claim was missing"
        );
        transactions.push(put(store_key(claim), value));
    }
    for claim in &repair.orphaned {
        tracing::warn!(claim = claim.key(), "a claim had no Service");
        transactions.push(Transaction {
            expect: Vec::new(),
            ops: vec![Op::Delete(store_key(claim))],
        });
    }
    stream::iter(
        transactions
            .into_iter()
            .map(|transaction| server.store.commit(transaction)),
    )
    .buffer_unordered(TOGETHER)
    .try_for_each(|_| async { Ok(()) })
    .await
    .map_err(|error| server.store_error(&error))
}

/// What brings the IPAddresses of Services up to date. Earlier releases wrote none.
fn addresses(server: &Server, services: &[Value]) -> Vec<Transaction> {
    let mut held = HashSet::new();
    let mut transactions = Vec::new();
    for service in services {
        let name = |field| str_at(service, &["metadata", field]);
        for claim in allocation::claims_of(service) {
            let Claim::Address(address) = claim else { continue };
            let text = address.to_string();
            if held.insert(text.clone()) && server.cache.of(&IP_ADDRESS).get(&text).is_none() {
                let holder = keys::local(name("namespace"), name("name"));
                transactions.push(put(shown_at(address), shown(address, &holder)));
            }
        }
    }
    let left = all(server, &IP_ADDRESS).into_iter();
    let left = left.filter(|shown| !held.contains(shown.name()) && objects::shows_claim(&shown.value()));
    transactions.extend(left.map(|shown| {
        let key: Arc<str> = keys::object(&IP_ADDRESS, "", shown.name()).into();
        Transaction {
            expect: vec![(key.clone(), Expect::Revision(shown.revision))],
            ops: vec![Op::Delete(key)],
        }
    }));
    transactions
}

fn all(server: &Server, kind: &'static Kind) -> Vec<Arc<Object>> {
    let collection = server.cache.of(kind);
    collection.list("", None, server.cache.applied()).objects
}

fn put(key: Arc<str>, value: Bytes) -> Transaction {
    Transaction {
        expect: vec![(key.clone(), Expect::Absent)],
        ops: vec![Op::Put(key, value)],
    }
}
