//! How does a store of one's own stay equal to the server's?
//!
//! A [`Watcher`] lists a collection and then follows it. Broken connections resume where they ended;
//! a gap that the server cannot fill leads to a new list, after which objects that are gone are told
//! as deleted, exactly as if nobody had looked away. Callers never see an error: they see events late.
//!
//! Lists are streamed over the watch itself where the server can do that, so no page is held in memory.

pub(crate) mod decode;
mod known;
mod lines;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::ApiError;
use crate::resource::Resource;
use bytes::Bytes;
use decode::{Head, Kind, Line, Metadata, Page};
use http::Method;
use known::Known;
use lines::Lines;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use known::ObjectKey;

/// Objects per page where lists cannot be streamed (client-go's number).
pub(crate) const PAGE: usize = 500;
/// How long the server is asked to keep one watch open.
const WATCH_SECONDS: u32 = 300;
/// Servers send bookmarks about once a minute; this much silence means that the connection is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// How long to wait before asking again for an optional collection that the server does not have.
const ABSENCE: Duration = Duration::from_secs(300);
/// No event for this long means that there are no more for now.
const MOMENT: Duration = Duration::from_millis(1);
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
        /// The object.
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
    },
    /// Everything up to this resource version has been told: after a list, and with bookmarks.
    Synced(Box<str>),
}

impl<T> Event<T> {
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
            } => Event::Deleted {
                key,
                resource_version,
            },
            Self::Synced(version) => Event::Synced(version),
        })
    }
}

/// Which objects are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The collection.
    pub resource: Resource,
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// Label selector, or everything.
    pub labels: Option<String>,
    /// Field selector, or everything.
    pub fields: Option<String>,
}

