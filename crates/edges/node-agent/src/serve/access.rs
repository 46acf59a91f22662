//! Who may ask this node for what?

use pointsman_api_client::{Client, Resource};
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long a yes is believed (the kubelet's numbers).
const YES: Duration = Duration::from_secs(300);
/// How long a no is believed.
const NO: Duration = Duration::from_secs(30);
/// Answers that are remembered.
const MOST: usize = 1024;

/// The user of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct User {
    pub(crate) name: String,
    groups: Vec<String>,
}

impl User {
    /// The user a verified certificate speaks for; nobody without a common name.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization();
        let groups = groups.filter_map(|group| Some(group.as_str().ok()?.to_owned()));
        (!name.is_empty()).then(|| Self {
            name,
            groups: groups.collect(),
        })
    }
}

/// Asks the API server, and remembers what it said.
pub(crate) struct Access {
    client: Client,
    node: String,
    known: Mutex<Answers>,
}

/// What the API server said about users, with all that it was asked with: the same name in other groups is another
/// question.
#[derive(Default)]
struct Answers(BTreeMap<(User, Right), Remembered>);

/// A verb and a subresource of nodes.
type Right = (&'static str, &'static str);

impl Answers {
    fn get(&self, user: &User, right: Right, now: Instant) -> Option<bool> {
        let remembered = self.0.get(&(user.clone(), right))?;
        (now < remembered.until).then_some(remembered.allowed)
    }

    fn remember(&mut self, user: &User, right: Right, allowed: bool, now: Instant) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let until = now + if allowed { YES } else { NO };
        let remembered = Remembered { allowed, until };
        self.0.insert((user.clone(), right), remembered);
    }
}

/// What the API server said, and until when it is believed.
#[derive(Clone, Copy)]
struct Remembered {
    allowed: bool,
    until: Instant,
}

/// An answered SubjectAccessReview.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
}

/// What a path is authorized as (the kubelet's table). Who talks to programs changes something, whatever the method of the
/// request; with the kubelet, the right to read is enough for a WebSocket.
fn right(path: &str) -> Right {
    let subresource = match path {
        "exec" | "attach" | "portForward" => return ("create", "proxy"),
        "metrics" => "metrics",
        "stats" => "stats",
        "logs" => "log",
        "configz" => "configz",
        "pods" => "pods",
        _ => "proxy",
    };
    ("get", subresource)
}

impl Access {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
            known: Mutex::default(),
        }
    }

    /// Whether a user may do what a path begins with.
    pub(crate) async fn allows(&self, user: &User, path: &str) -> bool {
        // Who may do everything may do this too, even while no API server can be asked.
        if user.groups.iter().any(|group| group == "system:masters") {
            return true;
        }
        let right = right(path);
        let now = Instant::now();
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = known().get(user, right, now);
        if let Some(allowed) = remembered {
            return allowed;
        }
        let allowed = self.ask(user, right).await;
        known().remember(user, right, allowed, now);
        allowed
    }

    async fn ask(&self, user: &User, (verb, subresource): Right) -> bool {
        let mut groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
        groups.push("system:authenticated");
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "groups": groups,
                "resourceAttributes": {
                    "verb": verb, "version": "v1", "resource": "nodes",
                    "subresource": subresource, "name": self.node,
                },
            },
        });
        let reviews = Resource::new("authorization.k8s.io", "v1", "subjectaccessreviews");
        let api = self.client.api(reviews, None);
        match api.create::<Review>(review.to_string().into_bytes()).await {
            Ok(review) => review.status.allowed,
            Err(error) => {
                tracing::warn!(user = user.name, %error, "cannot ask the API server for access, so it is denied");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    #[test]
    fn an_answer_is_for_the_user_in_the_groups_it_was_asked_for() {
        let now = Instant::now();
        let mut answers = Answers::default();
        let (ops, none) = (user("jane", &["ops"]), user("jane", &[]));
        answers.remember(&ops, ("get", "proxy"), true, now);
        assert_eq!(answers.get(&ops, ("get", "proxy"), now), Some(true));
        assert_eq!(
            answers.get(&none, ("get", "proxy"), now),
            None,
            "no longer in the group"
        );
        assert_eq!(answers.get(&ops, ("create", "proxy"), now), None);
        answers.remember(&none, ("get", "proxy"), false, now);
        assert_eq!(answers.get(&ops, ("get", "proxy"), now), Some(true));
        assert_eq!(answers.get(&none, ("get", "proxy"), now), Some(false));
        assert_eq!(answers.get(&none, ("get", "proxy"), now + NO), None);
        assert_eq!(answers.get(&ops, ("get", "proxy"), now + YES), None);
    }
}
