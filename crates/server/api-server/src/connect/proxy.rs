//! The `proxy` subresources: which program is asked in place of a pod, Service or node, and what of its answer is passed on?
//!
//! Credentials of the client stay here, connections are not upgraded, and nobody is asked at an address that belongs to
//! the server's own machine.

use super::links::{self, Links};
use super::{hop_by_hop, refusal};
use crate::cache::object::Object;
use crate::http::body::Body;
use crate::node_client;
use crate::read::log::passed_on;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use http::request::Parts;
use http::{HeaderMap, Method, header};
use pointsman_http::{Proof, Target, asked_for, with_any_certificate};
use pointsman_rules::value::{at, int_at, list_at, str_at};
use pointsman_rules::{ApiError, kinds};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// `[scheme:]name[:port]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked<'a> {
    is_https: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Asked<'a> {
    fn parse(text: &'a str) -> Result<Self, ApiError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => ("?", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            let why = format!("{text:?} is not of the form name, name:port or http(s):name:port");
            return Err(ApiError::BadRequest(why));
        }
        let is_https = scheme == "https";
        Ok(Self { is_https, name, port })
    }

    fn number(&self) -> Option<u16> {
        self.port.parse().ok().filter(|port| *port > 0)
    }
}

/// Asks a program, and passes its answer on.
pub async fn ask(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let head = request.head.as_deref().ok_or(ApiError::NoSuchResource)?;
    if asked_for(&head.headers).is_some() {
        let why = "connections through proxy subresources are not upgraded; use port-forward";
        return Err(ApiError::BadRequest(why.into()));
    }
    let asked = Asked::parse(name)?;
    if let Some(location) = below(head) {
        let mut reply = Reply::text(301, "");
        reply.headers.push((header::LOCATION, location));
        return Ok(reply);
    }
    let target = target(server, request, &asked).await?;
    let headers = passed_headers(&head.headers);
    let method = head.method.clone();
    let answer = target
        .pass(method, &path(head), headers, request.body.clone())
        .await;
    let response =
        answer.map_err(|error| ApiError::Unavailable(format!("error trying to reach {name:?}: {error}")))?;
    let code = response.status().as_u16();
    if code == 101 {
        return Err(ApiError::Unavailable(refusal(response).await));
    }
    let mut headers = hop_by_hop(response.headers());
    let links = Links::new(prefix(head), &target.authority());
    let there = headers.get(header::LOCATION).map(header::HeaderValue::as_bytes);
    if let Some(Ok(moved)) = there.and_then(|link| Some(header::HeaderValue::from_bytes(&links.moved(link)?)))
    {
        headers.insert(header::LOCATION, moved);
    }
    let is_bodiless = head.method == Method::HEAD || matches!(code, 204 | 304);
    let body = match is_bodiless {
        true => Body::whole(""),
        false if links::is_page(&headers) => links::pass(response.into_body(), &links, request).await,
        false => passed_on(response.into_body()),
    };
    let mut reply = Reply::new(code, body);
    reply.headers = headers
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.to_str().ok()?.to_owned())))
        .collect();
    if !headers.contains_key(header::CONTENT_TYPE) {
        reply.content_type = "application/octet-stream";
    }
    Ok(reply)
}

async fn target(server: &Server, request: &Request, asked: &Asked<'_>) -> Result<Target, ApiError> {
    let kind = request.target.kind;
    let object = server.find(kind, &request.target.namespace, asked.name)?;
    let look = || match kind {
        kind if kind == &kinds::POD => pod(&object.value(), asked),
        kind if kind == &kinds::SERVICE => service(
            &object.value(),
            &slices(server, &object),
            asked,
            server.random_unit(),
        ),
        _ => node(&object.value(), asked).map(|address| (address, true)),
    };
    let (address, is_agent) = request.work.on(object.size(), look).await?;
    if is_agent {
        return server.nodes.target(address);
    }
    // Whoever has a name here need not have a certificate for it; upstream does not look either.
    Ok(match asked.is_https {
        true => Target::secure(address, Arc::new(with_any_certificate(Proof::Key))),
        false => Target::at(address),
    })
}

type Found = Result<(SocketAddr, bool), ApiError>;

