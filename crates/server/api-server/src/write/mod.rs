//! `create`, `update`, `patch`, `delete` and the subresources that write.
//!
//! Every write is: read the present version from the cache, compute the next one by pure rules, commit
//! it on the condition that the version is still the same. If it is not, the store's answer carries the
//! newer version and the computation starts over from that.

pub mod allocation;
pub mod create;
pub mod delete;
pub mod metadata;
pub mod rules;
pub mod stamp;
pub mod subresource;
pub mod update;

use crate::cache::object::Object;
use crate::keys;
use crate::server::Server;
use crate::stored::{self, EventType};
use jiff::Timestamp;
use pointsman_rules::{ApiError, Kind};
use pointsman_store::{Expect, Op, Outcome, Revision, Transaction};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

/// How often a write is recomputed because the object changed under it.
pub const MAX_ATTEMPTS: usize = 64;

/// What a commit came to.
pub enum Committed {
    /// The write is durable; this is the version it made (for a removal: the last state).
    Done(Arc<Object>),
    /// The object changed, appeared or vanished; this is what is there now.
    Moved(Option<Arc<Object>>),
    /// A claim on an address or port is taken.
    ClaimTaken,
}

/// One write of one object, with the claims that go with it.
pub struct Write<'a> {
    pub kind: &'static Kind,
    /// The namespace; empty for cluster-wide kinds.
    pub namespace: &'a str,
    pub name: &'a str,
    /// The version that is replaced; `None` creates.
    pub old: Option<&'a Object>,
    /// The next version; `None` removes.
    pub new: Option<&'a Value>,
    /// Claims to take and to release in the same transaction.
    pub claims: allocation::ClaimKeys,
}

impl Server {
    /// Commits one write and waits until this server's own reads show it.
    pub async fn commit(&self, mut write: Write<'_>) -> Result<Committed, ApiError> {
        let now = Timestamp::now();
        let key: Arc<str> = keys::object(write.kind, write.namespace, write.name).into();
        let expect = match write.old {
            None => Expect::Absent,
            Some(old) => Expect::Revision(old.revision),
        };
        let mut transaction = Transaction {
            expect: vec![(key.clone(), expect)],
            ops: Vec::new(),
        };
        let bytes = match (write.new, write.old) {
            (Some(new), _) => {
                let new = stamp::written(write.kind, new, now);
                let bytes = stored::encode(write.kind.stored(), &new);
                transaction.ops.push(Op::Put(key.clone(), bytes.clone()));
                bytes
            }
            (None, Some(_)) => {
                transaction.ops.push(Op::Delete(key.clone()));
                stamp::removal(write.kind, &mut transaction, now);
                bytes::Bytes::new()
            }
            (None, None) => {
                return Err(ApiError::Internal(
                    "a removal needs the version it removes".into(),
                ));
            }
        };
        std::mem::take(&mut write.claims).add_to(&mut transaction, &key);
        let started = Instant::now();
        let outcome = self
            .store
            .commit(transaction)
            .await
            .map_err(|error| self.store_error(&error))?;
        self.metrics.store_took("commit", started.elapsed());
        match outcome {
            Outcome::Committed(revision) => {
                self.cache.wait_for(revision).await;
                self.made(&write, key, &bytes, revision).map(Committed::Done)
            }
            Outcome::Refused(failed) => {
                let Some((_, entry)) = failed.into_iter().find(|(failed, _)| *failed == key) else {
                    return Ok(Committed::ClaimTaken);
                };
                let object = entry.and_then(|entry| crate::cache::read_entry(&entry, EventType::Modified));
                Ok(Committed::Moved(object))
            }
        }
    }

    fn made(
        &self,
        write: &Write<'_>,
        key: Arc<str>,
        bytes: &[u8],
        revision: Revision,
    ) -> Result<Arc<Object>, ApiError> {
        let local = keys::local(write.namespace, write.name);
        let cached = self.cache.of(write.kind).get(&local);
        if let Some(made) = cached.filter(|object| object.revision == revision && write.new.is_some()) {
            return Ok(made);
        }
        // Somebody else has changed it since, or it is gone: show what this write made.
        let damaged = |error| {
            ApiError::Internal(format!(
                "the version just written to {key} is unreadable: {error}"
            ))
        };
        let kind = write.kind.stored();
        match (write.new, write.old) {
            (Some(_), _) => Object::from_stored(kind, local.into(), bytes, revision, EventType::Modified)
                .map(Arc::new)
                .map_err(damaged),
            (None, old) => {
                let value = old.map(Object::value).unwrap_or_default();
                let bytes = stored::encode(kind, &value);
                Object::from_stored(kind, local.into(), &bytes, revision, EventType::Deleted)
                    .map(Arc::new)
                    .map_err(damaged)
            }
        }
    }
}
