//! What may others know about the pods of this node?

use super::Agent;
use crate::pod::Managed;
use crate::stats::{Names, PodName};
use crate::streams::Place;
use serde_json::value::RawValue;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// What the agent's own server asks.
pub(crate) enum Question {
    /// Where the log of a container is.
    Log {
        namespace: String,
        pod: String,
        container: String,
        previous: bool,
        answer: oneshot::Sender<Result<FoundLog, LogError>>,
    },
    /// Where a pod runs, or the container of that name.
    Place {
        namespace: String,
        pod: String,
        container: Option<String>,
        answer: oneshot::Sender<Result<Place, LogError>>,
    },
    /// How the pods are called.
    Names { answer: oneshot::Sender<Names> },
    /// All pods as they are now.
    Pods {
        answer: oneshot::Sender<Vec<Box<RawValue>>>,
    },
}

/// A container's log, and whether more may come.
pub(crate) struct FoundLog {
    pub(crate) path: PathBuf,
    /// Turns false when the run has ended.
    pub(crate) alive: watch::Receiver<bool>,
}

/// Why there is no log.
pub(crate) enum LogError {
    /// The pod or container is not on this node.
    NotFound(String),
    /// There is none yet.
    NotYet(String),
}

impl Agent {
    fn named(&mut self, namespace: String, pod: String) -> Result<(Arc<str>, &mut Managed), LogError> {
        let missing = || LogError::NotFound(format!("pod {pod:?} is not on this node"));
        let uid = self.names.get(&(namespace, pod.clone())).ok_or_else(missing)?;
        let found = self.pods.get_mut(uid).ok_or_else(missing)?;
        Ok((uid.clone(), found))
    }

    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Log {
                namespace,
                pod,
                container,
                previous,
                answer,
            } => {
                let log = self
                    .named(namespace, pod)
                    .and_then(|pod| pod.1.log(&container, previous));
                let _ = answer.send(log);
            }
            Question::Place {
                namespace,
                pod,
                container,
                answer,
            } => {
                let place = self
                    .named(namespace, pod)
                    .and_then(|(uid, pod)| pod.place(uid, container.as_deref()));
                let _ = answer.send(place);
            }
            Question::Names { answer } => {
                let names = self.pods.iter().map(|(uid, pod)| {
                    let name = PodName {
                        namespace: pod.namespace().to_owned(),
                        name: pod.name().to_owned(),
                    };
                    (uid.clone(), name)
                });
                let _ = answer.send(names.collect());
            }
            Question::Pods { answer } => {
                let pods = self.pods.values().map(|pod| pod.text.clone());
                let _ = answer.send(pods.collect());
            }
        }
    }
}
