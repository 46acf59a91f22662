//! What is known of a request, as it becomes known.

use crate::access;
use crate::auth::User;
use crate::dispatch::{Peer, text};
use crate::read::usage::Asked;
use crate::reply::Reply;
use crate::request::Request;
use http::header::USER_AGENT;
use jiff::Timestamp;
use pointsman_rules::ApiError;
use pointsman_rules::kind::Subresource;
use pointsman_rules::measured::Measured;
use pointsman_rules::review::Review;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// When an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A watch or a log has started.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
        }
    }
}

/// What is known of a request.
#[derive(Clone, Debug)]
pub struct Trail {
    id: String,
    received: Timestamp,
    uri: String,
    verb: String,
    source: Option<IpAddr>,
    user_agent: Option<String>,
    user: Option<User>,
    impersonated: Option<User>,
    object: Option<Value>,
    status: Value,
}

impl Trail {
    /// What the head of a request says.
    pub fn new<B>(id: &str, peer: &Peer, message: &http::Request<B>, now: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            received: now,
            uri: message.uri().to_string(),
            verb: message.method().as_str().to_lowercase(),
            source: peer.address,
            user_agent: text(message.headers(), USER_AGENT),
            user: None,
            impersonated: None,
            object: None,
            status: json!({"metadata": {}}),
        }
    }

    /// Whose credential it is.
    pub fn made_by(&mut self, user: &User) {
        self.user = Some(user.clone());
    }

    /// Whom they speak for.
    pub fn on_behalf_of(&mut self, user: &User) {
        self.impersonated = Some(user.clone());
    }

    /// It is about an object or a collection.
    pub fn about(&mut self, request: &Request) {
        let target = &request.target;
        self.verb = access::verb(request).to_owned();
        self.object = Some(reference(&[
            ("resource", target.kind.plural),
            ("namespace", &target.namespace),
            ("name", target.name.as_deref().unwrap_or("")),
            ("apiGroup", target.kind.group),
            ("apiVersion", target.kind.version),
            ("subresource", target.subresource.map_or("", Subresource::name)),
        ]));
    }

    /// It is a review.
    pub fn asks(&mut self, review: &Review, namespace: &str) {
        self.verb = "create".to_owned();
        self.object = Some(reference(&[
            ("resource", review.plural),
            ("namespace", namespace),
            ("apiGroup", review.group),
            ("apiVersion", Review::VERSION),
        ]));
    }

    /// It is about what is measured.
    pub fn measures(&mut self, asked: &Asked) {
        self.verb = asked.verb().to_owned();
        self.object = Some(reference(&[
            ("resource", asked.measured.plural),
            ("namespace", &asked.namespace),
            ("name", asked.name.as_deref().unwrap_or("")),
            ("apiGroup", Measured::GROUP),
            ("apiVersion", Measured::VERSION),
        ]));
    }

    /// It was answered so.
    pub fn answered(&mut self, answer: &Result<Reply, ApiError>) {
        self.status = match answer {
            Ok(reply) => json!({"metadata": {}, "code": reply.code}),
            Err(error) => json!({
                "metadata": {},
                "status": "Failure",
                "message": error.to_string(),
                "reason": error.reason(),
                "code": error.code(),
            }),
        };
    }

    /// What is written about the request at this stage.
    pub fn event(&self, stage: Stage, now: Timestamp) -> Value {
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": self.id,
            "stage": stage.name(),
            "requestURI": self.uri,
            "verb": self.verb,
            "user": self.user.as_ref().map_or_else(|| json!({}), user_info),
            "responseStatus": self.status,
            "requestReceivedTimestamp": time(self.received),
            "stageTimestamp": time(now),
        });
        let optional = [
            ("impersonatedUser", self.impersonated.as_ref().map(user_info)),
            ("sourceIPs", self.source.map(|source| json!([source.to_string()]))),
            ("userAgent", self.user_agent.as_ref().map(|agent| json!(agent))),
            ("objectRef", self.object.clone()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                event[name] = value;
            }
        }
        event
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn reference(fields: &[(&str, &str)]) -> Value {
    let fields = fields.iter().filter(|(_, value)| !value.is_empty());
    let fields: Map<String, Value> = fields
        .map(|(name, value)| ((*name).into(), json!(value)))
        .collect();
    fields.into()
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