impl Scope {
    /// All objects of a collection.
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            namespace: None,
            labels: None,
            fields: None,
        }
    }

    /// Only objects whose labels match.
    pub fn labels(self, selector: &str) -> Self {
        Self {
            labels: Some(selector.to_owned()),
            ..self
        }
    }

    /// Only objects whose fields match.
    pub fn fields(self, selector: &str) -> Self {
        Self {
            fields: Some(selector.to_owned()),
            ..self
        }
    }

    pub(crate) fn path(&self, parameters: &[(&str, &str)]) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        let mut path = self.resource.path(self.namespace.as_deref());
        let selectors = [
            ("labelSelector", self.labels.as_deref()),
            ("fieldSelector", self.fields.as_deref()),
        ];
        let selectors = selectors
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)));
        let mut separator = '?';
        for (name, value) in parameters.iter().copied().chain(selectors) {
            path.push(separator);
            separator = '&';
            path.push_str(name);
            path.push('=');
            path.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        path
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

/// Where a watcher stands.
enum State {
    /// Nothing is known, or too much was missed.
    Empty,
    /// The watch can go on after this version.
    Resume(String),
    /// Lines come in.
    Open(Stream),
}

struct Stream {
    lines: Lines,
    resource_version: String,
    since: Instant,
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
    optional: bool,
    object: PhantomData<fn() -> T>,
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
            optional: false,
            object: PhantomData,
        }
    }

    /// The server may not have the collection, or not for us: then it is asked again only now and then.
    pub fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }

    /// The next event. Waits as long as it takes; may be dropped and called again only between events
    /// that were returned, so give a watcher a task of its own ([`Watcher::forward`]).
    pub async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let outcome = match self.failed.take() {
                Some(error) => Err(error),
                None => self.step().await,
            };
            match outcome {
                Ok(()) => {}
                Err(error) if self.ready.is_empty() => self.recover(error).await,
                // What came before it must not wait.
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Sends every event, converted, until the receiver is gone.
    pub async fn forward<E>(
        mut self,
        sender: mpsc::Sender<E>,
        mut convert: impl FnMut(Event<T>) -> Option<E>,
    ) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                () = sender.closed() => return,
            };
            // What arrived with it needs no look at whether somebody still listens.
            for event in std::iter::once(event).chain(std::mem::take(&mut self.ready)) {
                if let Some(event) = convert(event)
                    && sender.send(event).await.is_err()
                {
                    return;
                }
            }
        }
    }

    /// The same, with events that arrived together sent together: lists cost one wake-up for many objects.
    pub async fn forward_together<E>(
        mut self,
        sender: mpsc::Sender<Vec<E>>,
        mut convert: impl FnMut(Event<T>) -> Option<E>,
    ) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                () = sender.closed() => return,
            };
            let arrived = std::iter::once(event).chain(self.ready.drain(..));
            let events: Vec<E> = arrived.filter_map(&mut convert).collect();
            if !events.is_empty() && sender.send(events).await.is_err() {
                return;
            }
        }
    }

    /// The same for events that come all the time and may wait a little, such as heartbeats: once no more
    /// come for a moment they are handed over together, and the next ones gather for `pause`. Waking up for each
    /// would cost more than reading it. Lists are not held up.
    pub async fn forward_in_bunches<E>(
        mut self,
        sender: mpsc::Sender<E>,
        pause: Duration,
        convert: impl Fn(Event<T>) -> Option<E>,
    ) {
        let mut bunch = Vec::new();
        let mut listing = true;
        loop {
            let mut next = std::pin::pin!(self.next());
            let event = match tokio::time::timeout(MOMENT, &mut next).await {
                Ok(event) => event,
                Err(_) => {
                    if !send_all(&sender, &mut bunch).await {
                        return;
                    }
                    if !listing {
                        tokio::time::sleep(pause).await;
                    }
                    tokio::select! {
                        event = next => event,
                        () = sender.closed() => return,
                    }
                }
            };
            match event {
                Event::Init => listing = true,
                Event::Synced(_) => listing = false,
                Event::Applied { .. } | Event::Deleted { .. } => {}
            }
            bunch.extend(convert(event));
            if bunch.len() >= BUNCH && !send_all(&sender, &mut bunch).await {
                return;
            }
        }
    }

    async fn step(&mut self) -> Result<(), ApiError> {
        match std::mem::replace(&mut self.state, State::Empty) {
            State::Empty => {
                self.known.begin_list();
                self.ready.push_back(Event::Init);
                match self.listing {
                    Listing::Streamed => self.open_streamed().await,
                    Listing::Paged => self.list_pages().await,
                }
            }
            State::Resume(version) => {
                self.state = State::Resume(version.clone());
                let query = [
                    ("watch", "true"),
                    ("resourceVersion", version.as_str()),
                    ("allowWatchBookmarks", "true"),
                ];
                let lines = Self::open(&self.client, &self.scope, &query).await?;
                self.state = State::Open(Stream::new(lines, version));
                Ok(())
            }
            State::Open(stream) => self.read(stream).await,
        }
    }

    async fn open_streamed(&mut self) -> Result<(), ApiError> {
        let query = [
            ("watch", "true"),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("allowWatchBookmarks", "true"),
        ];
        match Self::open(&self.client, &self.scope, &query).await {
            Ok(lines) => {
                self.state = State::Open(Stream::new(lines, String::new()));
                Ok(())
            }
            Err(ApiError::Refused(status)) if matches!(status.code, 400 | 422) => {
                tracing::info!(resource = self.scope.resource.plural, reason = %status.message, "lists are not streamed by this server, reading pages");
                self.listing = Listing::Paged;
                self.list_pages().await
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a stream. Borrows no more than it needs: a watcher that has one open cannot be shared.
    async fn open(client: &Client, scope: &Scope, query: &[(&str, &str)]) -> Result<Lines, ApiError> {
        // Watches that began together should not end together.
        let seconds = (WATCH_SECONDS - fastrand::u32(0..60)).to_string();
        let mut query = query.to_vec();
        query.push(("timeoutSeconds", &seconds));
        let path = scope.path(&query);
        let head = client.send(Method::GET, &path, None, Bytes::new());
        match tokio::time::timeout(Duration::from_secs(30), head).await {
            Ok(response) => Ok(Lines::new(response?.into_body())),
            Err(_) => Err(ApiError::Unreachable("the watch was not answered".into())),
        }
    }

    async fn list_pages(&mut self) -> Result<(), ApiError> {
        let mut token = String::new();
        loop {
            let limit = PAGE.to_string();
            let mut query = vec![("limit", limit.as_str())];
            if !token.is_empty() {
                query.push(("continue", &token));
            }
            let path = self.scope.path(&query);
            let page: Page = self.client.get_path(&path).await?;
            for item in &page.items {
                self.applied(item.get(), &mut String::new());
            }
            token = page.metadata.r#continue;
            if token.is_empty() {
                self.listed(&page.metadata.resource_version);
                self.state = State::Resume(page.metadata.resource_version);
                return Ok(());
            }
        }
    }

    /// Reads what has arrived; events that came in one piece are handed on without another wait.
    async fn read(&mut self, mut stream: Stream) -> Result<(), ApiError> {
        let line = tokio::time::timeout(SILENCE, stream.lines.next()).await;
        let line = match line {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => {
                self.suspend(stream);
                return Err(error);
            }
            Err(_) => {
                self.suspend(stream);
                return Err(ApiError::Unreachable(format!("silent for {SILENCE:?}")));
            }
        };
        let Some(line) = line else {
            let lived = stream.since.elapsed();
            self.suspend(stream);
            if lived < HEALTHY {
                return Err(ApiError::Unreachable("the watch ended early".into()));
            }
            return Ok(());
        };
        let mut line = Some(line);
        while let Some(text) = line.take() {
            if let Err(error) = self.take(&text, &mut stream) {
                self.suspend(stream);
                return Err(error);
            }
            if self.ready.len() < BUNCH {
                line = stream.lines.arrived();
            }
        }
        self.backoff.reset();
        self.state = State::Open(stream);
        Ok(())
    }

    /// The stream is over: go on after the last version seen, or list if there is none yet.
    fn suspend(&mut self, stream: Stream) {
        self.state = if stream.resource_version.is_empty() || self.known.listing() {
            State::Empty
        } else {
            State::Resume(stream.resource_version)
        };
    }

    fn take(&mut self, line: &[u8], stream: &mut Stream) -> Result<(), ApiError> {
        let line = Line::read(line)?;
        match line.kind {
            Kind::Added | Kind::Modified => self.applied(line.object, &mut stream.resource_version),
            Kind::Deleted => {
                let head = Head::read(line.object)?;
                head.metadata
                    .resource_version
                    .as_ref()
                    .clone_into(&mut stream.resource_version);
                let (namespace, name) = (&head.metadata.namespace, &head.metadata.name);
                self.known.remove(namespace, name);
                let key = ObjectKey::new(namespace, name);
                self.ready.push_back(Event::Deleted {
                    key,
                    resource_version: Some(stream.resource_version.as_str().into()),
                });
            }
            Kind::Bookmark => {
                let head = Head::read(line.object)?;
                let version = head.metadata.resource_version.into_owned();
                if self.known.listing() {
                    if head.metadata.annotations.initial_events_end.as_deref() == Some("true") {
                        self.listed(&version);
                    }
                } else {
                    self.ready.push_back(Event::Synced(version.as_str().into()));
                }
                stream.resource_version = version;
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

    /// Takes in an object and notes its version. One that cannot be read is told in the log and left out.
    fn applied(&mut self, text: &str, seen: &mut String) {
        let Metadata {
            namespace,
            name,
            resource_version,
            ..
        } = match Head::read(text) {
            Ok(head) => head.metadata,
            Err(error) => {
                tracing::warn!(resource = self.scope.resource.plural, %error, "an object without readable metadata is left out");
                return;
            }
        };
        resource_version.as_ref().clone_into(seen);
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
                tracing::warn!(resource = self.scope.resource.plural, %namespace, %name, %error, "an object that cannot be read is left out");
            }
        }
    }

    fn listed(&mut self, version: &str) {
        let gone = self.known.end_list();
        self.ready.extend(gone.into_iter().map(|key| Event::Deleted {
            key,
            resource_version: None,
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

    async fn recover(&mut self, error: ApiError) {
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
            tokio::time::sleep(ABSENCE).await;
            return;
        }
        let wait = self.backoff.next(fastrand::f64());
        let wait = match error.recovery() {
            crate::error::Recovery::Retry(Some(least)) => wait.max(least.min(Duration::from_secs(30))),
            _ => wait,
        };
        tracing::debug!(resource, %error, wait_seconds = wait.as_secs_f64(), "watch interrupted");
        if wait > Duration::from_secs(1) {
            tracing::warn!(resource, %error, "watch interrupted, trying again");
        }
        tokio::time::sleep(wait).await;
    }
}

impl Stream {
    fn new(lines: Lines, resource_version: String) -> Self {
        Self {
            lines,
            resource_version,
            since: Instant::now(),
        }
    }
}

/// Sends everything; tells whether somebody still listens.
async fn send_all<E>(sender: &mpsc::Sender<E>, events: &mut Vec<E>) -> bool {
    for event in events.drain(..) {
        if sender.send(event).await.is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
