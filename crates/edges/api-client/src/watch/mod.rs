//! How does a store of one's own stay equal to the server's?
//!
//! A [`Watcher`] lists a collection and then follows it. Broken connections resume where they ended;
//! a gap that the server cannot fill leads to a new list, after which objects that are gone are
//! reported as deleted, exactly as if nobody had looked away. Callers never see an error: they see events late.
//!
//! A server whose store was restored from a backup has another history than the one that was followed. That shows in
//! versions that go back, in a version that the server does not have yet, or in silence where bookmarks were asked
//! for. Each leads to a new list.
//!
//! Lists are streamed over the watch itself where the server can do that, so no page is held in memory.

pub(crate) mod decode;
pub(crate) mod forward;
mod known;
mod lines;
mod scope;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::{ApiError, Recovery};
use bytes::{Bytes, BytesMut};
use decode::{Head, Heading, Kind, Line, Page, removed_at};
use http::Method;
use known::Known;
use lines::Lines;
use pointsman_model::Moment;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

pub use known::ObjectKey;
pub use scope::Scope;

/// How long the server is asked to keep one watch open.
const WATCH_SECONDS: u32 = 300;
/// Servers send bookmarks about once a minute; this much silence means that the connection is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// How long the head of an answer may take.
const ANSWER: Duration = Duration::from_secs(30);
/// How long to wait before asking again for an optional collection that the server does not have.
const ABSENCE: Duration = Duration::from_secs(300);
/// Most events that are handed over together.
const BUNCH: usize = 256;
/// A watch that lived this long was no failure when it ended.
const HEALTHY: Duration = Duration::from_secs(2);

/// Something that happened to a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// A list begins: everything that still exists comes as [`Event::Applied`], what does not as
    /// [`Event::Deleted`], then [`Event::Synced`]. Comes first, and again after a gap.
    Init,
    /// An object as it is now.
    Applied {
        /// Its namespace and name.
        key: ObjectKey,
        object: T,
        /// Its resource version.
        resource_version: Box<str>,
    },
    /// An object is gone.
    Deleted {
        /// Its namespace and name.
        key: ObjectKey,
        /// The version of its deletion. Unknown if only a list shows that it is gone; the
        /// [`Event::Synced`] after the list covers it.
        resource_version: Option<Box<str>>,
        /// When the API server removed it, as far as its last state says so ([`pointsman_objects::WriteTimes::removed`]).
        removed: Option<Moment>,
    },
    /// Everything up to this resource version has been reported: after a list, and with bookmarks.
    Synced(Box<str>),
}

impl<T> Event<T> {
    /// The same event about a converted object.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Event<U> {
        self.try_map(|object| Some(convert(object)))
            .expect("every object is converted")
    }

    /// The same event about a converted object; none if it cannot be converted.
    pub fn try_map<U>(self, convert: impl FnOnce(T) -> Option<U>) -> Option<Event<U>> {
        Some(match self {
            Self::Init => Event::Init,
            Self::Applied {
                key,
                object,
                resource_version,
            } => Event::Applied {
                key,
                object: convert(object)?,
                resource_version,
            },
            Self::Deleted {
                key,
                resource_version,
                removed,
            } => Event::Deleted {
                key,
                resource_version,
                removed,
            },
            Self::Synced(version) => Event::Synced(version),
        })
    }
}

/// How the first state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// Over the watch itself.
    Streamed,
    /// In pages: the server does not stream.
    Paged,
}

/// An answer of the server that has not come yet.
type Awaited<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

/// Where a watcher stands. Whatever it waits for is part of its state, so that nothing is lost when
/// the caller stops waiting.
enum State {
    /// Nothing is known, or too much was missed.
    Empty,
    /// A page of a list was asked for.
    Paging(Awaited<Page>),
    /// The watch can go on after this version.
    Resume(String),
    /// A watch was asked for that goes on after this version, or begins with a list if it is empty.
    Opening(String, Awaited<Lines>),
    /// Lines come in.
    Open(Stream),
}

