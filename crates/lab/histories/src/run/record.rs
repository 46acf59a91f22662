//! How do requests become operations of a history?

use super::servers::Access;
use crate::history::{Answer, Content, Freshness, Key, Listing, Nanos, Operation, Request, Seen, WriteId};
use http::Method;
use pointsman_harness::wire::Answer as Reply;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A client that waited so long does not wait any longer.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The size of a page, where a list comes in pages.
const PAGE: usize = 2;

/// What all clients of a history share.
pub struct Record {
    /// The objects' own namespace.
    pub namespace: String,
    pub keys: usize,
    pub stop: AtomicBool,
    started: Instant,
    operations: Mutex<Vec<Operation>>,
    writes: AtomicU32,
    /// The newest revision that anybody saw.
    newest: AtomicU64,
    surprises: Mutex<Vec<String>>,
}

impl Record {
    pub fn new(namespace: String, keys: usize) -> Self {
        Self {
            namespace,
            keys,
            stop: AtomicBool::new(false),
            started: Instant::now(),
            operations: Mutex::default(),
            writes: AtomicU32::new(0),
            newest: AtomicU64::new(0),
            surprises: Mutex::default(),
        }
    }

    pub fn now(&self) -> Nanos {
        u64::try_from(self.started.elapsed().as_nanos()).expect("less than centuries")
    }

    pub fn next_write(&self) -> WriteId {
        WriteId(self.writes.fetch_add(1, Ordering::Relaxed))
    }

    pub fn next_even_write(&self) -> WriteId {
        loop {
            let write = self.next_write();
            if write.0.is_multiple_of(2) {
                return write;
            }
        }
    }

    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    pub fn recorded(&self) -> usize {
        self.operations.lock().expect("nobody panics with it").len()
    }

    /// Something that is wrong whatever else happened.
    pub fn surprise(&self, what: String) {
        self.surprises.lock().expect("nobody panics with it").push(what);
    }

    pub fn into_parts(self) -> (Vec<Operation>, Vec<String>) {
        let expect = "nobody panics with it";
        (
            self.operations.into_inner().expect(expect),
            self.surprises.into_inner().expect(expect),
        )
    }

    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    /// Sends a request and records it. None if there was no answer, or one that says nothing.
    pub async fn carry_out(&self, access: &Access, request: Request) -> Option<Answer> {
        let start = self.now();
        let answer = match request {
            Request::List(Freshness::Newest) if start.is_multiple_of(3) => self.list_in_pages(access).await,
            _ => self.ask(access, request).await.map(|answer| (self.now(), answer)),
        };
        // A read without an answer says nothing.
        if answer.is_some() || request.changes() {
            self.operations
                .lock()
                .expect("nobody panics with it")
                .push(Operation {
                    request,
                    server: access.server,
                    start,
                    answer: answer.clone(),
                });
        }
        let answer = answer?.1;
        if let Answer::Written(Seen { revision, .. }) | Answer::Listed(Listing { revision, .. }) = &answer {
            self.newest.fetch_max(*revision, Ordering::Relaxed);
        }
        Some(answer)
    }

    async fn ask(&self, access: &Access, request: Request) -> Option<Answer> {
        let path = self.path();
        let name = request.key().map(|key| key.to_string()).unwrap_or_default();
        let object = format!("{path}/{name}");
        let reply = match request {
            Request::Create { write, .. } => {
                self.send(access, Method::POST, &path, &whole(&name, write, None))
                    .await
            }
            Request::Get { .. } => self.send(access, Method::GET, &object, &Value::Null).await,
            Request::Put { write, .. } => {
                let revision = self.expected_revision(request);
                self.send(access, Method::PUT, &object, &whole(&name, write, revision))
                    .await
            }
            Request::Patch { write, .. } => {
                let patch =
                    json!({"metadata": {"labels": labels(write)}, "data": {"write": write.0.to_string()}});
                self.send(access, Method::PATCH, &object, &patch).await
            }
            Request::Delete { .. } => {
                let body = match self.expected_revision(request) {
                    Some(revision) => json!({"preconditions": {"resourceVersion": revision.to_string()}}),
                    None => Value::Null,
                };
                self.send(access, Method::DELETE, &object, &body).await
            }
            Request::List(freshness) => {
                let query = match freshness {
                    Freshness::Newest => String::new(),
                    Freshness::Any => "?resourceVersion=0".to_owned(),
                    Freshness::NotOlderThan(revision) => {
                        format!("?resourceVersion={revision}&resourceVersionMatch=NotOlderThan")
                    }
                    Freshness::Exactly(revision) => {
                        format!("?resourceVersion={revision}&resourceVersionMatch=Exact")
                    }
                };
                self.send(access, Method::GET, &format!("{path}{query}"), &Value::Null)
                    .await
            }
        };
        self.read(request, reply?)
    }

