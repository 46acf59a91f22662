//! How do people learn what a controller did to their object?
//!
//! Events of the core group, as `kubectl describe` shows them. Repetitions raise a count instead of
//! making new objects, and an object that causes too many gets fewer events. Recording never
//! blocks and never fails: an event that cannot be written is dropped.

use crate::client::{Client, Patch};
use crate::error::ApiError;
use crate::resource::Resource;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc;

/// Events about one object that may come at once (upstream's spam filter).
const BURST: f64 = 25.0;
/// Then one more in so many seconds.
const REFILL_SECONDS: f64 = 300.0;
/// Repetitions are recognised for this long.
const MEMORY: Duration = Duration::from_secs(600);
/// At most so many different events are remembered.
const MOST: usize = 4096;
/// Events that may wait to be written.
const QUEUE: usize = 1024;
/// How long they wait at least. What they tell of is mostly being written at this moment, and somebody waits for
/// that; nobody does for an event.
const YIELD: Duration = Duration::from_millis(25);

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Group and version.
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct News {
    /// The object it is about.
    pub subject: Subject,
    /// Good or bad.
    pub severity: Severity,
    pub reason: String,
    pub message: String,
}

/// Takes events from loops; clones feed the same writer.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Who says it.
    component: &'static str,
    sender: mpsc::Sender<Said>,
}

/// An event and the component that it comes from.
type Said = (&'static str, News);

impl Recorder {
    /// A recorder, and the task that writes what it is given, for the component of this name.
    pub fn new(client: Client, component: &'static str) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { component, sender }, write(client, receiver))
    }

    /// The same for another component.
    #[must_use]
    pub fn of(&self, component: &'static str) -> Self {
        let sender = self.sender.clone();
        Self { component, sender }
    }

    /// Records an event.
    pub fn record(&self, news: News) {
        // A full queue means that the server is slow or gone: losing an event is the lesser harm.
        let _ = self.sender.try_send((self.component, news));
    }
}

/// What to do with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Count { name: String, count: u64 },
    Drop,
}

/// Recognises repetitions and floods.
#[derive(Debug, Default)]
struct Correlator {
    known: HashMap<News, Seen>,
    budgets: HashMap<String, Budget>,
}

#[derive(Debug)]
struct Seen {
    name: Option<String>,
    count: u64,
    last: Duration,
}

#[derive(Debug)]
struct Budget {
    left: f64,
    at: Duration,
}

impl Correlator {
    fn see(&mut self, news: &News, now: Duration) -> Step {
        if self.known.len() >= MOST {
            self.known
                .retain(|_, seen| now.saturating_sub(seen.last) < MEMORY);
            if self.known.len() >= MOST {
                self.known.clear();
            }
            self.budgets
                .retain(|_, budget| now.saturating_sub(budget.at).as_secs_f64() < BURST * REFILL_SECONDS);
        }
        let budget = self
            .budgets
            .entry(news.subject.uid.clone())
            .or_insert(Budget { left: BURST, at: now });
        let earned = now.saturating_sub(budget.at).as_secs_f64() / REFILL_SECONDS;
        budget.left = (budget.left + earned).min(BURST);
        budget.at = now;
        if budget.left < 1.0 {
            return Step::Drop;
        }
        budget.left -= 1.0;
        match self.known.get_mut(news) {
            Some(seen) if now.saturating_sub(seen.last) < MEMORY => {
                seen.count += 1;
                seen.last = now;
                match &seen.name {
                    Some(name) => Step::Count {
                        name: name.clone(),
                        count: seen.count,
                    },
                    None => Step::Create,
                }
            }
            _ => {
                let seen = Seen {
                    name: None,
                    count: 1,
                    last: now,
                };
                self.known.insert(news.clone(), seen);
                Step::Create
            }
        }
    }

    fn written(&mut self, news: &News, name: Option<String>) {
        if let Some(seen) = self.known.get_mut(news) {
            seen.name = name;
        }
    }
}

#[derive(Deserialize)]
struct Written {
    metadata: WrittenMetadata,
}

#[derive(Deserialize)]
struct WrittenMetadata {
    name: String,
}