fn pod(pod: &Value, asked: &Asked<'_>) -> Found {
    let ports = list_at(pod, &["spec", "containers"]).iter();
    let mut ports = ports.flat_map(|container| list_at(container, &["ports"]));
    let first = ports.next().and_then(|port| int_at(port, &["containerPort"]));
    let port = match (asked.port, first) {
        ("", Some(first)) => u16::try_from(first).ok(),
        ("", None) => Some(if asked.is_https { 443 } else { 80 }),
        _ => asked.number(),
    };
    let port = port.ok_or_else(|| ApiError::BadRequest(format!("{:?} is no port number", asked.port)))?;
    let address = str_at(pod, &["status", "podIP"]);
    let address = address
        .parse()
        .map_err(|_| ApiError::Unavailable(format!("pod {:?} has no address yet", asked.name)))?;
    Ok((SocketAddr::new(allowed(address)?, port), false))
}

/// The slices of a Service.
fn slices(server: &Server, service: &Object) -> Vec<Value> {
    let slices = server.cache.of(&kinds::ENDPOINT_SLICE);
    let all = slices.list(service.namespace(), None, server.cache.applied());
    let of_service = all
        .objects
        .iter()
        .filter(|slice| slice.labels.get(SERVICE_NAME) == Some(service.name()));
    of_service.map(|slice| slice.value()).collect()
}

/// One of the ready endpoints of a Service's port.
fn service(service: &Value, slices: &[Value], asked: &Asked<'_>, random: f64) -> Found {
    let ports = list_at(service, &["spec", "ports"]);
    let named = |port: &&Value| match asked.port {
        "" => ports.len() == 1 || str_at(port, &["name"]).is_empty(),
        wanted => {
            str_at(port, &["name"]) == wanted || int_at(port, &["port"]) == asked.number().map(i64::from)
        }
    };
    let missing = || {
        ApiError::Unavailable(format!(
            "no service port {:?} found for service {:?}",
            asked.port, asked.name
        ))
    };
    let name = str_at(ports.iter().find(named).ok_or_else(missing)?, &["name"]);
    let mut found = Vec::new();
    for slice in slices {
        let mut ports = list_at(slice, &["ports"]).iter();
        let port = ports.find(|port| str_at(port, &["name"]) == name);
        let Some(port) = port.and_then(|port| u16::try_from(int_at(port, &["port"])?).ok()) else {
            continue;
        };
        let endpoints = list_at(slice, &["endpoints"]).iter();
        let ready =
            endpoints.filter(|endpoint| at(endpoint, &["conditions", "ready"]) != Some(&Value::Bool(false)));
        let addresses =
            ready.filter_map(|endpoint| list_at(endpoint, &["addresses"]).first()?.as_str()?.parse().ok());
        found.extend(addresses.map(|address: IpAddr| SocketAddr::new(address, port)));
    }
    if found.is_empty() {
        let why = format!("no endpoints available for service {:?}", asked.name);
        return Err(ApiError::Unavailable(why));
    }
    let address = found[((random * found.len() as f64) as usize).min(found.len() - 1)];
    Ok((SocketAddr::new(allowed(address.ip())?, address.port()), false))
}

/// The agent of a node; other ports of nodes are not for the cluster's users.
fn node(node: &Value, asked: &Asked<'_>) -> Result<SocketAddr, ApiError> {
    let address = node_client::endpoint(node).ok_or_else(|| {
        ApiError::Unavailable(format!("node {:?} does not say where its agent is", asked.name))
    })?;
    match asked.port {
        "" => Ok(address),
        _ if asked.number() == Some(address.port()) => Ok(address),
        port => Err(ApiError::BadRequest(format!(
            "port {port} of a node is not proxied: only its agent's, {}, is",
            address.port()
        ))),
    }
}

/// Addresses that mean somebody else on the server's machine (upstream's rule).
fn allowed(address: IpAddr) -> Result<IpAddr, ApiError> {
    let address = address.to_canonical();
    let is_ours = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match is_ours || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        true => Err(ApiError::BadRequest(format!("address {address} is not proxied"))),
        false => Ok(address),
    }
}

/// Where a reader is sent who names the subresource without a path below it: links of what is there lead below it, too
/// (upstream's rule).
fn below(head: &Parts) -> Option<String> {
    let is_reader = matches!(head.method, Method::GET | Method::HEAD);
    (is_reader && rest(head).is_empty()).then(|| format!("{}/{}", head.uri.path(), query(head)))
}

/// What is asked below the subresource, with the query.
fn path(head: &Parts) -> String {
    let rest = rest(head);
    let slash = if rest.is_empty() { "/" } else { "" };
    format!("{slash}{rest}{}", query(head))
}

/// The path of the subresource, below which clients see the program.
fn prefix(head: &Parts) -> &str {
    let path = head.uri.path();
    &path[..path.len() - rest(head).len()]
}

fn query(head: &Parts) -> String {
    let query = head.uri.query();
    query.map_or(String::new(), |query| format!("?{query}"))
}

