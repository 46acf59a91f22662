//! How is etcd called, and what do its errors mean to us?

use super::Options;
use super::keys::{revision, wire_revision};
use super::messages::*;
use crate::{Revision, StoreError};
use futures::{Stream, StreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request as Call, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long a call may take. Longer than etcd's own limit of about 7 s, whose answer says more.
const CALL: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a silent connection is checked; etcd drops clients that ping more often than every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What went wrong with a call.
#[derive(Debug)]
pub enum CallError {
    Compacted,
    Future,
    Other(StoreError),
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        let damaged = |what: &str| StoreError::Damaged(format!("etcd called a write {what}"));
        match error {
            CallError::Compacted => damaged("compacted"),
            CallError::Future => damaged("a future revision"),
            CallError::Other(error) => error,
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let message = status.message();
        // The texts are part of etcd's API: its own clients tell errors apart by them.
        let error = match status.code() {
            Code::OutOfRange if message.contains("has been compacted") => return CallError::Compacted,
            Code::OutOfRange if message.contains("future revision") => return CallError::Future,
            Code::ResourceExhausted if message.contains("space exceeded") => StoreError::Full,
            Code::InvalidArgument | Code::OutOfRange => StoreError::Invalid(message.into()),
            Code::ResourceExhausted if message.contains("larger than max") => {
                StoreError::Invalid(message.into())
            }
            code => StoreError::Unavailable(format!("{code:?}: {message}")),
        };
        CallError::Other(error)
    }
}

/// A connection to an etcd cluster, which comes back by itself after a loss.
#[derive(Clone, Debug)]
pub struct Client {
    calls: Channel,
    /// A connection of their own, so that a commit never queues behind a thousand watches.
    watches: Channel,
}

impl Client {
    /// Prepares a connection to any of the endpoints; the first call makes it.
    pub fn new(options: &Options) -> Result<Self, StoreError> {
        let invalid =
            |error: tonic::transport::Error| StoreError::Invalid(format!("etcd endpoints: {error:?}"));
        let mut endpoints = Vec::new();
        for url in &options.endpoints {
            let mut endpoint = Endpoint::from_shared(url.clone())
                .map_err(invalid)?
                .connect_timeout(CONNECT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(16 << 20);
            if url.starts_with("https:") {
                endpoint = endpoint.tls_config(tls(options)).map_err(invalid)?;
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(StoreError::Invalid("no etcd endpoint is given".into()));
        }
        Ok(Self {
            calls: channel(&endpoints),
            watches: channel(&endpoints),
        })
    }

    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, CallError> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    /// Commits a transaction.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, CallError> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    pub async fn compact(&self, revision: Revision) -> Result<(), CallError> {
        let request = CompactionRequest {
            revision: wire_revision(revision),
        };
        let _: CompactionResponse = self.call("/etcdserverpb.KV/Compact", request).await?;
        Ok(())
    }

    /// The version of one of the servers.
    pub async fn version(&self) -> Result<String, CallError> {
        let status: StatusResponse = self
            .call("/etcdserverpb.Maintenance/Status", StatusRequest {})
            .await?;
        Ok(status.version)
    }

    /// The newest revision, read through the cluster's leader.
    pub async fn revision(&self) -> Result<Revision, CallError> {
        let request = RangeRequest {
            key: bytes::Bytes::from_static(b"\0"),
            count_only: true,
            ..RangeRequest::default()
        };
        let answer = self.range(request).await?;
        header_revision(answer.header.as_ref())
    }

    /// The revision before which history is forgotten. Etcd tells it only to a watch that is too old.
    pub async fn compacted(&self) -> Option<Revision> {
        let create = WatchCreateRequest {
            key: bytes::Bytes::from_static(b"\0"),
            start_revision: 1,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest {
            action: Some(WatchAction::Create(create)),
        };
        let requests = futures::stream::iter([request]).chain(futures::stream::pending());
        let ask = async {
            let mut answers = self.watch(requests).await.ok()?;
            while let Ok(Some(answer)) = answers.message().await {
                if answer.canceled {
                    return Some(revision(answer.compact_revision));
                }
            }
            None
        };
        tokio::time::timeout(CALL, ask).await.ok()?
    }

    /// Opens a stream of watches.
    pub async fn watch(
        &self,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, CallError> {
        let mut grpc = ready(&self.watches).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let answer = grpc
            .streaming(Call::new(requests), path, ProstCodec::default())
            .await?;
        Ok(answer.into_inner())
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CallError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let call = async {
            let mut grpc = ready(&self.calls).await?;
            let path = PathAndQuery::from_static(path);
            let answer = grpc
                .unary(Call::new(request), path, ProstCodec::default())
                .await?;
            Ok(answer.into_inner())
        };
        let late = || CallError::Other(StoreError::Unavailable(format!("no answer within {CALL:?}")));
        tokio::time::timeout(CALL, call)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

/// A connection to one endpoint, or to whichever of several answers.
fn channel(endpoints: &[Endpoint]) -> Channel {
    match endpoints {
        [one] => one.connect_lazy(),
        several => Channel::balance_list(several.iter().cloned()),
    }
}

async fn ready(channel: &Channel) -> Result<Grpc<Channel>, CallError> {
    let mut grpc = Grpc::new(channel.clone())
        .max_decoding_message_size(i32::MAX as usize)
        .max_encoding_message_size(i32::MAX as usize);
    grpc.ready()
        .await
        .map_err(|error| CallError::Other(StoreError::Unavailable(format!("etcd: {error:?}"))))?;
    Ok(grpc)
}

/// The revision in the header of an answer.
pub fn header_revision(header: Option<&ResponseHeader>) -> Result<Revision, CallError> {
    let missing = || CallError::Other(StoreError::Damaged("an answer of etcd has no header".into()));
    header.map(|header| revision(header.revision)).ok_or_else(missing)
}

fn tls(options: &Options) -> ClientTlsConfig {
    let mut tls = ClientTlsConfig::new();
    if let Some(ca) = &options.ca {
        tls = tls.ca_certificate(Certificate::from_pem(ca));
    }
    if let Some((certificate, key)) = &options.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    tls
}
