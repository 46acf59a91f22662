//! How much do nodes and pods use? Their agents know; each is asked when a client asks.
//!
//! What metrics-server answers, without its memory: an agent says what was used on average since it was last asked, or in
//! the last second. A node whose agent gives no answer in time is left out with its pods.

use super::select::Selection;
use crate::access;
use crate::admit::{admit, timed_out};
use crate::auth::flow::Width;
use crate::auth::{Attributes, User};
use crate::cache::object::Object;
use crate::dispatch::only;
use crate::http::negotiate::{Form, negotiate};
use crate::http::query::Query;
use crate::node_client;
use crate::reply::Reply;
use crate::server::Server;
use crate::work::Work;
use futures::StreamExt;
use http::Method;
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use pointsman_http::Target;
use pointsman_rules::kind::Scope;
use pointsman_rules::measured::Measured;
use pointsman_rules::status::Subject;
use pointsman_rules::{ApiError, kinds};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long an agent may take; metrics-server's number.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long all of them may.
const ALL: Duration = Duration::from_secs(50);
/// How many are asked at once.
const AT_ONCE: usize = 256;
/// The largest answer of one.
const LARGEST: usize = 8 << 20;
/// What the agents are asked.
const PATH: &str = "/stats/summary?only_cpu_and_memory=true";
/// The time that kubelets speak of, who do not say it.
const WINDOW: f64 = 10.0;

/// What a client asks.
#[derive(Clone, Debug)]
pub struct Asked {
    pub measured: &'static Measured,
    /// Empty for nodes, and for pods of all namespaces.
    pub namespace: String,
    pub name: Option<String>,
    pub method: Method,
    pub query: Query,
    pub accept: Option<String>,
    pub user: User,
}

impl Asked {
    pub fn verb(&self) -> &'static str {
        let watches = self.name.is_none() && self.query.flag("watch").unwrap_or(false);
        access::verb_of(&self.method, self.name.is_some(), watches)
    }

    /// Answers when there is room, to those who may.
    pub async fn serve(self, server: &Server) -> Result<Reply, ApiError> {
        let Self { measured, user, .. } = &self;
        let verb = self.verb();
        let attributes = Attributes::resource(user, verb, Measured::GROUP, measured.plural)
            .in_namespace(&self.namespace)
            .named(self.name.as_deref().unwrap_or(""));
        let objects = server.cache.of(measured.of()).count();
        let width = Width::of_list(if self.name.is_some() { 1 } else { objects });
        let admitted = admit(server, &attributes, width).await?;
        server.policy.authorize(&attributes)?;
        only(&Method::GET, &self.method, measured.plural)?;
        if verb == "watch" {
            let why = "what is measured cannot be watched";
            return Err(ApiError::MethodNotAllowed(why.into()));
        }
        negotiate(self.accept.as_deref(), &[Form::Json])?;
        let work = server.work.of(admitted.class);
        let answer = tokio::time::timeout(ALL, self.answer(server, &work)).await;
        let answer = answer.map_err(|_| timed_out(ALL))??;
        Ok(admitted.until_sent(Reply::json(200, answer)))
    }

    async fn answer(&self, server: &Server, work: &Work) -> Result<Value, ApiError> {
        let objects = self.objects(server)?;
        let nodes: BTreeSet<String> = objects.iter().map(|object| node_of(object)).collect();
        let summaries = summaries(server, work, nodes).await?;
        let render = || {
            let found = objects.iter().filter_map(|object| {
                let summary = summaries.get(&node_of(object))?;
                match self.measured.scope {
                    Scope::Cluster => of_node(object, summary),
                    Scope::Namespaced => of_pod(object, summary),
                }
            });
            found.collect()
        };
        let items: Vec<Value> = work.on(objects.len() * 512, render).await;
        let (kind, version) = (self.measured.kind, api_version());
        let Some(name) = &self.name else {
            let kind = format!("{kind}List");
            return Ok(json!({ "kind": kind, "apiVersion": version, "metadata": {}, "items": items }));
        };
        let mut item = items.into_iter().next().ok_or_else(|| self.not_found(name))?;
        item["kind"] = json!(kind);
        item["apiVersion"] = json!(version);
        Ok(item)
    }

    /// What is asked about.
    fn objects(&self, server: &Server) -> Result<Vec<Arc<Object>>, ApiError> {
        let kind = self.measured.of();
        if let Some(name) = &self.name {
            let found = server.find(kind, &self.namespace, name);
            return Ok(vec![found.map_err(|_| self.not_found(name))?]);
        }
        let selection = Selection::parse(&self.query, kind)?;
        let all = server.cache.of(kind);
        let mut objects = all.list(&self.namespace, None, server.cache.applied()).objects;
        objects.retain(|object| selection.matches(object));
        Ok(objects)
    }

    fn not_found(&self, name: &str) -> ApiError {
        ApiError::NotFound(Subject {
            group: Measured::GROUP.into(),
            kind: self.measured.plural.into(),
            name: name.into(),
        })
    }
}

fn api_version() -> String {
    format!("{}/{}", Measured::GROUP, Measured::VERSION)
}

/// The node that knows about it; empty for a pod that has none.
fn node_of(object: &Object) -> String {
    if object.kind == &kinds::NODE {
        object.name().to_owned()
    } else {
        object.field("spec.nodeName").into_owned()
    }
}