struct Stream {
    lines: Lines,
    resource_version: String,
    since: Instant,
    last_line: Instant,
}

/// Follows one collection for ever.
pub struct Watcher<T> {
    client: Client,
    scope: Scope,
    listing: Listing,
    state: State,
    known: Known,
    ready: VecDeque<Event<T>>,
    /// What went wrong after the events that are ready.
    failed: Option<ApiError>,
    backoff: Backoff,
    pause_until: Option<Instant>,
    optional: bool,
}

impl<T: DeserializeOwned + Send + 'static> Watcher<T> {
    /// A watcher that has not asked for anything yet.
    pub fn new(client: Client, scope: Scope) -> Self {
        Self {
            client,
            scope,
            listing: Listing::Streamed,
            state: State::Empty,
            known: Known::default(),
            ready: VecDeque::new(),
            failed: None,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
            pause_until: None,
            optional: false,
        }
    }

    /// The server may not have the collection, or not for us: then it is asked again only now and then.
    pub fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }

    /// The next event. Waits as long as it takes; may be dropped at any time and called again, without
    /// losing an event or the open connection.
    pub async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            // What came before a failure must not wait for the next attempt.
            if let Some(error) = self.failed.take() {
                self.pause_until = Some(Instant::now() + self.recover(error));
            }
            if let Some(at) = self.pause_until {
                tokio::time::sleep_until(at).await;
                self.pause_until = None;
            }
            self.failed = self.step().await.err();
        }
    }

    /// Takes one step to the next state. Each waits once at most, and for something that the state holds.
    async fn step(&mut self) -> Result<(), ApiError> {
        match &mut self.state {
            State::Empty => {
                self.known.begin_list();
                self.ready.push_back(Event::Init);
                self.state = match self.listing {
                    Listing::Streamed => State::Opening(String::new(), self.open("")),
                    Listing::Paged => State::Paging(self.page("")),
                };
                Ok(())
            }
            State::Paging(page) => {
                let page = page.await;
                self.paged(page)
            }
            State::Resume(version) => {
                let version = std::mem::take(version);
                let lines = self.open(&version);
                self.state = State::Opening(version, lines);
                Ok(())
            }
            State::Opening(version, lines) => {
                let lines = lines.await;
                let version = std::mem::take(version);
                self.opened(version, lines)
            }
            State::Open(stream) => {
                let line = stream.next().await;
                self.read(line)
            }
        }
    }

    /// Asks for a watch after this version, or for one that begins with a list.
    fn open(&self, version: &str) -> Awaited<Lines> {
        // Watches that began together should not end together.
        let seconds = (WATCH_SECONDS - fastrand::u32(0..60)).to_string();
        let start: &[(&str, &str)] = if version.is_empty() {
            &[
                ("sendInitialEvents", "true"),
                ("resourceVersionMatch", "NotOlderThan"),
            ]
        } else {
            &[("resourceVersion", version)]
        };
        let mut query = vec![("watch", "true")];
        query.extend(start);
        query.extend([("allowWatchBookmarks", "true"), ("timeoutSeconds", &seconds)]);
        let (client, path) = (self.client.clone(), self.scope.path(&query));
        Box::pin(async move {
            let head = client.send(Method::GET, &path, None, Bytes::new());
            match tokio::time::timeout(ANSWER, head).await {
                Ok(response) => Ok(Lines::new(response?.into_body())),
                Err(_) => Err(ApiError::Unreachable("the watch was not answered".into())),
            }
        })
    }

    fn opened(&mut self, version: String, lines: Result<Lines, ApiError>) -> Result<(), ApiError> {
        let begins = version.is_empty();
        match lines {
            Ok(lines) => self.state = State::Open(Stream::new(lines, version)),
            Err(ApiError::Refused(status)) if begins && matches!(status.code, 400 | 422) => {
                tracing::info!(resource = self.scope.resource.plural, reason = %status.message, "lists are not streamed by this server, reading pages");
                self.listing = Listing::Paged;
                self.state = State::Paging(self.page(""));
            }
            Err(error) => {
                self.state = if begins {
                    State::Empty
                } else {
                    State::Resume(version)
                };
                return Err(error);
            }
        }
        Ok(())
    }

    /// Asks for the page of a list that this token names.
    fn page(&self, token: &str) -> Awaited<Page> {
        let (client, path) = (self.client.clone(), self.scope.page_path(token));
        Box::pin(async move { client.get_path(&path).await })
    }

    fn paged(&mut self, page: Result<Page, ApiError>) -> Result<(), ApiError> {
        let Page { metadata, items } = page.inspect_err(|_| self.state = State::Empty)?;
        for item in &items {
            self.applied(item.get())?;
        }
        self.state = if metadata.r#continue.is_empty() {
            self.listed(&metadata.resource_version);
            State::Resume(metadata.resource_version)
        } else {
            State::Paging(self.page(&metadata.r#continue))
        };
        Ok(())
    }

    /// Takes in a line and what came in one piece with it, which is handed on without another wait.
    fn read(&mut self, line: Result<Option<BytesMut>, ApiError>) -> Result<(), ApiError> {
        let mut line = line.inspect_err(|_| self.suspend())?;
        if line.is_none() {
            return self.ended();
        }
        while let Some(text) = line.take() {
            self.take(&text).inspect_err(|_| self.suspend())?;
            if self.ready.len() < BUNCH
                && let State::Open(stream) = &mut self.state
            {
                line = stream.lines.arrived();
            }
        }
        self.backoff.reset();
        Ok(())
    }

    /// The server ended the watch.
    fn ended(&mut self) -> Result<(), ApiError> {
        let lived = match &self.state {
            State::Open(stream) => stream.since.elapsed(),
            _ => HEALTHY,
        };
        self.suspend();
        if lived < HEALTHY {
            return Err(ApiError::Unreachable("the watch ended early".into()));
        }
        Ok(())
    }

    /// The stream is over: go on after the last version seen, or list if there is none yet.
    fn suspend(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Empty);
        if let State::Open(stream) = state
            && !stream.resource_version.is_empty()
            && !self.known.listing()
        {
            self.state = State::Resume(stream.resource_version);
        }
    }

    /// Everything up to this version was seen.
    fn seen(&mut self, version: &str) -> Result<(), ApiError> {
        if let State::Open(stream) = &mut self.state {
            // The objects of a list come in the order of their names.
            if !self.known.listing() && is_before(version, &stream.resource_version) {
                let before = &stream.resource_version;
                let message = format!("the server's history went back from version {before} to {version}");
                return Err(ApiError::expired(message));
            }
            version.clone_into(&mut stream.resource_version);
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<(), ApiError> {
        let line = Line::read(line)?;
        match line.kind {
            Kind::Added | Kind::Modified => self.applied(line.object)?,
            Kind::Deleted => {
                let Heading {
                    namespace,
                    name,
                    resource_version,
                    ..
                } = Head::read(line.object)?.metadata;
                self.seen(&resource_version)?;
                self.known.remove(&namespace, &name);
                self.ready.push_back(Event::Deleted {
                    key: ObjectKey::new(&namespace, &name),
                    resource_version: Some(resource_version.into()),
                    removed: removed_at(line.object),
                });
            }
            Kind::Bookmark => {
                let Heading {
                    resource_version,
                    annotations,
                    ..
                } = Head::read(line.object)?.metadata;
                self.seen(&resource_version)?;
                if !self.known.listing() {
                    self.ready.push_back(Event::Synced(resource_version.into()));
                } else if annotations.initial_events_end.as_deref() == Some("true") {
                    self.listed(&resource_version);
                }
            }
            Kind::Error => {
                let status = serde_json::from_str(line.object)
                    .map_err(|error| ApiError::Unreadable(error.to_string()))?;
                return Err(ApiError::from_status(status));
            }
            Kind::Unknown => {}
        }
        Ok(())
    }

    /// Takes in an object and notes its version. One that cannot be read is named in the log and left out.
    fn applied(&mut self, text: &str) -> Result<(), ApiError> {
        let resource = self.scope.resource.plural;
        let Heading {
            namespace,
            name,
            resource_version,
            ..
        } = match Head::read(text) {
            Ok(head) => head.metadata,
            Err(error) => {
                tracing::warn!(resource, %error, "ignoring an object without readable metadata");
                return Ok(());
            }
        };
        self.seen(&resource_version)?;
        match serde_json::from_str(text) {
            Ok(object) => {
                self.known.insert(&namespace, &name);
                self.ready.push_back(Event::Applied {
                    key: ObjectKey::new(&namespace, &name),
                    object,
                    resource_version: resource_version.into(),
                });
            }
            Err(error) => {
                tracing::warn!(resource, %namespace, %name, %error, "ignoring an object that cannot be read");
            }
        }
        Ok(())
    }

    fn listed(&mut self, version: &str) {
        let gone = self.known.end_list();
        self.ready.extend(gone.into_iter().map(|key| Event::Deleted {
            key,
            resource_version: None,
            removed: None,
        }));
        self.ready.push_back(Event::Synced(version.into()));
    }

    /// A kube-apiserver on an old etcd (before 3.4.25) offers streamed lists and then answers 500 to
    /// each. Pages always work.
    fn give_up_streaming(&mut self, error: &ApiError) {
        if self.listing == Listing::Streamed
            && let ApiError::Busy(status) = error
            && (status.code, status.reason.as_str()) == (500, "InternalError")
        {
            tracing::info!(resource = self.scope.resource.plural, reason = %status.message, "lists cannot be streamed by this server, reading pages");
            self.listing = Listing::Paged;
        }
    }

    /// Decides where to go on after a failure; returns how long to wait before that.
    fn recover(&mut self, error: ApiError) -> Duration {
        let resource = self.scope.resource.plural;
        if matches!(error, ApiError::Expired(_)) {
            tracing::info!(resource, %error, "too much was missed, listing again");
            self.state = State::Empty;
        } else if self.known.listing() {
            self.state = State::Empty;
            self.give_up_streaming(&error);
        }
        if self.optional && matches!(error, ApiError::NotFound(_) | ApiError::Refused(_)) {
            tracing::debug!(resource, %error, "this server does not offer the collection");
            return ABSENCE;
        }
        let wait = self.backoff.next(fastrand::f64());
        let wait = match error.recovery() {
            Recovery::Retry(Some(least)) => wait.max(least.min(Duration::from_secs(30))),
            _ => wait,
        };
        tracing::debug!(resource, %error, wait_seconds = wait.as_secs_f64(), "watch interrupted");
        if wait > Duration::from_secs(1) && !error.is_missing_right() {
            tracing::warn!(resource, %error, "watch interrupted, trying again");
        }
        wait
    }
}

impl Stream {
    fn new(lines: Lines, resource_version: String) -> Self {
        let now = Instant::now();
        Self {
            lines,
            resource_version,
            since: now,
            last_line: now,
        }
    }

    /// The next line. Can be dropped and called again.
    async fn next(&mut self) -> Result<Option<BytesMut>, ApiError> {
        let line = tokio::time::timeout_at(self.last_line + SILENCE, self.lines.next()).await;
        self.last_line = Instant::now();
        // A dead connection, or a server that waits for a version that its history does not have.
        line.unwrap_or_else(|_| Err(ApiError::expired(format!("silent for {SILENCE:?}"))))
    }
}

/// Whether one version is older than another. They are numbers on every server that we know, and compared only where
/// they are.
fn is_before(version: &str, other: &str) -> bool {
    matches!((version.parse::<u64>(), other.parse::<u64>()), (Ok(version), Ok(other)) if version < other)
}

#[cfg(test)]
pub(crate) mod tests;
