//! How does somebody talk to programs in containers of a container runtime?
//!
//! The runtime answers with the address of a server of its own, on a loopback address of its network. What is spoken there
//! is SPDY/3.1, which all versions know: the streams of a command, and at the end a Status on the one called `error`.

mod connection;

use super::client::{failed, is_unknown};
use super::messages::{
    AttachRequest, PodSandboxStatusResponse, SandboxId, StreamingExecRequest, StreamsResponse,
};
use super::{Inner, blocking};
use crate::process::network::system;
use crate::process::pod::sandbox_record;
use crate::process::session::connect_inside;
use crate::{Attachable, ContainerId, ExecEnd, Network, PodUid, RuntimeError, Session, SessionRequest};
use connection::Connection;
use pointsman_fabric::Netns;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;

impl Inner {
    /// Runs a command with streams. The interface has no call that ends it: when its client has gone it goes on, as
    /// under a kubelet, unless it ends with its input.
    pub(super) async fn open_in(
        self: &Arc<Self>,
        id: &ContainerId,
        request: SessionRequest,
    ) -> Result<Session, RuntimeError> {
        let SessionRequest { command, stdin, tty } = request;
        let call = StreamingExecRequest {
            container_id: self.running_name(id)?,
            cmd: command,
            tty,
            stdin,
            stdout: true,
            stderr: !tty,
        };
        let answer = self.client.runtime("Exec", call).await;
        let answer: StreamsResponse =
            answer.map_err(|status| self.no_exec(id, is_unknown(&status), status.message()))?;
        let (mut session, status) = self.session(&answer.url, stdin, tty).await?;
        let (inner, id) = (self.clone(), id.clone());
        session.end = Box::pin(async move {
            let said = status.said().await;
            ended(&said).map_err(|message| inner.no_exec(&id, false, &message))
        });
        Ok(session)
    }

    pub(super) async fn attach_to(
        &self,
        id: &ContainerId,
        wants: Attachable,
    ) -> Result<Session, RuntimeError> {
        let Attachable { stdin, tty, .. } = wants;
        let call = AttachRequest {
            container_id: self.running_name(id)?,
            stdin,
            tty,
            stdout: true,
            stderr: !tty,
        };
        let answer: Result<StreamsResponse, _> = self.client.runtime("Attach", call).await;
        let answer = answer.map_err(|status| failed(format!("attach to container {id}"), &status))?;
        let (mut session, status) = self.session(&answer.url, stdin, tty).await?;
        session.end = Box::pin(async move {
            // It ends with the container; how that ended, its status says.
            status.said().await;
            Ok(ExecEnd::Exited(0))
        });
        Ok(session)
    }

    /// Connects to a port that something in the pod listens on, from inside of its network as runtimes do it.
    pub(super) async fn connect_in(
        self: &Arc<Self>,
        pod: &PodUid,
        port: u16,
    ) -> Result<TcpStream, RuntimeError> {
        let (inner, asked) = (self.clone(), pod.clone());
        let record = blocking(move || sandbox_record(&inner.layout, &asked)).await?;
        let record = record.ok_or_else(|| RuntimeError::NoSuchPod(pod.clone()))?;
        let netns = match record.spec.network {
            Network::Host => self.node.clone(),
            Network::Own => {
                let path = self.netns_path(pod).await?;
                blocking(move || Netns::open(&path).map_err(system)).await?
            }
        };
        connect_inside(netns, port).await
    }

    /// Where the network of a pod is, which the interface leaves to what runtimes say beyond it.
    async fn netns_path(&self, pod: &PodUid) -> Result<PathBuf, RuntimeError> {
        let request = SandboxId {
            pod_sandbox_id: self.sandbox_name(pod)?,
            verbose: true,
        };
        let doing = || format!("find the network of pod {pod}");
        let answer: Result<PodSandboxStatusResponse, _> =
            self.client.runtime("PodSandboxStatus", request).await;
        let answer = answer.map_err(|status| failed(doing(), &status))?;
        let info = answer.info.get("info").map(String::as_str).unwrap_or_default();
        let info: Value = serde_json::from_str(info).unwrap_or_default();
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let mut namespaces = namespaces.into_iter().flatten();
        let network = namespaces.find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|network| network["path"].as_str());
        let unknown = || io::Error::other("the container runtime does not say where it is");
        path.map(PathBuf::from)
            .ok_or_else(|| RuntimeError::system(doing(), unknown()))
    }

    async fn session(
        &self,
        url: &str,
        stdin: bool,
        tty: bool,
    ) -> Result<(Session, connection::Status), RuntimeError> {
        let opened = Connection::open(self.node.clone(), url).await?;
        let opened = async { opened?.begin(stdin, tty).await };
        opened
            .await
            .map_err(|error| RuntimeError::system("reach the container runtime's streams", error))
    }
}

/// Reads bytes as the answers about streams.
pub(super) fn check(bytes: &[u8]) {
    let _ = std::str::from_utf8(bytes).ok().and_then(connection::place);
    let _ = ended(bytes);
}

/// How a command ended, by the Status that the runtime's server makes of it; or why it did not run.
fn ended(said: &[u8]) -> Result<ExecEnd, String> {
    let status: Value = serde_json::from_slice(said).map_err(|_| match String::from_utf8_lossy(said) {
        text if text.is_empty() => "the container runtime broke off".to_owned(),
        text => text.into_owned(),
    })?;
    if status["status"] == "Success" {
        return Ok(ExecEnd::Exited(0));
    }
    let mut causes = status["details"]["causes"].as_array().into_iter().flatten();
    let code = causes.find(|cause| cause["reason"] == "ExitCode");
    let code = code.and_then(|cause| cause["message"].as_str()?.parse().ok());
    code.map(ExecEnd::Exited)
        .ok_or_else(|| status["message"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_from_a_status() {
        let nonzero = br#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(ended(nonzero), Ok(ExecEnd::Exited(7)));
        assert_eq!(
            ended(br#"{"metadata":{},"status":"Success"}"#),
            Ok(ExecEnd::Exited(0))
        );
        let failed = br#"{"status":"Failure","reason":"InternalError","message":"it is full"}"#;
        assert_eq!(ended(failed), Err("it is full".to_owned()));
        assert_eq!(ended(b""), Err("the container runtime broke off".to_owned()));
        assert_eq!(ended(b"no JSON"), Err("no JSON".to_owned()));
    }
}
