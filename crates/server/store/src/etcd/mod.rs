//! How are objects kept in an etcd cluster, which several API servers can share?
//!
//! The store's contract is etcd's own, so each call maps to one of etcd's. The calls are made with
//! tonic and hand-written messages (see `messages`), so building needs no `protoc`.
//!
//! Progress: before 3.4.25 and 3.5.8 etcd may answer a progress request ahead of events that it has
//! yet to send (etcd-io/etcd#15220). With such a server this engine does not ask, and reports the
//! progress that etcd sends by itself (`--experimental-watch-progress-notify-interval`).

mod client;
mod feed;
mod keys;
mod messages;

use crate::{
    Answer, Entry, Expect, Op, Outcome, Page, Range, Revision, Store, StoreError, Transaction, Watch,
};
use client::{CallError, Client, header_revision};
use feed::Follower;
use keys::{Namespace, wire_revision};
use messages::*;
use tokio::sync::watch;

/// How many entries one call reads at most; a larger range takes several calls at one revision.
const PAGE: usize = 500;

/// Where etcd is and which part of it is ours.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// URLs of the cluster's members, `http://` or `https://`.
    pub endpoints: Vec<String>,
    /// Put before every key, and taken off again.
    pub prefix: String,
    /// The certificate authority of the servers, in PEM.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate and key, in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether to ask etcd for progress; `None` decides by its version.
    pub ask_progress: Option<bool>,
}

/// The etcd engine.
pub struct EtcdStore {
    client: Client,
    namespace: Namespace,
    asks: watch::Sender<u64>,
    ask_progress: bool,
}

impl EtcdStore {
    /// Connects to etcd, and fails if none of the endpoints answers.
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let client = Client::new(&options)?;
        let version = client.version().await?;
        let ask_progress = options
            .ask_progress
            .unwrap_or_else(|| progress_is_ordered(&version));
        if !ask_progress {
            tracing::warn!(version, "this etcd reports progress at its own interval only");
        }
        Ok(Self {
            client,
            namespace: Namespace::new(&options.prefix),
            asks: watch::Sender::new(0),
            ask_progress,
        })
    }

    async fn read(&self, range: &Range) -> Result<Page, CallError> {
        // Revision 0 means "newest" to etcd. Its first revision is 1, which is as empty as 0.
        let at = range.at.map_or(0, |at| wire_revision(at).max(1));
        let (mut key, range_end) = self.namespace.span(&range.prefix, range.after.as_deref());
        let mut page = Page {
            entries: Vec::new(),
            at: range.at.unwrap_or_default(),
            remaining: 0,
        };
        let mut revision = at;
        loop {
            let wanted = match range.limit {
                0 => PAGE,
                limit => PAGE.min(limit - page.entries.len()),
            };
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: wanted as i64,
                revision,
                count_only: false,
            };
            let answer = self.client.range(request).await?;
            if revision == 0 {
                page.at = header_revision(answer.header.as_ref())?;
                revision = wire_revision(page.at);
            }
            let received = answer.kvs.len();
            page.remaining = u64::try_from(answer.count)
                .unwrap_or(0)
                .saturating_sub(received as u64);
            for kv in answer.kvs {
                page.entries
                    .push(self.namespace.entry(kv).map_err(CallError::Other)?);
            }
            if page.remaining == 0 || received == 0 || page.entries.len() == range.limit {
                return Ok(page);
            }
            let last = page.entries.last().map(|entry| &*entry.key);
            key = self.namespace.span(&range.prefix, last).0;
        }
    }

    async fn write(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let Transaction { expect, ops } = transaction;
        let request = TxnRequest {
            compare: expect
                .iter()
                .map(|(key, expect)| self.compare(key, *expect))
                .collect(),
            success: ops.into_iter().map(|op| self.effect(op)).collect(),
            failure: expect.iter().map(|(key, _)| self.look(key)).collect(),
        };
        let answer = self.client.txn(request).await?;
        if answer.succeeded {
            return Ok(Outcome::Committed(header_revision(answer.header.as_ref())?));
        }
        let mut failed = Vec::new();
        for ((key, expect), response) in expect.into_iter().zip(answer.responses) {
            let kv = response.range.and_then(|range| range.kvs.into_iter().next());
            let entry = kv.map(|kv| self.namespace.entry(kv)).transpose()?;
            if !holds(expect, entry.as_ref()) {
                failed.push((key, entry));
            }
        }
        Ok(Outcome::Refused(failed))
    }

    fn compare(&self, key: &str, expect: Expect) -> Compare {
        let (result, target, union) = match expect {
            Expect::Absent => (
                CompareResult::Equal,
                CompareTarget::Version,
                TargetUnion::Version(0),
            ),
            Expect::Present => (
                CompareResult::Greater,
                CompareTarget::Version,
                TargetUnion::Version(0),
            ),
            Expect::Revision(revision) => {
                // An absent key has modification revision 0 in etcd; no key was ever written at it.
                let revision = if revision.0 == 0 {
                    -1
                } else {
                    wire_revision(revision)
                };
                (
                    CompareResult::Equal,
                    CompareTarget::Mod,
                    TargetUnion::ModRevision(revision),
                )
            }
        };
        Compare {
            result: result as i32,
            target: target as i32,
            key: self.namespace.wrap(key),
            target_union: Some(union),
        }
    }

    fn effect(&self, op: Op) -> RequestOp {
        let request = match op {
            Op::Put(key, value) => Request::Put(PutRequest {
                key: self.namespace.wrap(&key),
                value,
            }),
            Op::Delete(key) => Request::Delete(DeleteRangeRequest {
                key: self.namespace.wrap(&key),
            }),
        };
        RequestOp {
            request: Some(request),
        }
    }

    fn look(&self, key: &str) -> RequestOp {
        let range = RangeRequest {
            key: self.namespace.wrap(key),
            ..RangeRequest::default()
        };
        RequestOp {
            request: Some(Request::Range(range)),
        }
    }

    /// Completes an error with the revisions that etcd does not tell.
    async fn explain(&self, error: CallError, asked: Revision) -> StoreError {
        match error {
            CallError::Other(error) => error,
            CallError::Compacted => {
                let oldest = self.client.compacted().await.unwrap_or(Revision(asked.0 + 1));
                StoreError::Compacted { asked, oldest }
            }
            CallError::Future => match self.client.revision().await {
                Ok(newest) => StoreError::Future { asked, newest },
                Err(error) => error.into(),
            },
        }
    }
}

