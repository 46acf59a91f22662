//! A scripted server for tests.

use crate::client::Client;
use crate::watch::{Event, ObjectKey};
use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Thing {
    pub value: i32,
}

/// Answers requests from a list, and remembers what was asked.
#[derive(Clone, Default)]
pub(crate) struct Script {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// Heads of answers take a while, and bodies come in small pieces with waits in between.
    slow: bool,
}

/// A body in one piece or in many.
struct Pieces {
    pieces: VecDeque<Bytes>,
    waits: bool,
    waited: bool,
}

impl Pieces {
    fn new(text: &str, slow: bool) -> Self {
        let size = if slow { 50 } else { text.len().max(1) };
        Self {
            pieces: text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect(),
            waits: slow,
            waited: false,
        }
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.waited = !self.waited;
        if self.waits && self.waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(
            self.pieces
                .pop_front()
                .map(|piece| Ok(http_body::Frame::data(piece))),
        )
    }
}

impl Script {
    pub fn new(answers: &[(u16, &str)]) -> Self {
        let answers = answers
            .iter()
            .map(|(code, text)| (*code, (*text).to_owned()))
            .collect();
        Self {
            answers: Arc::new(Mutex::new(answers)),
            asked: Arc::default(),
            slow: false,
        }
    }

    pub fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    pub fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            script.asked.lock().unwrap().push(request.uri().to_string());
            let next = script.answers.lock().unwrap().pop_front();
            let (code, text) = next.unwrap_or((503, "{}".into()));
            let slow = script.slow;
            async move {
                if slow {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Pieces::new(&text, slow)).unwrap())
            }
        });
        Client::new(kube::Client::new(service, "default"))
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

pub(crate) fn line(kind: &str, name: &str, version: &str, value: i32) -> String {
    format!(
        r#"{{"type":"{kind}","object":{{"metadata":{{"namespace":"ns","name":"{name}","resourceVersion":"{version}"}},"value":{value}}}}}"#
    ) + "\n"
}

pub(crate) fn bookmark(version: &str, end: bool) -> String {
    let annotations = if end {
        r#","annotations":{"k8s.io/initial-events-end":"true"}"#
    } else {
        ""
    };
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"{annotations}}}}}}}"#)
        + "\n"
}

pub(crate) fn applied(name: &str, version: &str, value: i32) -> Event<Thing> {
    Event::Applied {
        key: ObjectKey::new("ns", name),
        object: Thing { value },
        resource_version: version.into(),
    }
}

pub(crate) fn gone(name: &str, version: Option<&str>) -> Event<Thing> {
    Event::Deleted {
        key: ObjectKey::new("ns", name),
        resource_version: version.map(Into::into),
        removed: None,
    }
}
