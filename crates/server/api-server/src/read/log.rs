//! What did a container say? Its node's agent knows; the answer is passed on as it comes.

use super::not_found;
use crate::connect::refusal;
use crate::http::body::Body;
use crate::node_client;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pointsman_rules::value::{list_at, str_at};
use pointsman_rules::{ApiError, kinds};
use serde_json::Value;

/// Parameters that agents understand.
const PARAMETERS: [&str; 8] = [
    "follow",
    "previous",
    "timestamps",
    "tailLines",
    "limitBytes",
    "sinceSeconds",
    "sinceTime",
    "stream",
];

/// Answers `get` of a pod's log.
pub async fn read(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let target = &request.target;
    let pod = server.find(target.kind, &target.namespace, name)?;
    let asked = request.query.get("container").unwrap_or("");
    let look = || {
        let pod = pod.value();
        let node_name = str_at(&pod, &["spec", "nodeName"]).to_owned();
        container(&pod, name, asked).map(|container| (container, node_name))
    };
    let (container, node_name) = request.work.on(pod.size(), look).await?;
    check(request)?;
    if node_name.is_empty() {
        // Nothing was said yet.
        return Ok(Reply::text(200, ""));
    }
    let nodes = &kinds::NODE;
    let node = server.find(nodes, "", &node_name)?;
    let address = request
        .work
        .on(node.size(), || node_client::endpoint(&node.value()));
    let address = address.await.ok_or_else(|| {
        ApiError::Unavailable(format!("node {node_name:?} does not say where its agent is"))
    })?;
    let path = path(request, &target.namespace, name, &container);
    let response = server.nodes.get(address, &path).await?;
    let code = response.status().as_u16();
    if code == 200 {
        return Ok(Reply {
            content_type: "text/plain",
            ..Reply::new(200, passed_on(response.into_body()))
        });
    }
    let text = refusal(response).await;
    Err(match code {
        400 => ApiError::BadRequest(text),
        404 if text.starts_with("pod") => not_found(target.kind, name),
        404 => ApiError::BadRequest(text),
        _ => ApiError::Unavailable(format!("the agent of node {node_name:?} answered {code}: {text}")),
    })
}

/// The container that is meant; a pod with several needs it to be named.
pub fn container(pod: &Value, name: &str, asked: &str) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<&str> {
        let containers = list_at(pod, &["spec", list]).iter();
        containers.map(|container| str_at(container, &["name"])).collect()
    };
    let (mains, inits) = (names("containers"), names("initContainers"));
    if asked.is_empty() {
        return match mains.as_slice() {
            [only] if inits.is_empty() => Ok((*only).to_owned()),
            _ => {
                let mut why = format!(
                    "a container name must be specified for pod {name}, choose one of: [{}]",
                    mains.join(" ")
                );
                if !inits.is_empty() {
                    why.push_str(&format!(" or one of the init containers: [{}]", inits.join(" ")));
                }
                Err(ApiError::BadRequest(why))
            }
        };
    }
    if mains.iter().chain(&inits).any(|known| *known == asked) {
        Ok(asked.to_owned())
    } else {
        Err(ApiError::BadRequest(format!(
            "container {asked} is not valid for pod {name}"
        )))
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    let query = &request.query;
    for (field, least) in [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)] {
        if query.number(field)?.is_some_and(|number| number < least) {
            let why = format!("{field}: must be greater than or equal to {least}");
            return Err(ApiError::BadRequest(why));
        }
    }
    if query.get("sinceSeconds").is_some() && query.get("sinceTime").is_some() {
        let why = "at most one of sinceTime or sinceSeconds may be specified";
        return Err(ApiError::BadRequest(why.into()));
    }
    Ok(())
}

fn path(request: &Request, namespace: &str, pod: &str, container: &str) -> String {
    let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    // Names of pods and containers hold letters, digits, dots and dashes.
    let mut path = format!("/containerLogs/{namespace}/{pod}/{container}");
    let mut separator = '?';
    for parameter in PARAMETERS {
        if let Some(value) = request.query.get(parameter) {
            path.push_str(&format!("{separator}{parameter}={}", escape(value)));
            separator = '&';
        }
    }
    path
}

/// A stream that ends where the agent's answer does, for whatever reason.
pub fn passed_on(body: Incoming) -> Body {
    Body::stream(Box::pin(chunks(body)))
}

/// What comes of a body, as long as it comes.
pub fn chunks(body: Incoming) -> impl Stream<Item = Bytes> + Send {
    let chunks = BodyDataStream::new(body).map(|chunk| chunk.ok());
    let chunks = chunks.take_while(|chunk| std::future::ready(chunk.is_some()));
    chunks.map(Option::<Bytes>::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_with_one_container_needs_no_name() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&one, "p", ""), Ok("a".into()));
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&two, "p", "i"), Ok("i".into()));
        let why = |asked| container(&two, "p", asked).unwrap_err().to_string();
        assert_eq!(
            why(""),
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(why("c"), "container c is not valid for pod p");
    }
}
