//! `get`, `list`, `watch`, and the logs of containers.

pub mod log;
pub mod render;
pub mod select;
pub mod usage;
pub mod watch;

use crate::cache::collection::Snapshot;
use crate::cache::object::Object;
use crate::cache::read_entry;
use crate::http::body::Body;
use crate::http::negotiate::{Form, negotiate};
use crate::http::query::{Continue, Freshness, ListOptions, WatchOptions};
use crate::keys;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::stored::EventType;
use pointsman_rules::status::Subject;
use pointsman_rules::table::IncludeObject;
use pointsman_rules::{ApiError, Kind, scale};
use pointsman_store::{Range, Revision, StoreError};
use render::Renderer;
use select::Selection;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use watch::{Start, Terms, Watcher};

/// How long a read waits for a revision that this server has not seen yet. Upstream's value.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);
/// The shortest default life of a watch; the longest is twice that. Upstream's value.
const MIN_WATCH: Duration = Duration::from_secs(1800);

/// The forms in which objects can be shown.
pub const OBJECT_FORMS: &[Form] = &[Form::Json, Form::TABLE, Form::PartialMetadata];

/// How this request wants its objects to look.
pub fn renderer(request: &Request) -> Result<Renderer, ApiError> {
    let form = negotiate(request.accept.as_deref(), OBJECT_FORMS)?;
    let include = match request.query.get("includeObject") {
        None | Some("Metadata") => IncludeObject::Metadata,
        Some("None") => IncludeObject::None,
        Some("Object") => IncludeObject::Object,
        Some(other) => {
            let why = format!("includeObject: {other:?} is not one of None, Metadata, Object");
            return Err(ApiError::BadRequest(why));
        }
    };
    Ok(Renderer {
        kind: request.target.kind,
        form,
        include,
    })
}

/// Answers `get` of one object.
pub async fn get(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let renderer = renderer(request)?;
    let freshness = match request.query.get("resourceVersion") {
        None => Freshness::Newest,
        Some(_) => ListOptions::parse(&request.query, false)?.freshness,
    };
    wait_until_fresh(server, freshness).await?;
    let object = server.find(request.target.kind, &request.target.namespace, name)?;
    if request.target.subresource == Some(pointsman_rules::kind::Subresource::Scale) {
        let scale = || scale::scale_of(&object.value(), request.target.kind);
        return Ok(Reply::json(200, request.work.on(object.size(), scale).await));
    }
    let shown = renderer.object_by_turns(&request.work, &object).await;
    Ok(Reply::new(200, Body::whole(shown)))
}

/// Answers `list` of a collection.
pub async fn list(server: &Server, request: &Request, options: &ListOptions) -> Result<Reply, ApiError> {
    let renderer = renderer(request)?;
    let kind = request.target.kind;
    let selection = Selection::parse(&request.query, kind)?;
    let snapshot = snapshot(server, request, options).await?;
    let cost = selection.cost(&snapshot.objects);
    let select = || page(&snapshot.objects, &selection, options.limit);
    let (objects, last_examined, more) = request.work.on(cost, select).await;
    let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
    if let Some(last) = last_examined.filter(|_| more > 0) {
        metadata["continue"] = json!(Continue::new(Some(snapshot.revision), last).token());
        if selection.is_everything() {
            metadata["remainingItemCount"] = json!(more);
        }
    }
    let list = || renderer.list(&objects, metadata);
    let list = request.work.on(renderer.cost(&objects), list).await;
    Ok(Reply::new(200, Body::pieces(list)))
}

/// The first `limit` selected objects, the key after which the next page starts, and how many objects
/// are left to examine after it.
pub fn page<'a>(
    objects: &'a [Arc<Object>],
    selection: &Selection,
    limit: usize,
) -> (Vec<Arc<Object>>, Option<&'a str>, usize) {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut selected = Vec::new();
    for (at, object) in objects.iter().enumerate() {
        if selection.matches(object) {
            selected.push(object.clone());
            if selected.len() == limit {
                return (selected, Some(&object.key), objects.len() - at - 1);
            }
        }
    }
    (selected, None, 0)
}

/// The objects that a list or deletecollection covers, before selection.
pub async fn snapshot(
    server: &Server,
    request: &Request,
    options: &ListOptions,
) -> Result<Snapshot, ApiError> {
    let kind = request.target.kind;
    let namespace = &request.target.namespace;
    if let Some(page) = &options.after {
        return match u64::try_from(page.rv) {
            Ok(rv) => stored_snapshot(server, kind, namespace, Revision(rv), Some(&page.start)).await,
            Err(_) => {
                wait_until_fresh(server, Freshness::Newest).await?;
                let applied = server.cache.applied();
                Ok(server.cache.of(kind).list(namespace, Some(&page.start), applied))
            }
        };
    }
    if let Freshness::Exactly(revision) = options.freshness {
        return stored_snapshot(server, kind, namespace, revision, None).await;
    }
    wait_until_fresh(server, options.freshness).await?;
    let applied = server.cache.applied();
    Ok(server.cache.of(kind).list(namespace, None, applied))
}