/// The next event to write; those that came together wait together.
async fn next(receiver: &mut mpsc::Receiver<Said>, waiting: &mut VecDeque<Said>) -> Option<Said> {
    if waiting.is_empty() {
        waiting.push_back(receiver.recv().await?);
        tokio::time::sleep(YIELD).await;
        while let Ok(said) = receiver.try_recv() {
            waiting.push_back(said);
        }
    }
    waiting.pop_front()
}

async fn write(client: Client, mut receiver: mpsc::Receiver<Said>) {
    let start = tokio::time::Instant::now();
    let mut correlator = Correlator::default();
    let mut waiting = VecDeque::new();
    while let Some((component, news)) = next(&mut receiver, &mut waiting).await {
        let namespace = match news.subject.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let api = client.api(Resource::EVENTS, Some(namespace));
        let now = Timestamp::now();
        let step = correlator.see(&news, start.elapsed());
        let outcome = match step {
            Step::Drop => continue,
            Step::Count { name, count } => {
                let patch = json!({ "count": count, "lastTimestamp": seconds(now) });
                match api
                    .patch(&name, Patch::Merge(patch.to_string().into_bytes()))
                    .await
                {
                    Err(ApiError::NotFound(_)) => {
                        api.create::<Written>(body(&news, component, namespace, now))
                            .await
                    }
                    other => other,
                }
            }
            Step::Create => {
                api.create::<Written>(body(&news, component, namespace, now))
                    .await
            }
        };
        match outcome {
            Ok(written) => correlator.written(&news, Some(written.metadata.name)),
            Err(error) => {
                tracing::debug!(reason = %news.reason, %error, "an event could not be written");
                correlator.written(&news, None);
            }
        }
    }
}

fn body(news: &News, component: &str, namespace: &str, now: Timestamp) -> Vec<u8> {
    let subject = &news.subject;
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        // Upstream's form of a name: the object's, and the time in hexadecimal.
        "metadata": { "name": format!("{}.{:x}", subject.name, now.as_nanosecond()), "namespace": namespace },
        "involvedObject": subject,
        "type": news.severity,
        "reason": news.reason,
        "message": news.message,
        "count": 1,
        "firstTimestamp": seconds(now),
        "lastTimestamp": seconds(now),
        "source": { "component": component },
        "reportingComponent": component,
        "reportingInstance": "",
    });
    event.to_string().into_bytes()
}

fn seconds(now: Timestamp) -> String {
    format!("{now:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(message: &str) -> News {
        News {
            subject: Subject {
                api_version: "v1".into(),
                kind: "Service".into(),
                namespace: "ns".into(),
                name: "web".into(),
                uid: "u".into(),
            },
            severity: Severity::Warning,
            reason: "Failed".into(),
            message: message.into(),
        }
    }

    #[test]
    fn repetitions_are_counted_and_forgotten_after_a_while() {
        let mut correlator = Correlator::default();
        assert_eq!(correlator.see(&news("a"), Duration::ZERO), Step::Create);
        correlator.written(&news("a"), Some("web.1".into()));
        let again = Step::Count {
            name: "web.1".into(),
            count: 2,
        };
        assert_eq!(correlator.see(&news("a"), Duration::from_secs(5)), again);
        assert_eq!(correlator.see(&news("b"), Duration::from_secs(5)), Step::Create);
        assert_eq!(correlator.see(&news("a"), Duration::from_secs(700)), Step::Create);
    }

    #[test]
    fn a_flood_about_one_object_is_cut_to_a_trickle() {
        let mut correlator = Correlator::default();
        let told = |correlator: &mut Correlator, at: u64| {
            (0..100)
                .filter(|n| correlator.see(&news(&n.to_string()), Duration::from_secs(at)) != Step::Drop)
                .count()
        };
        assert_eq!(told(&mut correlator, 0), 25);
        assert_eq!(told(&mut correlator, 301), 1);
    }

    #[test]
    fn an_event_has_what_kubectl_describe_reads() {
        let now = "2026-11-15T20:00:00.25Z".parse().unwrap();
        let event: serde_json::Value = serde_json::from_slice(&body(&news("m"), "c", "ns", now)).unwrap();
        assert_eq!(event["involvedObject"]["uid"], "u");
        assert_eq!(event["lastTimestamp"], "2026-11-15T20:00:00Z");
        assert_eq!(event["type"], "Warning");
    }
}