impl Store for EtcdStore {
    fn own_backup(&self) -> Option<&'static str> {
        Some("objects are kept in etcd: back them up with `etcdctl snapshot save FILE`")
    }

    fn revision(&self) -> Answer<'_, Revision> {
        Box::pin(async { Ok(self.client.revision().await?) })
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(async move {
            match self.read(&range).await {
                Ok(page) => Ok(page),
                Err(error) => Err(self.explain(error, range.at.unwrap_or_default()).await),
            }
        })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async move {
            transaction.check()?;
            self.write(transaction).await
        })
    }

    fn watch(&self, prefix: String, from: Revision) -> Answer<'_, Box<dyn Watch>> {
        Box::pin(async move {
            // Etcd would wait for a revision that may never come to pass in this history.
            let newest = self.client.revision().await?;
            if from > newest {
                return Err(StoreError::Future { asked: from, newest });
            }
            let (client, namespace) = (self.client.clone(), self.namespace.clone());
            let follower = Follower::new(client, namespace, prefix, from, self.asks.subscribe());
            Ok(Box::new(follower) as Box<dyn Watch>)
        })
    }

    fn request_progress(&self) -> Answer<'_, ()> {
        Box::pin(async {
            if self.ask_progress {
                self.asks.send_modify(|asks| *asks += 1);
            }
            Ok(())
        })
    }

    fn compact(&self, revision: Revision) -> Answer<'_, ()> {
        Box::pin(async move {
            match self.client.compact(revision).await {
                // Another server that shares this etcd may have been quicker.
                Ok(()) | Err(CallError::Compacted) => Ok(()),
                Err(error) => Err(self.explain(error, revision).await),
            }
        })
    }
}

fn holds(expect: Expect, entry: Option<&Entry>) -> bool {
    match expect {
        Expect::Absent => entry.is_none(),
        Expect::Present => entry.is_some(),
        Expect::Revision(revision) => entry.is_some_and(|entry| entry.revision == revision),
    }
}

/// Whether progress that is asked for comes after the events before it, by the server's version.
fn progress_is_ordered(version: &str) -> bool {
    let mut parts = version
        .split(['.', '-'])
        .map(|part| part.parse::<u64>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    match (part(), part(), part()) {
        (3, 4, patch) => patch >= 25,
        (3, 5, patch) => patch >= 8,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

#[cfg(test)]
mod tests {
    use super::progress_is_ordered;

    #[test]
    fn progress_is_asked_for_only_where_it_cannot_overtake_events() {
        for version in ["3.4.25", "3.5.8", "3.5.21", "3.6.0", "3.6.0-rc.1", "4.0.0"] {
            assert!(progress_is_ordered(version), "{version}");
        }
        for version in ["3.3.27", "3.4.23", "3.5.1", "3.5.7", "", "unknown"] {
            assert!(!progress_is_ordered(version), "{version}");
        }
    }
}