/// The state at an exact revision: from recent changes if they reach back so far, else from the store's
/// history.
async fn stored_snapshot(
    server: &Server,
    kind: &'static Kind,
    namespace: &str,
    revision: Revision,
    after: Option<&str>,
) -> Result<Snapshot, ApiError> {
    // The store would be read from here to its end for every page of a list.
    let applied = server.cache.applied();
    let dropped = server.compacted.load(Ordering::Acquire);
    // A token has expired where its history was dropped. A restored store is at an older revision than what was
    // dropped of the one before.
    if after.is_none() || revision.0 >= dropped || dropped > applied.0 {
        let recent = server.cache.of(kind).list_at(namespace, after, revision, applied);
        if let Some(snapshot) = recent {
            return Ok(snapshot);
        }
    }
    let collection = keys::collection(kind);
    let prefix = if namespace.is_empty() {
        collection.clone()
    } else {
        format!("{collection}{namespace}/")
    };
    let range = Range {
        prefix,
        after: after.map(|after| collection.clone() + after),
        limit: 0,
        at: Some(revision),
    };
    let page = server.store.range(range).await.map_err(|error| match error {
        StoreError::Compacted { .. } if after.is_some() => ApiError::Expired {
            message:
                "The provided continue parameter is too old to display a consistent list result. You can \
                      start a new list without the continue parameter, or use the continue token in this \
                      response to retrieve the remainder of the results. Continuing with the provided token \
                      results in an inconsistent list."
                    .into(),
            fresh_continue: after.map(|after| Continue::new(None, after).token()),
        },
        StoreError::Compacted { .. } => watch::too_old(revision),
        StoreError::Future { newest, .. } => too_large(revision, newest),
        other => server.store_error(&other),
    })?;
    let objects = page
        .entries
        .iter()
        .filter_map(|entry| read_entry(entry, EventType::Added))
        .collect();
    Ok(Snapshot { objects, revision })
}

/// Waits until the cache is as fresh as the request needs it.
pub async fn wait_until_fresh(server: &Server, freshness: Freshness) -> Result<(), ApiError> {
    let wanted = match freshness {
        Freshness::Any => return Ok(()),
        Freshness::Newest => server
            .store
            .revision()
            .await
            .map_err(|error| server.store_error(&error))?,
        Freshness::NotOlderThan(revision) | Freshness::Exactly(revision) => revision,
    };
    if server.cache.has(wanted) {
        return Ok(());
    }
    // Another server's writes to a shared store may have moved its revision without an event for us.
    server
        .store
        .request_progress()
        .await
        .map_err(|error| server.store_error(&error))?;
    let waited = tokio::time::timeout(FRESHNESS_WAIT, server.cache.wait_for(wanted)).await;
    waited.map_err(|_| too_large(wanted, server.cache.applied()))
}

fn too_large(wanted: Revision, current: Revision) -> ApiError {
    ApiError::Timeout {
        message: format!("Too large resource version: {wanted}, current: {current}"),
        cause: Some((
            "ResourceVersionTooLarge".into(),
            "Too large resource version".into(),
        )),
        retry_after_seconds: 1,
    }
}

/// Opens a watch.
pub async fn watch(
    server: &Arc<Server>,
    request: &Request,
    options: WatchOptions,
) -> Result<Reply, ApiError> {
    let renderer = renderer(request)?;
    let kind = request.target.kind;
    let mut selection = Selection::parse(&request.query, kind)?;
    if let Some(name) = &request.target.name {
        selection = selection.only(name);
    }
    let generation = server.cache.of(kind).generation();
    let start = match options.from {
        Some(Revision(0)) => Start::After(server.cache.applied()),
        Some(revision) => {
            // A revision that never comes, as after a restored backup, would be waited for without an end.
            wait_until_fresh(server, Freshness::NotOlderThan(revision)).await?;
            Start::After(revision)
        }
        None => {
            wait_until_fresh(server, options.initial_freshness).await?;
            let applied = server.cache.applied();
            Start::Snapshot(
                server
                    .cache
                    .of(kind)
                    .list(&request.target.namespace, None, applied),
            )
        }
    };
    let life = options
        .timeout
        .unwrap_or_else(|| MIN_WATCH + MIN_WATCH.mul_f64(server.random_unit()));
    let terms = Terms {
        selection,
        renderer,
        namespace: request.target.namespace.clone(),
        bookmarks: options.bookmarks,
        mark_initial_end: options.mark_initial_end,
        deadline: Instant::now() + life,
    };
    let watcher = Watcher::new(server, request.work.clone(), terms, start, generation);
    Ok(Reply::new(200, Body::stream(watch_stream(server, watcher, kind))))
}

fn watch_stream(server: &Server, watcher: Watcher, kind: &'static Kind) -> crate::http::body::ByteStream {
    let open = server.metrics.open_watch(kind);
    Box::pin(futures::stream::unfold(
        (watcher, open),
        |(mut watcher, open)| async move {
            let before = watcher.events();
            let piece = watcher.next().await?;
            open.sent(watcher.events() - before, piece.len());
            Some((piece, (watcher, open)))
        },
    ))
}

/// The error for an object that is not there.
pub fn not_found(kind: &Kind, name: &str) -> ApiError {
    ApiError::NotFound(Subject::new(kind, name))
}