    /// Pages after the first show the state of the first, so that the list is over with it.
    async fn list_in_pages(&self, access: &Access) -> Option<(Nanos, Answer)> {
        let mut all: Option<(Nanos, Listing)> = None;
        let mut after = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{after}", self.path());
            let reply = self.send(access, Method::GET, &path, &Value::Null).await?;
            let now = self.now();
            let request = Request::List(Freshness::Newest);
            let next = reply.code == 200;
            let token = next
                .then(|| reply.json()["metadata"]["continue"].as_str().map(str::to_owned))
                .flatten();
            let Answer::Listed(page) = self.read(request, reply)? else {
                return None;
            };
            match &mut all {
                None => all = Some((now, page)),
                Some((_, listing)) => {
                    if listing.revision != page.revision {
                        let revisions = (listing.revision, page.revision);
                        self.surprise(format!("pages of one list are of two revisions: {revisions:?}"));
                    }
                    listing.objects.extend(page.objects);
                }
            }
            match token.filter(|token| !token.is_empty()) {
                Some(token) => after = format!("&continue={token}"),
                None => return all.map(|(end, listing)| (end, Answer::Listed(listing))),
            }
        }
    }

    async fn send(&self, access: &Access, method: Method, path: &str, body: &Value) -> Option<Reply> {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media);
        let sent = access.http.try_send(request.body(body).expect("a valid request"));
        tokio::time::timeout(PATIENCE, sent).await.ok()?.ok()
    }

    fn read(&self, request: Request, reply: Reply) -> Option<Answer> {
        match reply.code {
            200 | 201 => {
                let object = reply.json();
                Some(match request {
                    Request::Get { .. } => Answer::Found(self.seen(&object)?),
                    Request::Delete { .. } => Answer::Deleted,
                    Request::List(_) => Answer::Listed(self.listing(&object)?),
                    _ => Answer::Written(self.seen(&object)?),
                })
            }
            404 => Some(Answer::Missing),
            409 if reply.json()["reason"] == "AlreadyExists" => Some(Answer::Exists),
            409 => Some(Answer::Conflict),
            // Forgotten revisions, too many requests, and failures that leave open whether something happened.
            410 | 429 | 500..=599 => None,
            code => {
                self.surprise(format!("{request} was answered with {code}: {}", reply.text));
                None
            }
        }
    }

    fn listing(&self, list: &Value) -> Option<Listing> {
        let objects = list["items"].as_array()?.iter();
        let objects = objects.map(|object| Some((key(object)?, self.seen(object)?)));
        Some(Listing {
            revision: revision(list)?,
            objects: objects.collect::<Option<BTreeMap<_, _>>>()?,
        })
    }

    /// An object as the server shows it; one that is not as it was written is a surprise.
    pub fn seen(&self, object: &Value) -> Option<Seen> {
        let number = |field: &str| object["data"][field].as_str()?.parse().ok().map(WriteId);
        let seen = || {
            let content = Content {
                write: number("write")?,
                base: number("base")?,
            };
            let revision = revision(object)?;
            (object["metadata"]["labels"] == labels(content.write)).then_some(Seen { content, revision })
        };
        let seen = seen();
        if seen.is_none() {
            self.surprise(format!("an object that nobody wrote so: {object}"));
        }
        seen
    }

    /// The revision of the version that a request expects, from what anybody was answered.
    fn expected_revision(&self, request: Request) -> Option<u64> {
        let (Request::Put { expected, .. } | Request::Delete { expected, .. }) = request else {
            return None;
        };
        let expected = expected?;
        let operations = self.operations.lock().expect("nobody panics with it");
        operations
            .iter()
            .rev()
            .find_map(|operation| match &operation.answer {
                Some((_, Answer::Written(seen) | Answer::Found(seen))) if seen.content.write == expected => {
                    Some(seen.revision)
                }
                _ => None,
            })
    }
}

fn labels(write: WriteId) -> Value {
    json!({"even": if write.0.is_multiple_of(2) { "yes" } else { "no" }})
}

fn whole(name: &str, write: WriteId, revision: Option<u64>) -> Value {
    let write_text = write.0.to_string();
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels(write)},
        "data": {"write": write_text, "base": write_text},
    });
    if let Some(revision) = revision {
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
    }
    object
}

pub fn key(object: &Value) -> Option<Key> {
    object["metadata"]["name"]
        .as_str()?
        .strip_prefix('k')?
        .parse()
        .ok()
        .map(Key)
}

pub fn revision(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}
