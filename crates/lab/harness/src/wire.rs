//! Requests as they go over the wire, and answers as they come back.

use crate::SOON;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// Sends requests as one user.
#[derive(Clone)]
pub struct Http {
    client: kube::Client,
}

/// What the server answered.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body, if the code is the expected one.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.json()
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Asserts that this is a failure Status with this code and reason; gives it back.
    #[track_caller]
    pub fn refused(self, code: u16, reason: &str) -> Value {
        let status = self.expect(code);
        let is = |field: &str| status[field].as_str().unwrap_or("").to_owned();
        assert_eq!(
            (is("kind"), is("apiVersion"), is("status")),
            ("Status".into(), "v1".into(), "Failure".into())
        );
        assert_eq!(
            (is("reason").as_str(), status["code"].as_u64()),
            (reason, Some(code.into())),
            "{status}"
        );
        assert!(!is("message").is_empty());
        status
    }
}

/// The message of a Status, or whatever else says why.
pub fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or("")
}

/// The resourceVersion of an object or list.
#[track_caller]
pub fn version_of(object: &Value) -> String {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_else(|| panic!("no version: {object}"))
        .to_owned()
}

impl Http {
    /// A sender for the user of a kubeconfig.
    pub async fn try_new(config: Kubeconfig) -> Result<Self, Box<dyn std::error::Error>> {
        let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        // What the server says is what the test sees.
        config.default_retry = false;
        Ok(Self {
            client: kube::Client::try_from(config)?,
        })
    }

    /// Sends a request as it is.
    pub async fn try_send(&self, request: Request<Vec<u8>>) -> Result<Answer, kube::Error> {
        let response = self.client.send(request.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        let bytes = body.collect_bytes().await?;
        Ok(Answer {
            code: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }

    /// Sends a request with any body.
    pub async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.try_send(request.body(body).unwrap()).await.unwrap()
    }

    async fn with_json(&self, method: Method, path: &str, media: &str, body: &Value) -> Answer {
        self.raw(
            method,
            path,
            &[("content-type", media)],
            body.to_string().into_bytes(),
        )
        .await
    }

    /// `GET`, with failures of the connection as values.
    pub async fn try_get(&self, path: &str) -> Result<Answer, kube::Error> {
        self.try_send(Request::get(path).body(Vec::new()).unwrap()).await
    }

    /// `POST`, with failures of the connection as values.
    pub async fn try_post(&self, path: &str, body: &Value) -> Result<Answer, kube::Error> {
        let request = Request::post(path).header("content-type", "application/json");
        self.try_send(request.body(body.to_string().into_bytes()).unwrap())
            .await
    }

    /// `PUT`, with failures of the connection as values.
    pub async fn try_put(&self, path: &str, body: &Value) -> Result<Answer, kube::Error> {
        let request = Request::put(path).header("content-type", "application/json");
        self.try_send(request.body(body.to_string().into_bytes()).unwrap())
            .await
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Answer {
        self.raw(Method::GET, path, &[], Vec::new()).await
    }

    /// `GET` in another form.
    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.raw(Method::GET, path, &[("accept", accept)], Vec::new())
            .await
    }

    /// `POST` of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.with_json(Method::POST, path, "application/json", body).await
    }

    /// `PUT` of JSON.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.with_json(Method::PUT, path, "application/json", body).await
    }

    /// `PATCH`; `form` is `merge`, `strategic-merge` or `json`.
    pub async fn patch(&self, path: &str, form: &str, body: &Value) -> Answer {
        let media = if form == "json" {
            "application/json-patch+json".into()
        } else {
            format!("application/{form}-patch+json")
        };
        self.with_json(Method::PATCH, path, &media, body).await
    }

    /// `DELETE` without a body.
    pub async fn delete(&self, path: &str) -> Answer {
        self.raw(Method::DELETE, path, &[], Vec::new()).await
    }

    /// `DELETE` with options.
    pub async fn delete_with(&self, path: &str, options: &Value) -> Answer {
        self.with_json(Method::DELETE, path, "application/json", options)
            .await
    }

    /// Makes a namespace.
    pub async fn namespace(&self, name: &str) {
        let namespace = serde_json::json!({"metadata": {"name": name}});
        self.post("/api/v1/namespaces", &namespace).await.expect(201);
    }

    /// Opens a watch.
    pub async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, "application/json").await
    }

    /// Opens a watch in another form.
    pub async fn watch_as(&self, path: &str, accept: &str) -> Watch {
        let opened = self.open_watch(path, accept).await;
        opened.unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    /// Opens a watch, with refusals and failures of the connection as values.
    pub async fn try_watch(&self, path: &str) -> Result<Watch, String> {
        self.open_watch(path, "application/json").await
    }

    async fn open_watch(&self, path: &str, accept: &str) -> Result<Watch, String> {
        let request = Request::get(path).header("accept", accept);
        let response = self.client.send(request.body(Body::empty()).unwrap()).await;
        let response = response.map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(response.status().to_string());
        }
        Ok(Watch {
            body: response.into_body(),
            buffered: Vec::new(),
            searched: 0,
        })
    }
}

/// An open watch.
pub struct Watch {
    body: Body,
    buffered: Vec<u8>,
    /// No line ends before this position.
    searched: usize,
}

/// One event of a watch.
#[derive(Debug, PartialEq)]
pub struct Event {
    /// `ADDED` and so on.
    pub kind: String,
    pub object: Value,
}

impl Event {
    /// The name of the object.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or("")
    }

    /// Type and name, which is what most tests compare.
    pub fn brief(&self) -> String {
        format!("{} {}", self.kind, self.name())
    }
}

impl Watch {
    /// The next event, or `None` when the server ends the stream.
    pub async fn next(&mut self) -> Option<Event> {
        let next = tokio::time::timeout(SOON, self.wait()).await;
        next.expect("an event, or the end of the stream, in time")
    }

    /// The next event, which has to come.
    pub async fn expect(&mut self) -> Event {
        self.next().await.expect("the stream goes on")
    }

    /// Everything until the end of the stream.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    async fn wait(&mut self) -> Option<Event> {
        loop {
            let rest = &self.buffered[self.searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffered.drain(..=self.searched + end).collect();
                self.searched = 0;
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                let kind = event["type"].as_str().unwrap().to_owned();
                return Some(Event {
                    kind,
                    object: event["object"].take(),
                });
            }
            self.searched = self.buffered.len();
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffered.extend(frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => return None,
            }
        }
    }
}
