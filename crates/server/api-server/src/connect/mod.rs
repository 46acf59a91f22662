//! How does a request reach a program in the cluster, and its answer the client?
//!
//! For exec, attach and port-forward the connection is upgraded and its bytes are passed on as they are: what is said in
//! them is between the client and the node's agent. Before that the request was authorized, and takes a place among the
//! streams of its class until it has ended. Through `proxy` a request gets to a program, and its answer to the client.

pub mod links;
pub mod proxy;
pub mod streams;

use crate::reply::Reply;
use crate::server::Server;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use pointsman_http::{IDLE, tunnel, upgraded};
use pointsman_rules::ApiError;
use std::any::Any;
use std::sync::Arc;

/// As much of a refusal as is passed on.
const MAX_REFUSAL: usize = 4096;

/// Two connections that are about to be joined.
pub struct Tunnel {
    client: OnUpgrade,
    target: OnUpgrade,
}

impl Tunnel {
    /// Passes bytes on until one side has ended, and then lets go of what was held for it.
    pub async fn run(self, server: Arc<Server>, held: Box<dyn Any + Send>) {
        let mut stopping = server.stopping();
        let joined = async {
            let (client, target) =
                tokio::try_join!(upgraded(self.client, IDLE), upgraded(self.target, IDLE))?;
            tunnel(client, target).await
        };
        let ended = tokio::select! {
            ended = joined => ended,
            _ = stopping.wait_for(|stop| *stop) => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a tunnel ended");
        }
        drop(held);
    }
}

/// The answer that says yes, if the target did: its headers, and the tunnel.
fn joined(client: OnUpgrade, mut response: Response<Incoming>) -> Result<Reply, ApiError> {
    let target = response.extensions_mut().remove::<OnUpgrade>();
    let target = target.ok_or_else(|| ApiError::Unavailable("the connection was not upgraded".into()))?;
    let mut reply = Reply::text(101, "");
    reply.headers = upgrade_headers(response.headers())
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.to_str().ok()?.to_owned())))
        .collect();
    reply.tunnel = Some(Tunnel { client, target });
    Ok(reply)
}

/// The headers that say what is spoken after an upgrade.
fn upgrade_headers(headers: &HeaderMap) -> HeaderMap {
    let names = ["connection", "upgrade", "x-stream-protocol-version"];
    let theirs = headers
        .iter()
        .filter(|(name, _)| names.contains(&name.as_str()) || name.as_str().starts_with("sec-websocket-"));
    theirs
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Headers without those that are about one connection.
fn hop_by_hop(headers: &HeaderMap) -> HeaderMap {
    const NAMES: [&str; 9] = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
    ];
    let lasting = headers.iter().filter(|(name, _)| !NAMES.contains(&name.as_str()));
    lasting
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What a refusal says.
pub async fn refusal(response: Response<Incoming>) -> String {
    let text = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
    let text = text.map(|body| body.to_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}
