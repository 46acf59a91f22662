//! How is a container runtime called, and what do its errors mean to us?

use super::messages::*;
use crate::RuntimeError;
use http::uri::PathAndQuery;
use prost::Message;
use std::io;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request as Call, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long most calls may take.
const CALL: Duration = Duration::from_secs(120);
/// How long fetching an image may take.
const PULL: Duration = Duration::from_secs(30 * 60);
/// The largest answer: what a command says, which runtimes cap.
const LARGEST: usize = 17 << 20;

/// A connection to a runtime's socket, which comes back by itself after a loss.
#[derive(Clone, Debug)]
pub struct Client(Channel);

impl Client {
    /// Prepares a connection to `unix:///path`; the first call makes it.
    pub fn new(endpoint: &str) -> Result<Self, RuntimeError> {
        let bad = |why: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
            RuntimeError::system(format!("use the container runtime endpoint {endpoint:?}"), error)
        };
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !path.starts_with('/') {
            return Err(bad(
                "it is no socket's path like unix:///run/containerd/containerd.sock",
            ));
        }
        let endpoint = Endpoint::from_shared(format!("unix://{path}"));
        let endpoint = endpoint.map_err(|error| bad(&error.to_string()))?;
        Ok(Self(
            endpoint.connect_timeout(Duration::from_secs(5)).connect_lazy(),
        ))
    }

    /// Calls a method of the runtime service.
    pub async fn runtime<A: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + 'static,
    ) -> Result<A, Status> {
        self.call("runtime.v1.RuntimeService", method, request, CALL)
            .await
    }

    /// Calls a method of the image service.
    pub async fn image<A: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + 'static,
    ) -> Result<A, Status> {
        self.call("runtime.v1.ImageService", method, request, PULL).await
    }

    /// The same as [`Self::runtime`], for as long as it takes.
    pub async fn wait<A: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + 'static,
    ) -> Result<A, Status> {
        self.call("runtime.v1.RuntimeService", method, request, Duration::MAX)
            .await
    }

    async fn call<A: Message + Default + 'static>(
        &self,
        service: &str,
        method: &str,
        request: impl Message + 'static,
        within: Duration,
    ) -> Result<A, Status> {
        let call = async {
            let (mut grpc, path) = self.ready(service, method).await?;
            let answer = grpc.unary(Call::new(request), path, ProstCodec::default());
            Ok(answer.await?.into_inner())
        };
        let late = || Status::deadline_exceeded(format!("the container runtime gave no answer to {method}"));
        tokio::time::timeout(within, call)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// The ends of processes, as containerd tells them.
    pub async fn task_exits(&self) -> Result<Streaming<Envelope>, Status> {
        let request = SubscribeRequest {
            filters: vec![r#"namespace==k8s.io,topic=="/tasks/exit""#.to_owned()],
        };
        self.stream("containerd.services.events.v1.Events", "Subscribe", request)
            .await
    }

    /// What happens to containers, as runtimes tell it that implement this part of the interface.
    pub async fn container_events(&self) -> Result<Streaming<ContainerEvent>, Status> {
        self.stream("runtime.v1.RuntimeService", "GetContainerEvents", Empty {})
            .await
    }

    async fn stream<A: Message + Default + 'static>(
        &self,
        service: &str,
        method: &str,
        request: impl Message + 'static,
    ) -> Result<Streaming<A>, Status> {
        let (mut grpc, path) = self.ready(service, method).await?;
        let answer = grpc.server_streaming(Call::new(request), path, ProstCodec::default());
        Ok(answer.await?.into_inner())
    }

    async fn ready(&self, service: &str, method: &str) -> Result<(Grpc<Channel>, PathAndQuery), Status> {
        let path = PathAndQuery::try_from(format!("/{service}/{method}"));
        let path = path.map_err(|error| Status::internal(error.to_string()))?;
        let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(LARGEST);
        let refused =
            |error| Status::unavailable(format!("no connection to the container runtime: {error:?}"));
        grpc.ready().await.map_err(refused)?;
        Ok((grpc, path))
    }
}

/// Whether a runtime does not know what was asked about.
pub fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound
}

/// A failed call as an error that may pass.
pub fn failed(doing: impl Into<String>, status: &Status) -> RuntimeError {
    RuntimeError::system(doing, io::Error::other(status.message().to_owned()))
}
