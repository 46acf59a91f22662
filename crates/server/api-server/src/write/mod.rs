//! `create`, `update`, `patch`, `delete` and the subresources that write.
//!
//! Every write is: read the present version from the cache, compute the next one by pure rules, commit
//! it on the condition that the version is still the same. If it is not, the store's answer carries the
//! newer version and the computation starts over from that.
//!
//! A computation is one turn of [`crate::work`], from the body's bytes to the bytes to store: what waits for the store
//! holds no parsed object.

pub mod allocation;
pub mod certificates;
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
use crate::work;
use bytes::Bytes;
use jiff::Timestamp;
use pointsman_rules::{ApiError, Kind};
use pointsman_store::{Expect, Op, Outcome, Revision, Transaction};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

/// How often a write of this many bytes is computed because the object changed under it. The few are upstream's number
/// for patches.
fn max_attempts(bytes: usize) -> usize {
    if work::is_small(bytes) { 64 } else { 6 }
}

/// What a commit came to.
pub enum Committed {
    /// The write is durable; this is the version it made (for a removal: the last state).
    Done(Arc<Object>),
    /// The object changed, appeared or vanished; this is what is there now.
    Moved(Option<Arc<Object>>),
    /// A claim on an address or port is taken.
    ClaimTaken,
}

/// The next version of an object as it is stored, with the time of its write where the kind has one.
fn encoded(kind: &'static Kind, mut object: Value) -> Bytes {
    stamp::written(kind, &mut object, Timestamp::now());
    stored::encode(kind.stored(), &object)
}

/// One write of one object, with the claims that go with it.
pub struct Write<'a> {
    pub kind: &'static Kind,
    /// The namespace; empty for cluster-wide kinds.
    pub namespace: &'a str,
    pub name: &'a str,
    /// The version that is replaced; `None` creates.
    pub old: Option<&'a Object>,
    /// The next version as it is stored; `None` removes.
    pub new: Option<Bytes>,
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
        match (&write.new, write.old) {
            (Some(new), _) => transaction.ops.push(Op::Put(key.clone(), new.clone())),
            (None, Some(_)) => {
                transaction.ops.push(Op::Delete(key.clone()));
                stamp::removal(write.kind, &mut transaction, now);
            }
            (None, None) => {
                return Err(ApiError::Internal(
                    "a removal needs the version it removes".into(),
                ));
            }
        }
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
                let local = keys::local(write.namespace, write.name);
                let cached = self.cache.of(write.kind).get(&local);
                if let Some(made) = cached.filter(|object| object.revision == revision && write.new.is_some())
                {
                    return Ok(Committed::Done(made));
                }
                // Somebody else has changed it since, or it is gone: show what this write made.
                let bytes = write.new.as_ref().map_or(0, Bytes::len) + write.old.map_or(0, Object::size);
                let made = self.work.system.on(bytes, || made(&write, &key, local, revision));
                made.await.map(Committed::Done)
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
}

fn made(write: &Write<'_>, key: &str, local: String, revision: Revision) -> Result<Arc<Object>, ApiError> {
    let kind = write.kind.stored();
    let read = |bytes: &[u8], event| {
        let object = Object::from_stored(kind, local.into(), bytes, revision, event);
        object.map(Arc::new).map_err(|error| {
            ApiError::Internal(format!(
                "the version just written to {key} is unreadable: {error}"
            ))
        })
    };
    match (&write.new, write.old) {
        (Some(new), _) => read(new, EventType::Modified),
        (None, old) => {
            let value = old.map(Object::value).unwrap_or_default();
            read(&stored::encode(kind, &value), EventType::Deleted)
        }
    }
}
