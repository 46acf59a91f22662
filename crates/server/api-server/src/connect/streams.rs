//! exec, attach and port-forward: which agent is asked for what?

use super::{joined, refusal, upgrade_headers};
use crate::node_client;
use crate::read::log::container;
use crate::read::not_found;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use form_urlencoded::Serializer;
use http::Method;
use hyper::upgrade::OnUpgrade;
use pointsman_http::asked_for;
use pointsman_rules::kind::Subresource;
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, kinds};

/// What clients call the streams of a command, and what agents do.
const FLAGS: [(&str, &str); 4] = [
    ("stdin", "input"),
    ("stdout", "output"),
    ("stderr", "error"),
    ("tty", "tty"),
];

/// Opens streams to a pod.
pub async fn open(
    server: &Server,
    request: &Request,
    name: &str,
    subresource: Subresource,
) -> Result<Reply, ApiError> {
    let target = &request.target;
    let pod = server.find(target.kind, &target.namespace, name)?;
    let head = request.head.as_deref();
    let client = head.and_then(|head| head.extensions.get::<OnUpgrade>().cloned());
    let (Some(head), Some(client)) = (head, client) else {
        let why = "streams need a connection of HTTP/1.1, which can be upgraded";
        return Err(ApiError::BadRequest(why.into()));
    };
    if asked_for(&head.headers).is_none() {
        let why = "streams need a connection that is upgraded to a WebSocket or to SPDY/3.1";
        return Err(ApiError::BadRequest(why.into()));
    }
    let asked = request.query.get("container").unwrap_or("");
    let look = || {
        let pod = pod.value();
        let container = match subresource {
            Subresource::Portforward => Ok(String::new()),
            _ => container(&pod, name, asked),
        };
        container.map(|container| (container, str_at(&pod, &["spec", "nodeName"]).to_owned()))
    };
    let (container, node_name) = request.work.on(pod.size(), look).await?;
    if node_name.is_empty() {
        let why = format!("pod {name} does not have a host assigned");
        return Err(ApiError::BadRequest(why));
    }
    let query = head.uri.query().unwrap_or("");
    let path = match subresource {
        Subresource::Exec => {
            let place = format!("/exec/{}/{name}/{container}", target.namespace);
            let query = command(request, query)?;
            format!("{place}?{query}")
        }
        Subresource::Attach => {
            let mut query = flags(request)?;
            format!(
                "/attach/{}/{name}/{container}?{}",
                target.namespace,
                query.finish()
            )
        }
        _ => format!("/portForward/{}/{name}", target.namespace),
    };
    let node = server.find(&kinds::NODE, "", &node_name)?;
    let look = || node_client::endpoint(&node.value());
    let address = request.work.on(node.size(), look).await.ok_or_else(|| {
        ApiError::Unavailable(format!("node {node_name:?} does not say where its agent is"))
    })?;
    let method = match request.method {
        Method::POST => Method::POST,
        _ => Method::GET,
    };
    let headers = upgrade_headers(&head.headers);
    let response = server.nodes.upgrade(address, method, &path, headers).await?;
    let code = response.status().as_u16();
    if code == 101 {
        return joined(client, response);
    }
    let is_about_protocols = response
        .headers()
        .contains_key("x-accepted-stream-protocol-versions");
    let text = refusal(response).await;
    Err(match code {
        404 if text.starts_with("pod") => not_found(target.kind, name),
        400 | 404 | 426 => ApiError::BadRequest(text),
        403 if is_about_protocols => ApiError::BadRequest(text),
        _ => ApiError::Unavailable(format!("the agent of node {node_name:?} answered {code}: {text}")),
    })
}

fn flags(request: &Request) -> Result<Serializer<'static, String>, ApiError> {
    let mut query = Serializer::new(String::new());
    for (theirs, agents) in FLAGS {
        if request.query.flag(theirs)? {
            query.append_pair(agents, "1");
        }
    }
    Ok(query)
}

/// The agent's parameters for a command. Its words are read anew: there may be more than other requests have.
fn command(request: &Request, raw: &str) -> Result<String, ApiError> {
    let mut query = flags(request)?;
    let mut words = 0;
    for (key, value) in form_urlencoded::parse(raw.as_bytes()) {
        if key == "command" {
            query.append_pair("command", &value);
            words += 1;
        }
    }
    if words == 0 {
        let why = "you must specify at least one command for the container";
        return Err(ApiError::BadRequest(why.into()));
    }
    Ok(query.finish())
}