/// What these nodes say, those left out that say nothing.
async fn summaries(
    server: &Server,
    work: &Work,
    nodes: BTreeSet<String>,
) -> Result<BTreeMap<String, Summary>, ApiError> {
    let mut asked = Vec::new();
    for name in nodes {
        let Ok(node) = server.find(&kinds::NODE, "", &name) else {
            continue;
        };
        let address = work.on(node.size(), || node_client::endpoint(&node.value()));
        asked.extend(address.await.map(|address| (name, address)));
    }
    let target = server.nodes.targets()?;
    let answers = futures::stream::iter(asked).map(|(name, address): (String, SocketAddr)| {
        let agent = target(address);
        async move {
            let answer = tokio::time::timeout(PATIENCE, ask(&agent, work)).await;
            match answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))) {
                Ok(summary) => Some((name, summary)),
                Err(error) => {
                    tracing::debug!(node = name, error, "a node does not say what it uses");
                    None
                }
            }
        }
    });
    let answers = answers.buffer_unordered(AT_ONCE);
    Ok(answers.filter_map(std::future::ready).collect().await)
}

async fn ask(agent: &Target, work: &Work) -> Result<Summary, String> {
    let answer = agent.open(PATH, PATIENCE).await;
    let answer = answer.map_err(|error| error.to_string())?.into_response();
    let code = answer.status();
    if !code.is_success() {
        return Err(format!("the agent answered {code}"));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let read = || serde_json::from_slice(&body).map_err(|error| error.to_string());
    work.on(body.len(), read).await
}

/// What is needed of a kubelet's summary.
#[derive(Debug, Deserialize)]
struct Summary {
    node: Used,
    pods: Option<Vec<PodUsed>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodUsed {
    pod_ref: PodRef,
    containers: Option<Vec<ContainerUsed>>,
}

#[derive(Debug, Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct ContainerUsed {
    name: String,
    #[serde(flatten)]
    used: Used,
}

#[derive(Debug, Deserialize)]
struct Used {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: String,
    usage_nano_cores: Option<u64>,
    window_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

/// When it was made, and about how many seconds.
struct Measurement {
    at: Timestamp,
    window: f64,
}

impl Used {
    /// As quantities; nothing if one of both is not known.
    fn shown(&self) -> Option<(Measurement, Value)> {
        let cpu = self.cpu.as_ref()?;
        let window = cpu
            .window_seconds
            .filter(|window| window.is_finite() && *window > 0.0);
        let measurement = Measurement {
            at: cpu.time.parse().ok()?,
            window: window.unwrap_or(WINDOW),
        };
        let memory = self.memory.as_ref()?.working_set_bytes?;
        let usage =
            json!({ "cpu": format!("{}n", cpu.usage_nano_cores?), "memory": format!("{}Ki", memory / 1024) });
        Some((measurement, usage))
    }
}

fn of_node(node: &Object, summary: &Summary) -> Option<Value> {
    let (measurement, usage) = summary.node.shown()?;
    let mut item = head(node, &measurement);
    item["usage"] = usage;
    Some(item)
}

fn of_pod(pod: &Object, summary: &Summary) -> Option<Value> {
    let is_it =
        |used: &&PodUsed| used.pod_ref.name == pod.name() && used.pod_ref.namespace == pod.namespace();
    let used = summary.pods.iter().flatten().find(is_it)?;
    let shown = |container: &'_ ContainerUsed| {
        let (_, usage) = container.used.shown()?;
        Some(json!({ "name": container.name, "usage": usage }))
    };
    let all = used.containers.as_deref().unwrap_or_default();
    let containers: Vec<Value> = all.iter().filter_map(shown).collect();
    // It is as old as its first container.
    let (measurement, _) = all.iter().find_map(|container| container.used.shown())?;
    let mut item = head(pod, &measurement);
    item["containers"] = Value::Array(containers);
    Some(item)
}

/// Whose measurement it is, when it was made and over which time.
fn head(object: &Object, measurement: &Measurement) -> Value {
    let at = measurement.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut metadata = json!({ "name": object.name(), "creationTimestamp": at });
    if !object.namespace().is_empty() {
        metadata["namespace"] = json!(object.namespace());
    }
    let labels: BTreeMap<&str, &str> = object.labels.iter().collect();
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    let window = format!("{:.3}s", measurement.window);
    json!({ "metadata": metadata, "timestamp": at, "window": window })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_summary_is_read_and_what_it_does_not_know_is_left_out() {
        let text = r#"{"node": {"nodeName": "n", "cpu": {"time": "2026-01-02T03:04:05Z", "usageNanoCores": 7},
            "memory": {"time": "2026-01-02T03:04:05Z", "workingSetBytes": 4095}, "fs": {}}, "pods": [
            {"podRef": {"name": "p", "namespace": "d", "uid": "u"}, "containers": [
                {"name": "c", "startTime": "2026-01-02T03:04:05Z", "cpu": {"time": "2026-01-02T03:04:05Z"}}]},
            {"podRef": {"name": "q", "namespace": "d", "uid": "v"}, "containers": null}]}"#;
        let summary: Summary = serde_json::from_str(text).unwrap();
        let (_, usage) = summary.node.shown().unwrap();
        assert_eq!(usage, json!({ "cpu": "7n", "memory": "3Ki" }));
        let pods = summary.pods.unwrap();
        let containers = pods[0].containers.as_ref().unwrap();
        assert!(containers[0].used.shown().is_none() && pods[1].containers.is_none());
    }
}