/// What follows the subresource in the path, as it was written.
fn rest(head: &Parts) -> &str {
    let (mut rest, mut segments) = (head.uri.path(), 0);
    let namespaced = rest.split('/').filter(|segment| !segment.is_empty()).nth(2) == Some("namespaces");
    let skipped = if namespaced { 7 } else { 5 };
    while segments < skipped {
        rest = rest.trim_start_matches('/');
        rest = &rest[rest.find('/').unwrap_or(rest.len())..];
        segments += 1;
    }
    rest
}

/// What a program gets to know of the client's headers.
fn passed_headers(headers: &HeaderMap) -> HeaderMap {
    let mut passed = hop_by_hop(headers);
    passed.remove(header::AUTHORIZATION);
    passed.remove(header::HOST);
    let impersonation: Vec<_> = passed
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in impersonation {
        passed.remove(name);
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(text: &str) -> Asked<'_> {
        Asked::parse(text).unwrap()
    }

    fn address(found: Found) -> String {
        found.map_or_else(|error| error.to_string(), |(address, _)| address.to_string())
    }

    #[test]
    fn a_pod_is_asked_at_its_first_port_or_the_given_one() {
        let mut object = json!({
            "spec": {"containers": [{"name": "a"}, {"name": "b", "ports": [{"containerPort": 8080}]}]},
            "status": {"podIP": "10.0.0.7"},
        });
        assert_eq!(address(pod(&object, &asked("x"))), "10.0.0.7:8080");
        assert_eq!(address(pod(&object, &asked("https:x:9"))), "10.0.0.7:9");
        assert!(address(pod(&object, &asked("x:http"))).contains("is no port number"));
        object["status"]["podIP"] = json!("::ffff:127.0.0.1");
        assert_eq!(
            address(pod(&object, &asked("x"))),
            "address 127.0.0.1 is not proxied"
        );
        assert!(Asked::parse("ftp:x:1").is_err() && Asked::parse("a:b:c:d").is_err());
    }

    #[test]
    fn a_service_is_asked_at_a_ready_endpoint_of_the_port() {
        let object = json!({"spec": {"ports": [{"name": "web", "port": 80}, {"name": "api", "port": 81}]}});
        let slice = json!({
            "ports": [{"name": "web", "port": 8080}, {"name": "api", "port": 8081}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.3"]},
            ],
        });
        let slices = [slice];
        assert_eq!(
            address(service(&object, &slices, &asked("s:web"), 0.0)),
            "10.0.0.2:8080"
        );
        assert_eq!(
            address(service(&object, &slices, &asked("s:81"), 1.0)),
            "10.0.0.3:8081"
        );
        assert!(address(service(&object, &slices, &asked("s"), 0.0)).contains("no service port"));
        assert!(address(service(&object, &[], &asked("s:web"), 0.0)).contains("no endpoints available"));
    }

    #[test]
    fn the_path_behind_the_subresource_stays_as_it_is() {
        let rest = |uri: &str| {
            let request = http::Request::builder().uri(uri).body(()).unwrap();
            path(&request.into_parts().0)
        };
        assert_eq!(
            rest("/api/v1/namespaces/a/pods/x:80/proxy/a%2Fb//c/?q=%20"),
            "/a%2Fb//c/?q=%20"
        );
        assert_eq!(rest("/api/v1/namespaces/a/pods/x/proxy"), "/");
        assert_eq!(rest("//api/v1//nodes/n1/proxy/metrics"), "/metrics");
        let request = http::Request::builder()
            .uri("/api/v1/nodes/n1/proxy/a/b?c=/d")
            .body(())
            .unwrap();
        assert_eq!(prefix(&request.into_parts().0), "/api/v1/nodes/n1/proxy");
    }

    #[test]
    fn who_reads_without_a_path_is_sent_to_the_one_that_links_are_relative_to() {
        let below = |method: &str, uri: &str| {
            let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
            below(&request.into_parts().0)
        };
        let pod = "/api/v1/namespaces/a/pods/x/proxy";
        assert_eq!(below("GET", &format!("{pod}?a=b")), Some(format!("{pod}/?a=b")));
        assert_eq!(below("HEAD", pod), Some(format!("{pod}/")));
        assert_eq!(below("POST", pod), None);
        assert_eq!(below("GET", &format!("{pod}/")), None);
    }

    #[test]
    fn credentials_stay_with_the_server() {
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "impersonate-user",
            "connection",
            "host",
            "cookie",
            "te",
        ] {
            headers.insert(name, "x".parse().unwrap());
        }
        let passed = passed_headers(&headers);
        assert_eq!(passed.keys().collect::<Vec<_>>(), ["cookie"]);
    }
}
